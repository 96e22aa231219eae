use burn::tensor::{Int, Tensor};

/// The last queries of a layer, for scorers that look at a window of them: a ring that is written in place.
#[derive(Clone, Debug)]
pub(crate) struct QueryWindow {
    size: usize,
    /// Queries ever pushed; the next goes to slot `pushed % size`.
    pushed: usize,
    /// `[batch, query_heads, size, head_dim]`
    queries: Option<Tensor<4>>,
    /// `[batch, 1, size]`
    positions: Option<Tensor<3, Int>>,
}

/// Queries and the positions they were asked at, −1 for padding.
#[derive(Clone, Debug)]
pub(crate) struct Queries {
    /// `[batch, query_heads, queries, head_dim]`
    pub(crate) queries: Tensor<4>,
    /// `[batch, 1, queries]`
    pub(crate) positions: Tensor<3, Int>,
}

impl QueryWindow {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, pushed: 0, queries: None, positions: None }
    }

    /// Queries it holds when full.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn bytes(&self) -> usize {
        let queries =
            self.queries.as_ref().map_or(0, |x| x.shape().num_elements() * x.dtype().size());
        let positions =
            self.positions.as_ref().map_or(0, |x| x.shape().num_elements() * x.dtype().size());
        queries + positions
    }

    /// The last queries in order, `new` the newest; the window itself is unchanged.
    pub(crate) fn with(&self, new: &Queries) -> Queries {
        let arriving = new.positions.dims()[2];
        let held = self.pushed.min(self.size);
        let wanted = self.size.saturating_sub(arriving).min(held);
        if wanted == 0 {
            let keep = arriving.min(self.size);
            return Queries {
                queries: new.queries.clone().narrow(2, arriving - keep, keep),
                positions: new.positions.clone().narrow(2, arriving - keep, keep),
            };
        }
        let (Some(queries), Some(positions)) = (&self.queries, &self.positions) else {
            return new.clone();
        };
        // The last `wanted` of the ring end before slot `pushed % size`.
        let end = if held < self.size { held } else { self.pushed % self.size };
        let mut pieces = Vec::new();
        if wanted > end {
            pieces.push((self.size - (wanted - end), wanted - end));
        }
        if end > 0 {
            let length = wanted.min(end);
            pieces.push((end - length, length));
        }
        let pick = |&(start, length): &(usize, usize)| {
            (queries.clone().narrow(2, start, length), positions.clone().narrow(2, start, length))
        };
        let (mut queries, mut positions): (Vec<_>, Vec<_>) = pieces.iter().map(pick).unzip();
        queries.push(new.queries.clone().cast(queries[0].dtype()));
        positions.push(new.positions.clone());
        Queries { queries: Tensor::cat(queries, 2), positions: Tensor::cat(positions, 2) }
    }

    /// Forgets all queries and frees their memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.size);
    }

    /// Takes the newest queries in.
    pub(crate) fn push(&mut self, new: Queries) {
        if self.size == 0 {
            return;
        }
        let [batch, heads, arriving, head_dim] = new.queries.dims();
        let device = new.queries.device();
        let dtype = new.queries.dtype();
        let size = self.size;
        let keep = arriving.min(size);
        let skipped = arriving - keep;
        let queries = self
            .queries
            .get_or_insert_with(|| Tensor::zeros([batch, heads, size, head_dim], (&device, dtype)));
        let positions =
            self.positions.get_or_insert_with(|| Tensor::full([batch, 1, size], -1, &device));
        let kept_dtype = queries.dtype();
        let mut written = 0;
        while written < keep {
            let slot = (self.pushed + skipped + written) % size;
            let length = (keep - written).min(size - slot);
            let source = skipped + written;
            let value = new.queries.clone().narrow(2, source, length).cast(kept_dtype);
            queries.inplace(|x| {
                x.slice_assign([0..batch, 0..heads, slot..slot + length, 0..head_dim], value)
            });
            let value = new.positions.clone().narrow(2, source, length);
            positions.inplace(|x| x.slice_assign([0..batch, 0..1, slot..slot + length], value));
            written += length;
        }
        self.pushed += arriving;
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// Whatever the sizes of the pieces, the window is the last `size` of what was pushed.
    #[test]
    fn the_ring_is_the_end_of_the_stream() {
        let device = Device::flex();
        let piece = |start: usize, length: usize| {
            let numbers: Vec<i64> = (start..start + length).map(|n| n as i64).collect();
            let positions =
                Tensor::<3, Int>::from_data(TensorData::new(numbers, [1, 1, length]), &device);
            Queries { queries: positions.clone().float().unsqueeze_dim(3), positions }
        };
        for size in 1..6 {
            for lengths in [vec![1; 13], vec![2, 3, 1, 7, 1, 1, 5], vec![9, 1, 1, 2], vec![4, 4, 4]]
            {
                let mut window = QueryWindow::new(size);
                let mut seen = 0;
                for length in lengths {
                    let new = piece(seen, length);
                    seen += length;
                    let got = window.with(&new);
                    let expected: Vec<i64> =
                        (seen.saturating_sub(size)..seen).map(|n| n as i64).collect();
                    assert_eq!(
                        got.positions.into_data_as::<i64>().try_to_vec::<i64>().unwrap(),
                        expected
                    );
                    let queries = got.queries.into_data_as::<f32>().try_to_vec::<f32>().unwrap();
                    assert!(queries.iter().zip(&expected).all(|(q, e)| *q == *e as f32));
                    window.push(new);
                }
            }
        }
    }
}
