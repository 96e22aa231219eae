use std::{cmp::Ordering, f64::consts::E};

use burn::tensor::{Bool, DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};

use super::ema::{self, EmaInput};
use crate::{
    constant::{constant_ints, counting},
    entries::{AttentionStatistics, found_columns},
    error::Result,
    evict_limits::EvictLimits,
    host::HostInput,
    product::{Precision, product},
    unit::unit,
};

/// Entries of a layer in no order, and one new token a head, of which the weakest is to go. The new
/// token takes the place of the entry that goes, and nothing else moves. A head may have free
/// slots, columns at position −1: where it takes these, the token goes to the last of them, and no
/// entry goes.
///
/// `columns` are those of the entries before the new token.
#[derive(Debug)]
pub struct EvictInput<'a> {
    /// Keys and values, where they lie.
    pub rows: SlotRows<'a>,
    /// Position of each entry, `[batch, kv_heads, columns]`, −1 at padding. Where its rows lie
    /// [behind the others](SlotRows::Dense), `[batch, kv_heads, slots]` with the new token's.
    pub positions: &'a mut Tensor<3, Int>,
    /// Attention statistics of each entry, which are replaced, as wide as `positions`.
    pub statistics: &'a mut AttentionStatistics,
    /// Their new numbers, the new token's last, of the same kinds and heads, `columns + 1` wide.
    pub counted: AttentionStatistics,
    /// Score of each entry, the new token's last, `[batch, kv_heads, columns + 1]`, f32.
    pub scores: Tensor<3>,
    /// Number of first tokens of each head, by position, that stay whatever their scores.
    pub sinks: usize,
    /// Number of last tokens that stay whatever their scores, per batch row and kv head, rows
    /// first; fewer if there is no other to go.
    pub recent: &'a [usize],
    /// Whether the token takes a free slot if there is one, per batch row and kv head, rows first;
    /// empty if no head has a free slot. Keys, values, statistics and scores of free slots do not
    /// matter.
    pub takes_free: &'a [bool],
    /// These numbers of this token and of those that follow it, where a launch is recorded and
    /// repeated for them; `None` where it is not.
    pub limits: Option<&'a EvictLimits>,
}

/// Keys and values of entries, and of a new token.
// A call has one.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum SlotRows<'a> {
    /// All heads have as many slots. The new token lies behind them, at column `columns`, and
    /// behind that may be free slots.
    Dense {
        /// Keys, `[batch, kv_heads, slots, head_dim]`.
        keys: &'a mut Tensor<4>,
        /// Values, `[batch, kv_heads, slots, value_dim]`.
        values: &'a mut Tensor<4>,
    },
    /// Heads one after another, each with as many slots as it has columns, its last.
    Ragged {
        /// Keys, `[total, head_dim]`.
        keys: &'a mut Tensor<2>,
        /// Values, `[total, value_dim]`.
        values: &'a mut Tensor<2>,
        /// Offset of the first entry of each batch row and kv head, and `total` at the end,
        /// `[batch · kv_heads + 1]`.
        offsets: Tensor<1, Int>,
        /// Number of slots of each batch row and kv head, rows first.
        counts: &'a [usize],
        /// Keys of the new token, `[batch, kv_heads, 1, head_dim]`, of the type of `keys`.
        new_keys: Tensor<4>,
        /// Its values, `[batch, kv_heads, 1, value_dim]`, of the type of `values`.
        new_values: Tensor<4>,
        /// Its positions, `[batch, kv_heads, 1]`.
        new_positions: Tensor<3, Int>,
    },
}

