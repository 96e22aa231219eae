//! The state of a cache that a decode step changes, for callers that record a step and replay it.

use burn::tensor::{Int, Tensor};

use crate::{
    Result,
    ops::{AttentionStatistics, Clustering},
};

/// A tensor of a cache's state.
#[derive(Debug)]
#[non_exhaustive]
pub enum StateTensor<'a> {
    /// Floats in two dimensions.
    Float2(&'a mut Tensor<2>),
    /// Floats in three dimensions.
    Float3(&'a mut Tensor<3>),
    /// Floats in four dimensions.
    Float4(&'a mut Tensor<4>),
    /// Integers in one dimension.
    Int1(&'a mut Tensor<1, Int>),
    /// Integers in two dimensions.
    Int2(&'a mut Tensor<2, Int>),
    /// Integers in three dimensions.
    Int3(&'a mut Tensor<3, Int>),
}

/// Visits the state of a cache, always in the same order.
pub trait StateVisitor {
    /// Visits a tensor that lives from one step to the next.
    fn tensor(&mut self, tensor: StateTensor<'_>);

    /// Visits a number on the host that decides what a step launches.
    fn number(&mut self, number: usize);

    /// Visits a list of such numbers.
    fn numbers(&mut self, numbers: &[usize]) {
        self.number(numbers.len());
        numbers.iter().for_each(|&number| self.number(number));
    }
}

/// Cache whose decode steps can be captured and replayed, as the crate `briquette-graph` does. Tell
/// it only of steps that were replayed: otherwise it counts wrongly.
pub trait Replay {
    /// Visits all that a decoded token changes, except the number of tokens seen, which grows in
    /// every step.
    ///
    /// A step that leaves all visited numbers as they were makes the same launches as the step
    /// before, on tensors with new contents. Recorded once, it can be replayed, if its results are
    /// written to where the tensors were.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) for stages that are not
    /// [capturable](crate::Policy::is_capturable), for an input check of every token, which reads
    /// from the device, for positions that the model encodes itself, and for a store that [cannot
    /// be replayed](crate::store::Store::replay) or packs what is left at every compression of
    /// decoded tokens;
    /// [`Error::PromptUnfinished`](crate::Error::PromptUnfinished).
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> Result<()>;

    /// Why steps of this cache cannot be replayed; `None` if they can.
    fn fallback_reason(&self) -> Option<&'static str> {
        None
    }

    /// Returns the kind of the next decoded token. A token that ends a local window moves the
    /// window's sums, and is of another kind.
    ///
    /// `None` if the step of the token must be launched. Then a store packs tokens with it (KIVI,
    /// FP8), a cache that does not compress at every token compresses at it, or [no
    /// step](Self::fallback_reason) can be replayed. Packing leaves tensors where they are.
    fn step_kind(&mut self) -> Option<u64>;

    /// Counts a decoded token that a replayed step has written. It takes all tensors to be those
    /// that the step has made.
    ///
    /// # Errors
    /// [`Error::PositionOverflow`](crate::Error::PositionOverflow) for a token beyond the positions
    /// that the last one was encoded with, [`Error::Stage`](crate::Error::Stage) if it is a
    /// prompt's. Nothing is counted then.
    fn advance(&mut self) -> Result<()>;

    /// Makes room for `tokens` more in each layer of a cache that grows, and lets the device count
    /// the index of the next one. The entries and the outputs stay the same.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) for a store that cannot.
    fn begin_device_indexing(&mut self, tokens: usize) -> Result<()>;

    /// Lets the host count again.
    fn end_device_indexing(&mut self);

    /// Number of tokens that still have room since [device indexing
    /// began](Self::begin_device_indexing), 0 if it has not; `None` for a cache whose columns the
    /// host must count, or that counts positions anew in every call. A cache that compresses at
    /// every token counts its free slots instead.
    fn open_columns(&mut self) -> Option<usize>;

    /// Prepares positions below `end`: tables of position encodings reach that far from now on, or
    /// to their end, so that no step makes a new one.
    fn prepare_positions(&mut self, end: usize);
}

pub(crate) fn visit_statistics(
    statistics: &mut AttentionStatistics,
    visitor: &mut dyn StateVisitor,
) {
    if let Some(stacked) = statistics.stacked_mut() {
        visitor.tensor(StateTensor::Float3(stacked));
    }
}

pub(crate) fn visit_clustering(clustering: &mut Clustering, visitor: &mut dyn StateVisitor) {
    let Clustering {
        cluster_counts,
        unclustered,
        cluster_of_token,
        norms,
        representatives,
        tokens_by_cluster,
        padding_columns,
        ..
    } = clustering;
    for list in [cluster_counts, unclustered] {
        visitor.numbers(list);
    }
    for x in [cluster_of_token, representatives, tokens_by_cluster] {
        visitor.tensor(StateTensor::Int3(x));
    }
    visitor.tensor(StateTensor::Float3(norms));
    visitor.tensor(StateTensor::Int2(padding_columns));
}
