//! Positions counted over the entries that a cache holds.

use burn::tensor::{Int, Tensor};

use super::{input::LayerInput, working_set::WorkingSet};
use crate::{
    CacheShape, Result,
    cache::context::Context,
    ops::{constant_ints, counting, offset_per_head},
};

/// Positions of entries counted anew, as their ranks among the entries held.
pub(in crate::cache) struct CachePositions<'a> {
    context: Context<'a>,
    /// Tokens held by head, the new ones included.
    held: &'a [usize],
    padded: bool,
    unordered: bool,
}

impl<'a> CachePositions<'a> {
    pub(super) fn new(context: Context<'a>, input: &'a LayerInput, all: &WorkingSet) -> Self {
        Self { context, held: &input.held, padded: all.padded, unordered: all.unordered }
    }

    /// Positions of entries that are by position, where each head holds its number of `held`.
    pub(in crate::cache) fn of_held(context: Context<'a>, held: &'a [usize]) -> Self {
        Self { context, held, padded: true, unordered: false }
    }

    fn batch(&self) -> usize {
        self.held.len() / self.context.shape.kv_heads
    }

    /// Returns the rank of each entry, `[batch, kv_heads or 1, entries]`; padding has the rank of
    /// the entry before it. The last rank is one less than the tokens that the host counts; the
    /// device may hold fewer.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if ranks cannot be counted.
    pub(in crate::cache) fn of_entries(
        &self,
        positions: &Tensor<3, Int>,
    ) -> Result<Tensor<3, Int>> {
        let columns = positions.dims()[2];
        let Context { policy, config, .. } = self.context;
        if self.unordered {
            return Ok(config.ops.ranks(positions.clone(), policy.protect().sinks)?);
        }
        if self.padded {
            let held = positions.clone().greater_equal_scalar(0);
            let ranks = held.int().cumsum(2);
            let all = ranks.clone().narrow(2, columns - 1, 1).expand(positions.dims());
            let by: Vec<i64> = self.held.iter().map(|&held| held as i64 - 1).collect();
            return Ok(offset_per_head(ranks - all, &by));
        }
        let ranks = counting(0..columns, self.context.device()).reshape([1, 1, columns]);
        Ok(ranks.expand([self.batch(), 1, columns]))
    }

    /// Returns the rank of the only new entry, `[batch, query_heads, 1]`, if the device counts the
    /// `ranks` of all entries; `None` if the host knows it.
    pub(super) fn of_newest(&self, ranks: Option<&Tensor<3, Int>>) -> Option<Tensor<3, Int>> {
        let ranks = ranks.filter(|_| self.unordered)?;
        let [batch, heads, columns] = ranks.dims();
        let group = self.context.shape.group();
        let newest = ranks.clone().narrow(2, columns - 1, 1).expand([batch, heads, group]);
        Some(newest.reshape([batch, heads * group, 1]))
    }

    /// The ranks of the newest entries, −1 at padding: `[batch, 1, new]`, or per query head where
    /// heads hold different numbers of entries.
    pub(super) fn of_new(&self, input: &LayerInput) -> Tensor<3, Int> {
        let (positions, arrived) = (&input.span.positions, &input.arrived);
        let columns = positions.len() / self.batch();
        self.of_queries(|row, held| {
            let mut next = (held - arrived[row]) as i64;
            let positions = &positions[row * columns..][..columns];
            let rank = |&position: &i64| {
                let rank = if position < 0 { -1 } else { next };
                next += i64::from(position >= 0);
                rank
            };
            positions.iter().map(rank).collect()
        })
    }

    /// The ranks of the last `size` entries of each row, as [`of_new`](Self::of_new).
    pub(super) fn of_last(&self, size: usize) -> Tensor<3, Int> {
        self.of_queries(|_, held| {
            (0..size).map(|i| (held + i).saturating_sub(size) as i64).collect()
        })
    }

    /// The ranks of `size` tokens that would come next.
    pub(in crate::cache) fn of_next(&self, size: usize) -> Tensor<3, Int> {
        self.of_queries(|_, held| (held..held + size).map(|rank| rank as i64).collect())
    }

    fn of_queries(&self, ranks: impl Fn(usize, usize) -> Vec<i64>) -> Tensor<3, Int> {
        let CacheShape { kv_heads, query_heads, .. } = self.context.shape;
        let rows = self.held.chunks(kv_heads);
        let even = rows.clone().all(|row| row.iter().all(|held| *held == row[0]));
        let mut all = Vec::new();
        for (row, held) in rows.enumerate() {
            if even {
                all.extend(ranks(row, held[0]));
            } else {
                for &held in held {
                    let ranks = ranks(row, held);
                    (0..self.context.shape.group()).for_each(|_| all.extend(&ranks));
                }
            }
        }
        let heads = if even { 1 } else { query_heads };
        let columns = all.len() / (self.batch() * heads);
        constant_ints("ranks", all, [self.batch(), heads, columns], self.context.device())
    }
}