impl EvictInput<'_> {
    /// Number of tokens of a head, the new one with them.
    pub fn tokens(&self, head: usize) -> usize {
        match &self.rows {
            SlotRows::Dense { .. } => self.scores.dims()[2],
            SlotRows::Ragged { counts, .. } => counts[head] + 1,
        }
    }

    /// Whether heads may have free slots.
    pub fn has_free_slots(&self) -> bool {
        !self.takes_free.is_empty()
    }

    /// Whether the token takes a free slot of a head, if it has one.
    pub fn takes_free(&self, head: usize) -> bool {
        self.takes_free.get(head).copied().unwrap_or(false)
    }

    /// Numbers of first and of last tokens of a head that stay.
    pub fn protected(&self, head: usize) -> (usize, usize) {
        let keep = self.tokens(head).saturating_sub(1);
        let sinks = self.sinks.min(keep);
        (sinks, self.recent[head].min(keep - sinks))
    }
}

/// The moving average by which evicted entries are merged (D2O, Eq. 9 to 12).
#[derive(Clone, Debug)]
pub struct EvictMergeInput {
    /// Threshold of each batch row before this step, `[batch, 1]`, f32; `None` if there is none
    /// yet.
    pub before: Option<Tensor<2>>,
    /// Weight of the new mean in the moving average.
    pub beta: f64,
}

/// Evicts one entry a head; it is chosen on the host.
pub(super) fn evict(input: EvictInput<'_>) -> Result<()> {
    let place = Place::of(&input)?;
    replace(input, &place, None);
    Ok(())
}

/// Evicts one entry a head and merges it into the most similar one; it is chosen on the host.
/// Returns the thresholds, `[batch, 1]`.
pub(super) fn evict_merging(input: EvictInput<'_>, merge: EvictMergeInput) -> Result<Tensor<2>> {
    let place = Place::of(&input)?;
    let EvictMergeInput { before, beta } = merge;
    let keys = input.rows.keys(&place);
    let (similarity, target) = nearest(&keys, &place);
    // A slot that was free is no entry to be merged.
    let similarity = similarity.mask_fill(place.is_free(), 0.0);
    let counts: Vec<usize> = place.evicts.iter().map(|&evicts| usize::from(evicts)).collect();
    let ema = ema::ema_weights(EmaInput { similarity, counts: &counts, before, beta });
    replace(input, &place, Some(&Merged { target, weight: ema.weights }));
    Ok(ema.threshold)
}

/// The entries that go, or the slots that were free.
pub(super) struct Place {
    /// Batch rows, heads, and columns with the new token's.
    pub(super) dims: [usize; 3],
    /// Positions of all, the new token's last, `[batch, kv_heads, columns + 1]`.
    positions: Tensor<3, Int>,
    /// The same on the host, head by head.
    pub(super) tokens: Vec<i64>,
    /// The column that goes, `[batch, kv_heads, 1]`.
    gone: Tensor<3, Int>,
    /// The same on the host, per batch row and kv head.
    pub(super) columns: Vec<usize>,
    /// Whether an entry goes, per batch row and kv head.
    pub(super) evicts: Vec<bool>,
    pub(super) device: Device,
}

impl Place {
    pub(super) fn of(input: &EvictInput<'_>) -> Result<Self> {
        let dims = input.scores.dims();
        let [batch, heads, all] = dims;
        let device = input.scores.device();
        let host = HostInput("evict");
        let positions = match &input.rows {
            SlotRows::Dense { .. } => input.positions.clone().narrow(2, 0, all),
            SlotRows::Ragged { new_positions, .. } => {
                Tensor::cat(vec![input.positions.clone(), new_positions.clone()], 2)
            }
        };
        let (scores, tokens) = (host.floats(&input.scores)?, host.ints(&positions)?);
        let of_head = |(head, (scores, tokens)): (usize, (&[f32], &[i64]))| {
            let first = all - input.tokens(head);
            let free = (first..all).rev().find(|&column| tokens[column] < 0);
            let (sinks, recent) = input.protected(head);
            let goes = || weakest(scores, tokens, input.tokens(head), sinks, recent);
            let free = free.filter(|_| input.takes_free(head));
            (free.unwrap_or_else(goes), free.is_none())
        };
        let of_heads = scores.chunks(all).zip(tokens.chunks(all)).enumerate();
        let (columns, evicts): (Vec<usize>, Vec<bool>) = of_heads.map(of_head).unzip();
        let gone = columns.iter().map(|&column| column as i64).collect::<Vec<_>>();
        let gone = Tensor::from_data(TensorData::new(gone, [batch, heads, 1]), &device);
        Ok(Self { dims, positions, tokens, gone, columns, evicts, device })
    }

