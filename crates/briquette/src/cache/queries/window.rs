use burn::tensor::{DType, Device, Int, Tensor};

use crate::{
    Result,
    columns::right_aligned,
    device::{Rows, buffer_bytes},
    ops::{Selection, gather_positions, gather_rows},
    prefix::{Parts, PrefixError},
    rows::{append_int_rows, append_rows, select_list, select_rows},
    state::{StateTensor, StateVisitor},
};

/// The last queries of a layer, for scorers that look at a window of them: a ring that is written
/// in place.
#[derive(Clone, Debug)]
pub(crate) struct QueryWindow {
    size: usize,
    ring: Option<Ring>,
}

#[derive(Clone, Debug)]
struct Ring {
    /// `[batch, query_heads, size, head_dim]` and `[batch, 1, size]`
    slots: Queries,
    /// Number of queries in the ring; the next one is written to slot `next`.
    held: usize,
    next: usize,
    /// The number of queries per batch row that are not padding. Padding comes before these.
    valid: Vec<usize>,
}

/// Queries and their positions, −1 for padding.
#[derive(Clone, Debug)]
pub(crate) struct Queries {
    /// `[batch, query_heads, queries, head_dim]`
    pub(crate) queries: Tensor<4>,
    /// `[batch, 1, queries]`
    pub(crate) positions: Tensor<3, Int>,
}

impl Queries {
    /// Returns the mean square of each channel over the last `most` queries, padding left out, and
    /// over the query heads that share a kv head: `[batch, kv_heads, head_dim]`, f32.
    pub(crate) fn mean_squares(&self, most: usize, kv_heads: usize) -> Tensor<3> {
        let kept = most.min(self.len());
        let Self { queries, positions } = self.narrow(self.len() - kept, kept);
        let [batch, heads, _, head_dim] = queries.dims();
        let own = positions.greater_equal_scalar(0).float().cast(DType::F32);
        let own = own.reshape([batch, 1, kept, 1]);
        let sums = (queries.cast(DType::F32).square() * own.clone()).sum_dim(2);
        let means = sums / own.sum_dim(2).clamp_min(1.0);
        means.reshape([batch, kv_heads, heads / kv_heads, head_dim]).mean_dim(2).squeeze_dim(2)
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.queries, rows) + buffer_bytes(&self.positions, rows)
    }

    pub(super) fn select_rows(&self, rows: &[usize]) -> Self {
        Self {
            queries: select_rows(self.queries.clone(), rows),
            positions: select_rows(self.positions.clone(), rows),
        }
    }

    /// Appends the batch rows of `more`, of as many queries.
    fn append_rows(self, more: Self) -> Self {
        Self {
            queries: append_rows(self.queries, more.queries),
            positions: append_int_rows(self.positions, more.positions),
        }
    }

    /// Puts so many rows of padding before its batch rows, and behind them.
    pub(super) fn with_padding_rows(&self, before: usize, behind: usize) -> Self {
        let [_, heads, columns, channels] = self.queries.dims();
        let (device, dtype) = (self.queries.device(), self.queries.dtype());
        let of_rows = |rows: usize| Self {
            queries: Tensor::zeros([rows, heads, columns, channels], (&device, dtype)),
            positions: Tensor::full([rows, 1, columns], -1, &device),
        };
        let mut all = self.clone();
        if before > 0 {
            all = of_rows(before).append_rows(all);
        }
        if behind > 0 {
            all = all.append_rows(of_rows(behind));
        }
        all
    }

    /// Right-aligns them in `length` columns, behind padding.
    fn right_aligned(self, length: usize) -> Self {
        Self {
            queries: right_aligned(self.queries, length, 0),
            positions: right_aligned(self.positions, length, -1),
        }
    }

    fn len(&self) -> usize {
        self.positions.dims()[2]
    }

    fn narrow(&self, start: usize, length: usize) -> Self {
        Self {
            queries: self.queries.clone().narrow(2, start, length),
            positions: self.positions.clone().narrow(2, start, length),
        }
    }

    fn cat(pieces: Vec<Self>) -> Self {
        let (queries, positions) =
            pieces.into_iter().map(|piece| (piece.queries, piece.positions)).unzip();
        Self { queries: Tensor::cat(queries, 2), positions: Tensor::cat(positions, 2) }
    }

    /// Writes `new` at `start`, in place where the buffer is not shared.
    fn write(&mut self, start: usize, new: Self) {
        let length = new.len();
        let [batch, heads, _, head_dim] = self.queries.dims();
        let queries = new.queries.cast(self.queries.dtype());
        let range = start..start + length;
        self.queries
            .inplace(|x| x.slice_assign([0..batch, 0..heads, range.clone(), 0..head_dim], queries));
        self.positions.inplace(|x| x.slice_assign([0..batch, 0..1, range], new.positions));
    }
}

