use burn::tensor::{Int, Tensor};

use crate::{
    Error, Result,
    ops::{AttentionStatistics, Entries, EvictInput, EvictLimits, Ops, SlotRows},
    reduce::InPlace,
};

/// A store that decodes in place: the token that was appended last takes the place of the entry
/// that is evicted, and nothing else moves.
///
/// From the first [`evict`](Self::evict) on entries lie in no order.
/// [`Store::entries`](super::Store::entries), positions and statistics are by position all the
/// same: they are laid out for each call, with positions that are read from the device.
///
/// Where tokens share entries (EMS) the rows of these lie in no order; tokens are by position.
pub trait SlotStore {
    /// Whether a token that is appended next, to heads that hold so many, can take another's place.
    fn can_evict(&self, held: &[usize]) -> bool;

    /// Number of entries of each head that holds so many tokens, per batch row and kv head: fewer
    /// where tokens share entries.
    fn entry_counts(&self, held: &[usize]) -> Vec<usize> {
        held.to_vec()
    }

    /// Columns that there are for the tokens of a head, where tokens share entries.
    fn token_columns(&self) -> Option<usize> {
        None
    }

    /// The entries in the order that they lie in, the new token last. If keys and values are not
    /// wanted, those of the result have any rows, so that none are copied.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn slots(&self, with_rows: bool) -> Result<Entries>;

    /// Evicts the weakest entry of each head. `counted` are the statistics of all entries, as
    /// [`slots`](Self::slots) has them, with those of this step. Returns the thresholds by which
    /// evicted entries were merged, `[batch, 1]`, if they were.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input; the store
    /// is then unchanged.
    fn evict(
        &mut self,
        eviction: &Eviction,
        counted: AttentionStatistics,
    ) -> Result<Option<Tensor<2>>>;

    /// Holds these entries, of which each head has its last, at position −1 where a slot is free;
    /// tokens that are appended take the free slots. Keys, values and statistics are zero there.
    ///
    /// # Errors
    /// The errors of [`Store::replace`](super::Store::replace), and
    /// [`Error::Stage`](crate::Error::Stage) of a store that has no free slots.
    fn hold_slots(&mut self, entries: Entries, slots: &[usize]) -> Result<()> {
        let _ = (entries, slots);
        let (name, reason) = ("in place".to_owned(), "has no free slots".to_owned());
        Err(Error::Stage { stage: "store", name, reason })
    }

    /// Where tokens share entries: gives each head so many rows, per batch row and kv head, those
    /// behind its entries free, and as many columns of tokens. Tokens that are appended take the
    /// free rows.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) of a store that has no free rows, or whose last tokens
    /// have no entries yet.
    fn add_rows(&mut self, rows: &[usize], columns: usize) -> Result<()> {
        let _ = (rows, columns);
        let (name, reason) = ("in place".to_owned(), "has no free rows".to_owned());
        Err(Error::Stage { stage: "store", name, reason })
    }

    /// Counts a token that a replayed step has put into a free slot of each head that takes one,
    /// per batch row and kv head; afterwards heads hold so many tokens.
    fn count_token(&mut self, takes_free: &[bool], held: &[usize]) {
        let _ = (takes_free, held);
    }

    /// Slots of each head, per batch row and kv head, where some may be free; `None` where an entry
    /// is in each.
    fn slots_with_free(&self) -> Option<Vec<usize>> {
        None
    }

    /// Takes every slot to have an entry.
    fn fill_slots(&mut self) {}

    /// Whether the entries lie in no order.
    fn is_unordered(&self) -> bool;

    /// Lays the entries out by position.
    ///
    /// # Errors
    /// The errors of [`evict`](Self::evict).
    fn order(&mut self) -> Result<()>;
}

/// Scores of entries in the order that they lie in, of which the weakest goes.
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
    /// The most tokens that each head holds afterwards, per batch row and kv head.
    pub most_tokens: Vec<usize>,
    /// Whether the new token takes a free slot of a head if it has one, and no entry goes, per
    /// batch row and kv head; empty where no slot is free.
    pub takes_free: Vec<bool>,
    /// These numbers of this token and of those to come, on the device; `None` where they are the
    /// same at every token.
    pub limits: Option<EvictLimits>,
}

impl Eviction {
    /// The input of the operation on entries of one token each.
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

/// The error of a reduction that the entries of a store do not take.
pub(super) fn misfit(reason: &str) -> Error {
    Error::Stage { stage: "reducer", name: "in place".to_owned(), reason: reason.to_owned() }
}