    /// Whether the slot was free, `[batch, kv_heads, 1]`.
    fn is_free(&self) -> Tensor<3, Bool> {
        let [batch, heads, _] = self.dims;
        let free: Vec<bool> = self.evicts.iter().map(|evicts| !evicts).collect();
        Tensor::from_data(TensorData::new(free, [batch, heads, 1]), &self.device)
    }

    /// Whether each column is the one that `column` says, of so many columns.
    fn is(&self, column: &Tensor<3, Int>, columns: usize) -> Tensor<3, Bool> {
        let [batch, heads, _] = self.dims;
        let shape = [batch, heads, columns];
        let numbers = counting(0..columns, &self.device).reshape([1, 1, columns]);
        column.clone().expand(shape).equal(numbers.expand(shape))
    }
}

/// The column with the lowest score, NaN below all, and of equal scores the newest token, among the
/// last `count`, free slots left out. The first `sinks` and the last `recent` tokens stay.
pub(crate) fn weakest(
    scores: &[f32],
    tokens: &[i64],
    count: usize,
    sinks: usize,
    recent: usize,
) -> usize {
    let columns = tokens.len() - count..tokens.len();
    let mut columns: Vec<usize> = columns.filter(|&column| tokens[column] >= 0).collect();
    columns.sort_unstable_by_key(|&column| tokens[column]);
    let keep = columns.len().saturating_sub(1);
    let sinks = sinks.min(keep);
    let goes = &columns[sinks..columns.len() - recent.min(keep - sinks)];
    let order = |a: f32, b: f32| match (a.is_nan(), b.is_nan()) {
        (false, false) => a.total_cmp(&b),
        (a, b) if a == b => Ordering::Equal,
        (true, _) => Ordering::Less,
        _ => Ordering::Greater,
    };
    let by_score = |a: &&usize, b: &&usize| {
        order(scores[**a], scores[**b]).then(tokens[**b].cmp(&tokens[**a]))
    };
    goes.iter().min_by(by_score).copied().unwrap_or(0)
}

/// The similarity of each entry that goes to the most similar of the others, and that one's column,
/// the oldest of equals: `[batch, kv_heads, 1]` each.
fn nearest(keys: &Tensor<4>, place: &Place) -> (Tensor<3>, Tensor<3, Int>) {
    let [batch, heads, all] = place.dims;
    let channels = keys.dims()[3];
    let precision = Precision::of(&[DType::F32], &place.device);
    let picked = place.gone.clone().unsqueeze_dim::<4>(3).expand([batch, heads, 1, channels]);
    let keys = unit(keys.clone());
    let gone = keys.clone().gather(2, picked);
    let similarity = product(gone, keys.swap_dims(2, 3), precision).squeeze_dim::<3>(2);
    let others = place.is(&place.gone, all).bool_or(place.positions.clone().lower_elem(0));
    // Rounding must not make two equal vectors more than equal.
    let similarity = similarity.clamp_max(1.0).mask_fill(others, -2.0);
    let best = similarity.clone().max_dim(2);
    let less = similarity.lower(best.clone().expand([batch, heads, all]));
    let target = place.positions.clone().mask_fill(less, i64::from(i32::MAX)).argmin(2);
    (best, found_columns(target))
}