impl QueryWindow {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, ring: None }
    }

    /// Number of queries it holds when full.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The number of last queries per batch row that are not padding, when `arrived` more have
    /// come.
    pub(crate) fn own(&self, arrived: &[usize]) -> Vec<usize> {
        let valid = |row: usize| self.ring.as_ref().map_or(0, |ring| ring.valid[row]);
        let rows = arrived.iter().enumerate();
        rows.map(|(row, arrived)| (valid(row) + arrived).min(self.size)).collect()
    }

    pub(crate) fn bytes(&self, rows: Rows) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.slots.bytes(rows))
    }

    /// The last queries in order, `new` the newest; the window itself is unchanged. `positions` are
    /// those of `new`, on the host.
    pub(crate) fn with(&self, new: &Queries, positions: &[i64]) -> Queries {
        let arriving = new.len();
        let kept = arriving.min(self.size);
        let Some(ring) = &self.ring else { return new.narrow(arriving - kept, kept) };
        if positions.contains(&-1) {
            let held = ring.last(ring.held);
            let joined = Queries::cat(held.into_iter().chain([new.clone()]).collect());
            return ring.without_padding(joined, positions, self.size);
        }
        let mut pieces = ring.last((self.size - kept).min(ring.held));
        pieces.push(new.narrow(arriving - kept, kept));
        Queries::cat(pieces)
    }

    pub(crate) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        let Some(Ring { slots, held, next, valid }) = &self.ring else { return Ok(parts) };
        parts.put_numbers("held", [*held]);
        parts.put_numbers("next", [*next]);
        parts.put_numbers("valid", &valid[..]);
        parts.put("queries", &slots.queries)?;
        parts.put("positions", &slots.positions)?;
        Ok(parts)
    }

    /// Restores the window that [`save`](Self::save) wrote, of queries
    /// `[batch, query_heads, size, head_dim]`.
    pub(crate) fn restore(
        mut parts: Parts,
        [batch, heads, size, head_dim]: [usize; 4],
        device: &Device,
    ) -> Result<Self> {
        if !parts.holds("queries") {
            parts.finish()?;
            return Ok(Self::new(size));
        }
        let ring = Ring {
            slots: Queries {
                queries: parts.take_float("queries", [batch, heads, size, head_dim], device)?,
                positions: parts.take_int("positions", [batch, 1, size], None, device)?,
            },
            held: parts.take_number("held")?,
            next: parts.take_number("next")?,
            valid: parts.take_list("valid", batch)?,
        };
        if ring.held > size || ring.next >= size || ring.valid.iter().any(|&own| own > size) {
            return Err(PrefixError::contents("window", format!("holds more than {size}")).into());
        }
        parts.finish()?;
        Ok(Self { size, ring: Some(ring) })
    }

    /// Returns the window of these batch rows.
    pub(crate) fn select_rows(&self, rows: &[usize]) -> Self {
        let select = |ring: &Ring| Ring {
            slots: ring.slots.select_rows(rows),
            valid: select_list(&ring.valid, ring.valid.len(), rows),
            ..*ring
        };
        Self { size: self.size, ring: self.ring.as_ref().map(select) }
    }

    /// Returns the window with the batch rows of another behind its own: rows with fewer queries
    /// begin with padding.
    pub(crate) fn append_rows(&self, more: &Self) -> Self {
        let both = self.ring.as_ref().zip(more.ring.as_ref());
        let joined = both.map(|(own, more)| {
            let held = own.held.max(more.held);
            let [of_own, of_more] =
                [own, more].map(|ring| Queries::cat(ring.last(ring.held)).right_aligned(held));
            let queries = of_own.append_rows(of_more);
            let mut ring = Ring::new(self.size, &queries);
            ring.slots.write(0, queries);
            ring.valid = [&own.valid[..], &more.valid].concat();
            Ring { held, next: held % self.size, ..ring }
        });
        Self { size: self.size, ring: joined }
    }

    /// See [`Replay::visit_state`](crate::state::Replay::visit_state).
    pub(crate) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        let Some(Ring { slots, held, next, valid }) = &mut self.ring else { return };
        visitor.tensor(StateTensor::Float4(&mut slots.queries));
        visitor.tensor(StateTensor::Int3(&mut slots.positions));
        visitor.numbers(&[*held, *next]);
        visitor.numbers(valid);
    }

    /// Forgets all queries and frees their memory.
    pub(crate) fn clear(&mut self) {
        self.ring = None;
    }

    pub(crate) fn push(&mut self, new: Queries, positions: &[i64]) {
        if self.size == 0 {
            return;
        }
        let size = self.size;
        let [batch, _, arriving, _] = new.queries.dims();
        let padded = positions.contains(&-1);
        // Padding among queries that are held would push some of a row's own out.
        let (new, arriving) = if padded && self.ring.is_some() {
            let all = self.with(&new, positions);
            let length = all.len();
            (all, length)
        } else {
            (new, arriving)
        };
        let ring = self.ring.get_or_insert_with(|| Ring::new(size, &new));
        let columns = positions.len() / batch;
        for (valid, positions) in ring.valid.iter_mut().zip(positions.chunks(columns)) {
            *valid =
                (*valid + positions.iter().filter(|&&position| position >= 0).count()).min(size);
        }
        if padded {
            (ring.held, ring.next) = (0, 0);
        }
        let kept = arriving.min(size);
        let mut written = arriving - kept;
        while written < arriving {
            let length = (arriving - written).min(size - ring.next);
            ring.slots.write(ring.next, new.narrow(written, length));
            ring.next = (ring.next + length) % size;
            written += length;
        }
        ring.held = (ring.held + kept).min(size);
    }
}

