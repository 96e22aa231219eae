use burn::tensor::{Int, Tensor};

use crate::{
    Error, Result,
    ops::{AttentionStatistics, Entries, EvictInput, EvictLimits, Ops, SlotRows},
    reduce::InPlace,
};

/// Store that decodes in place: the newest token takes the place of the evicted entry, and nothing
/// else moves.
///
/// From the first [`evict`](Self::evict) on, entries are out of order.
/// [`Store::entries`](super::Store::entries), positions and statistics are still by position: each
/// call lays them out, with positions that are read from the device.
///
/// Where tokens share entries (EMS), the rows of the entries are out of order; tokens are by
/// position.
pub trait SlotStore {
    /// Whether the next token, appended to heads that hold `held` tokens, can take another's place.
    fn can_evict(&self, held: &[usize]) -> bool;

    /// Number of entries per batch row and kv head, when heads hold `held` tokens: fewer than
    /// tokens where tokens share entries.
    fn entry_counts(&self, held: &[usize]) -> Vec<usize> {
        held.to_vec()
    }

    /// Number of columns for the tokens of a head, where tokens share entries.
    fn token_columns(&self) -> Option<usize> {
        None
    }

    /// Returns the entries in storage order, the new token last. Without `with_rows`, keys and
    /// values have arbitrary rows, so that none are copied.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn slots(&self, with_rows: bool) -> Result<Entries>;

    /// Evicts the weakest entry of each head. `counted` are the statistics of all entries in the
    /// order of [`slots`](Self::slots), this step included. Returns the thresholds by which evicted
    /// entries were merged, `[batch, 1]`, if they were.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input; the store
    /// is then unchanged.
    fn evict(
        &mut self,
        eviction: &Eviction,
        counted: AttentionStatistics,
    ) -> Result<Option<Tensor<2>>>;

    /// Holds the last `slots` entries of each head. A slot at position −1 is free, and tokens that
    /// are appended take it. Keys, values and statistics are zero there.
    ///
    /// # Errors
    /// The errors of [`Store::replace`](super::Store::replace), and
    /// [`Error::Stage`](crate::Error::Stage) of a store that has no free slots.
    fn hold_slots(&mut self, entries: Entries, slots: &[usize]) -> Result<()> {
        let _ = (entries, slots);
        Err(Error::stage("store", "in place", "has no free slots"))
    }

    /// Gives each head `rows` rows, per batch row and kv head, and `columns` columns of tokens,
    /// where tokens share entries. Rows behind the entries of a head are free, and tokens that are
    /// appended take them.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) of a store that has no free rows, or whose last tokens
    /// have no entries yet.
    fn add_rows(&mut self, rows: &[usize], columns: usize) -> Result<()> {
        let _ = (rows, columns);
        Err(Error::stage("store", "in place", "has no free rows"))
    }

    /// Counts a token that a replayed step has written, into a free slot of each head that
    /// `takes_free`. Afterwards heads hold `held` tokens; both are per batch row and kv head.
    fn count_token(&mut self, takes_free: &[bool], held: &[usize]) {
        let _ = (takes_free, held);
    }

    /// Number of slots per batch row and kv head, if some may be free; `None` if each holds an
    /// entry.
    fn slots_with_free(&self) -> Option<Vec<usize>> {
        None
    }

    /// Takes every slot to hold an entry.
    fn fill_slots(&mut self) {}

    /// Whether the entries are out of order.
    fn is_unordered(&self) -> bool;

    /// Lays the entries out by position.
    ///
    /// # Errors
    /// The errors of [`evict`](Self::evict).
    fn order(&mut self) -> Result<()>;
}

/// Eviction of the weakest entry of each head, by scores in storage order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Eviction {
    /// Score of each entry, the new token's last, `[batch, kv_heads, entries]`, f32.
    pub scores: Tensor<3>,
    /// Number of first tokens that stay whatever their scores.
    pub sinks: usize,
    /// Number of last tokens that stay whatever their scores, per batch row and kv head.
    pub recent: Vec<usize>,
    /// Whether the evicted entry is dropped or merged.
    pub reduction: InPlace,
    /// Maximum number of tokens that each head holds afterwards, per batch row and kv head.
    pub most_tokens: Vec<usize>,
    /// Whether the new token takes a free slot of a head, if it has one, so that no entry is
    /// evicted. Per batch row and kv head; empty where no slot is free.
    pub takes_free: Vec<bool>,
    /// The same numbers for this and future tokens, on the device; `None` if they are the same at
    /// every token.
    pub limits: Option<EvictLimits>,
}

impl Eviction {
    /// Input of the operation for entries of one token each.
    pub(super) fn input<'a>(
        &'a self,
        rows: SlotRows<'a>,
        positions: &'a mut Tensor<3, Int>,
        statistics: &'a mut AttentionStatistics,
        counted: AttentionStatistics,
    ) -> EvictInput<'a> {
        let Self { scores, sinks, recent, takes_free, limits, .. } = self;
        EvictInput {
            rows,
            positions,
            statistics,
            counted,
            scores: scores.clone(),
            sinks: *sinks,
            recent,
            takes_free,
            limits: limits.as_ref(),
        }
    }

    /// Drops the weakest entries, or merges them.
    pub(super) fn run(&self, input: EvictInput<'_>, ops: &dyn Ops) -> Result<Option<Tensor<2>>> {
        Ok(match &self.reduction {
            InPlace::Evict => {
                ops.evict(input)?;
                None
            }
            InPlace::Merge(merge) => Some(ops.evict_merging(input, merge.as_ref().clone())?),
            InPlace::Spread(spread) => {
                ops.evict_spreading(input, spread.as_ref().clone())?;
                None
            }
            InPlace::Cluster { .. } => return Err(misfit("merges clusters, and there are none")),
        })
    }
}

/// Error of a reduction that does not fit the entries of a store.
pub(super) fn misfit(reason: &str) -> Error {
    Error::stage("reducer", "in place", reason)
}