impl SlotRows<'_> {
    /// Keys of all entries, the new token's last, `[batch, kv_heads, columns + 1, head_dim]`.
    fn keys(&self, place: &Place) -> Tensor<4> {
        match self {
            Self::Dense { keys, .. } => (*keys).clone().narrow(2, 0, place.dims[2]),
            Self::Ragged { keys, offsets, new_keys, .. } => {
                let [batch, heads, all] = place.dims;
                let channels = keys.dims()[1];
                let rows = list_rows(offsets, counting(0..all - 1, &place.device), place);
                let rows = rows.clamp(0, keys.dims()[0] as i64 - 1).reshape([-1]);
                let laid_out = (*keys).clone().select(0, rows);
                let laid_out = laid_out.reshape([batch, heads, all - 1, channels]);
                Tensor::cat(vec![laid_out, new_keys.clone()], 2)
            }
        }
    }
}

/// Rows of a list at columns of a head, `[batch, kv_heads, columns]`, below zero at padding.
fn list_rows(offsets: &Tensor<1, Int>, columns: Tensor<1, Int>, place: &Place) -> Tensor<3, Int> {
    let [batch, heads, all] = place.dims;
    let width = columns.dims()[0];
    let ends = offsets.clone().narrow(0, 1, batch * heads).reshape([batch, heads, 1]);
    let shape = [batch, heads, width];
    (ends - (all as i64 - 1)).expand(shape) + columns.reshape([1, 1, width]).expand(shape)
}

/// The entry that an evicted one is merged into.
pub(super) struct Merged {
    /// Its column, `[batch, kv_heads, 1]`.
    target: Tensor<3, Int>,
    /// The weight of the evicted one beside e, `[batch, kv_heads, 1]`; zero merges nothing.
    weight: Tensor<3>,
}

/// Puts the new token where one goes, after that one was merged.
pub(super) fn replace(input: EvictInput<'_>, place: &Place, merged: Option<&Merged>) {
    let EvictInput { rows, positions, statistics, counted, .. } = input;
    let [batch, heads, all] = place.dims;
    let lists = batch * heads;
    let last = (all - 1) as i64;
    match rows {
        SlotRows::Dense { keys, values } => {
            let slots = keys.dims()[2];
            let first = (0..lists).map(|list| (list * slots) as i64).collect();
            let first = constant_ints("first slots", first, [batch, heads, 1], &place.device);
            for rows in [keys, values] {
                let channels = rows.dims()[3];
                rows.inplace(|rows| {
                    let new = rows.clone().narrow(2, all - 1, 1).reshape([lists, channels]);
                    let rows = rows.reshape([lists * slots, channels]);
                    let rows = replace_rows(rows, new, &first, place, merged);
                    rows.reshape([batch, heads, slots, channels])
                });
            }
        }
        SlotRows::Ragged { keys, values, offsets, new_keys, new_values, .. } => {
            let ends = offsets.narrow(0, 1, lists).reshape([batch, heads, 1]);
            let first = ends - last;
            for (rows, new) in [(keys, new_keys), (values, new_values)] {
                let new = new.reshape([lists, rows.dims()[1]]);
                rows.inplace(|rows| replace_rows(rows, new, &first, place, merged));
            }
        }
    }
    // The new token's column is left out: its numbers are where those of the gone one were.
    let columns = all - 1;
    let gone = place.is(&place.gone, columns);
    let new = place.positions.clone().narrow(2, columns, 1).expand([batch, heads, columns]);
    positions.inplace(|positions| {
        let left = positions.clone().narrow(2, 0, columns).mask_where(gone.clone(), new);
        positions.slice_assign([0..batch, 0..heads, 0..columns], left)
    });
    let before = std::mem::take(statistics);
    *statistics = before.zip(counted, |statistics, counted| {
        let [rows, of_statistics, _] = counted.dims();
        let (kinds, group) = (rows / batch, of_statistics / heads);
        let shape = [rows, of_statistics, columns];
        let gone: Tensor<5, Bool> = gone.reshape([1, batch, heads, 1, columns]);
        let gone = gone.expand([kinds, batch, heads, group, columns]).reshape(shape);
        let new = counted.clone().narrow(2, columns, 1).expand(shape);
        let left = counted.narrow(2, 0, columns).mask_where(gone, new);
        statistics.slice_assign([0..rows, 0..of_statistics, 0..columns], left)
    });
}