impl Ring {
    /// Creates an empty ring for `size` queries of the rows, heads and type of these.
    fn new(size: usize, like: &Queries) -> Self {
        let [batch, heads, _, head_dim] = like.queries.dims();
        let (device, dtype) = (like.queries.device(), like.queries.dtype());
        Self {
            slots: Queries {
                queries: Tensor::zeros([batch, heads, size, head_dim], (&device, dtype)),
                positions: Tensor::full([batch, 1, size], -1, &device),
            },
            held: 0,
            next: 0,
            valid: vec![0; batch],
        }
    }

    /// The last `wanted` queries held, in order, in one or two pieces.
    fn last(&self, wanted: usize) -> Vec<Queries> {
        let size = self.slots.len();
        // The newest stand before `next`; the others end the ring.
        let newest = if self.held < size || self.next == 0 { self.held } else { self.next };
        let end = if self.next == 0 { self.held } else { self.next };
        let mut pieces = Vec::new();
        if wanted > newest {
            let length = wanted - newest;
            pieces.push(self.slots.narrow(size - length, length));
        }
        let length = wanted.min(newest);
        if length > 0 {
            pieces.push(self.slots.narrow(end - length, length));
        }
        pieces
    }

    /// Returns each row's last `size` queries that are not padding, among those held and the new
    /// ones; rows with fewer begin with padding.
    fn without_padding(&self, joined: Queries, positions: &[i64], size: usize) -> Queries {
        let [batch, heads, total, _] = joined.queries.dims();
        let columns = positions.len() / batch;
        let held = total - columns;
        let of_row = |(new, valid): (&[i64], &usize)| {
            let new = (0..columns).filter(|&column| new[column] >= 0);
            let all: Vec<usize> =
                (held - valid..held).chain(new.map(|column| held + column)).collect();
            all[all.len().saturating_sub(size)..].to_vec()
        };
        let rows: Vec<Vec<usize>> =
            positions.chunks(columns).zip(&self.valid).map(of_row).collect();
        if rows.iter().all(Vec::is_empty) {
            // Padding alone so far: a column of it.
            return joined.narrow(total - 1, 1);
        }
        let device = joined.queries.device();
        let of_queries = Selection::of_rows(&rows, heads, &device);
        let of_positions = Selection::of_rows(&rows, 1, &device);
        Queries {
            queries: gather_rows(joined.queries, &of_queries),
            positions: gather_positions(joined.positions, &of_positions),
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// Queries whose numbers are their own position; −1 is padding. One inner vector per row.
    fn piece(rows: &[Vec<i64>]) -> (Queries, Vec<i64>) {
        let (batch, length) = (rows.len(), rows[0].len());
        let host = rows.concat();
        let data = TensorData::new(host.clone(), [batch, 1, length]);
        let positions = Tensor::<3, Int>::from_data(data, &Device::flex());
        (Queries { queries: positions.clone().float().unsqueeze_dim(3), positions }, host)
    }

    fn host(got: &Queries) -> Vec<Vec<i64>> {
        let positions = got.positions.clone().try_into_vec_as::<i64>().unwrap();
        let queries = got.queries.clone().try_into_vec_as::<f32>().unwrap();
        assert!(queries.iter().zip(&positions).all(|(q, p)| *p < 0 || *q == *p as f32));
        positions.chunks(got.len()).map(<[i64]>::to_vec).collect()
    }

    /// Whatever the sizes of the pieces, the window is the last `size` of what was pushed.
    #[test]
    fn the_ring_is_the_end_of_the_stream() {
        for size in 1..6 {
            for lengths in [vec![1; 13], vec![2, 3, 1, 7, 1, 1, 5], vec![9, 1, 1, 2], vec![4, 4, 4]]
            {
                let mut window = QueryWindow::new(size);
                let mut seen = 0;
                for length in lengths {
                    let (new, positions) = piece(&[(seen..seen + length).collect()]);
                    seen += length;
                    let expected: Vec<i64> = ((seen - size as i64).max(0)..seen).collect();
                    assert_eq!(host(&window.with(&new, &positions)), [expected]);
                    window.push(new, &positions);
                }
            }
        }
    }

    #[test]
    fn rows_keep_their_windows_when_they_join_and_change_places() {
        for size in 1..6 {
            let window = |length: i64| {
                let mut window = QueryWindow::new(size);
                for position in 0..length {
                    let (new, positions) = piece(&[vec![position]]);
                    window.push(new, &positions);
                }
                window
            };
            let mut joined = window(7).append_rows(&window(2)).select_rows(&[1, 0, 1]);
            for seen in 0..4 {
                let next = [2, 7, 2].map(|first: i64| first + seen);
                let (new, positions) = piece(&next.map(|position| vec![position]));
                let valid = next.map(|position| (position as usize + 1).min(size));
                assert_eq!(joined.own(&[1; 3]), valid);
                for (got, last) in host(&joined.with(&new, &positions)).into_iter().zip(next) {
                    let first = (last + 1 - size as i64).max(0);
                    let got: Vec<i64> = got.into_iter().filter(|&position| position >= 0).collect();
                    assert_eq!(got, (first..=last).collect::<Vec<_>>(), "size {size}");
                }
                joined.push(new, &positions);
            }
        }
    }

    /// Each row of a batch has the window it has alone, wherever the others have padding.
    #[test]
    fn padding_pushes_nothing_out() {
        let pieces = [
            [vec![0, 1, 2], vec![-1, -1, 0]],
            [vec![3, 4, 5], vec![1, 2, 3]],
            [vec![-1, 6, 7], vec![-1, -1, 4]],
            [vec![-1, -1, -1], vec![-1, 5, 6]],
            [vec![8, 9, 10], vec![7, 8, 9]],
        ];
        for size in 1..8 {
            let mut window = QueryWindow::new(size);
            let mut rows = [Vec::new(), Vec::new()];
            for new in &pieces {
                for (row, new) in rows.iter_mut().zip(new) {
                    row.extend(new.iter().copied().filter(|&position| position >= 0));
                }
                let (new, positions) = piece(new);
                let got = host(&window.with(&new, &positions));
                for (got, row) in got.iter().zip(&rows) {
                    let got: Vec<i64> =
                        got.iter().copied().filter(|&position| position >= 0).collect();
                    // A first piece may hold more padding than the window has room for.
                    assert_eq!(got, row[row.len().saturating_sub(size)..], "size {size}");
                }
                window.push(new, &positions);
            }
        }
    }
}