/// [`replace`] of keys or values: rows of all heads in one list, in which columns of a head begin
/// at `first`, `[batch, kv_heads, 1]`, and the `new` row of each, `[batch · kv_heads, channels]`.
fn replace_rows(
    rows: Tensor<2>,
    new: Tensor<2>,
    first: &Tensor<3, Int>,
    place: &Place,
    merged: Option<&Merged>,
) -> Tensor<2> {
    let [batch, heads, all] = place.dims;
    let [lists, channels] = new.dims();
    // A new row may not be in the list: the head's last stands in, and is written over itself.
    let index = |column: &Tensor<3, Int>| -> Tensor<1, Int> {
        (first.clone() + column.clone().clamp_max(all as i64 - 2)).reshape([lists])
    };
    let is_new = |column: &Tensor<3, Int>| -> Tensor<2, Bool> {
        let is_new = column.clone().equal_elem(all as i64 - 1);
        is_new.reshape([lists, 1]).expand([lists, channels])
    };
    let write = |rows: Tensor<2>, column: &Tensor<3, Int>, row: Tensor<2>| {
        let index = index(column);
        let own = rows.clone().select(0, index.clone());
        let row = row.mask_where(is_new(column), own);
        rows.select_assign(0, index, row, IndexingUpdateOp::Assign)
    };
    let Some(Merged { target, weight }) = merged else { return write(rows, &place.gone, new) };
    let row = |column: &Tensor<3, Int>| {
        let own = rows.clone().select(0, index(column));
        own.mask_where(is_new(column), new.clone())
    };
    let (gone, old) = (row(&place.gone), row(target));
    let weight = weight.clone().reshape([batch * heads, 1]).expand([lists, channels]);
    let all_weight = weight.clone().add_scalar(E);
    let sum = old.clone().cast(DType::F32) * E + gone.cast(DType::F32) * weight.clone();
    let row = (sum / all_weight).cast(old.dtype()).mask_where(weight.equal_scalar(0.0), old);
    let new = new.mask_where(is_new(target), row.clone());
    write(write(rows, target, row), &place.gone, new)
}

#[cfg(test)]
mod tests {
    use super::weakest;

    #[test]
    fn the_weakest_goes_and_of_equal_ones_the_newest() {
        let tokens = [7, 0, 5, 2, 9, 3];
        let scores = [1.0, 0.0, 2.0, 1.0, 0.0, 1.0];
        // By position: 0 (0.0), 2 (1.0), 3 (1.0), 5 (2.0), 7 (1.0), 9 (0.0).
        assert_eq!(weakest(&scores, &tokens, 6, 0, 0), 4);
        assert_eq!(weakest(&scores, &tokens, 6, 0, 1), 1);
        assert_eq!(weakest(&scores, &tokens, 6, 1, 1), 0);
        assert_eq!(weakest(&scores, &tokens, 6, 1, 2), 5);
        assert_eq!(weakest(&scores, &tokens, 6, 3, 2), 2);
        assert_eq!(weakest(&scores, &tokens, 3, 0, 1), 5);
        let scores = [1.0, f32::NAN, 2.0, f32::NAN, -1.0, -f32::NAN];
        assert_eq!(weakest(&scores, &tokens, 6, 0, 0), 5);
        // A free slot is no token.
        let (tokens, scores) = ([-1, 4, 0, -1, 7, 9], [-9.0, 1.0, 2.0, -9.0, 3.0, 4.0]);
        assert_eq!(weakest(&scores, &tokens, 6, 0, 0), 1);
        assert_eq!(weakest(&scores, &tokens, 6, 2, 1), 4);
    }
}
