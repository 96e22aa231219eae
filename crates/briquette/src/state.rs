//! The state of a cache that a decode step changes, for those who record a step and replay it.

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
    /// A tensor that lives from one step to the next.
    fn tensor(&mut self, tensor: StateTensor<'_>);

    /// A number on the host that decides what a step launches.
    fn number(&mut self, number: usize);

    /// A list of such numbers.
    fn numbers(&mut self, numbers: &[usize]) {
        self.number(numbers.len());
        numbers.iter().for_each(|&number| self.number(number));
    }
}

/// A cache whose decode steps can be captured and replayed, as the crate `briquette-graph` does. A
/// cache that is told of steps that were not replayed counts wrongly.
pub trait Replay {
    /// Visits all that a decoded token changes, except the number of tokens seen, which every step
    /// counts on.
    ///
    /// A step that leaves all numbers as they were makes the same launches as the step before, on
    /// tensors that hold other numbers: recorded once, it can be replayed, if its results go where
    /// the tensors were.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) for stages that are not
    /// [capturable](crate::Policy::is_capturable), for an input check of every token, which reads
    /// from the device, for positions that the model encodes itself, and for a store that [cannot
    /// be replayed](crate::store::Store::replay) or packs what is left at every compression of
    /// decoded tokens;
    /// [`Error::PromptUnfinished`](crate::Error::PromptUnfinished).
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> Result<()>;

    /// The reason why the host says something else at many tokens, so that all steps must be
    /// launched; `None` if there is none.
    fn fallback_reason(&self) -> Option<&'static str> {
        None
    }

    /// The kind of the next decoded token: those that end a local window move its sums, and are of
    /// another kind. `None` for a token that is unlike others, since tokens are packed with it
    /// (KIVI, FP8), or a cache is compressed that is not at every token, or [all
    /// are](Self::fallback_reason): its step must be launched. Packing leaves tensors where they
    /// lie.
    fn step_kind(&mut self) -> Option<u64>;

    /// Counts a decoded token that a replayed step has written. All tensors are taken to be those
    /// the step has made.
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

    /// Tokens that there still is room for since [device indexing
    /// began](Self::begin_device_indexing), 0 if it has not; `None` for a cache that cannot,
    /// compresses in decoding, or encodes positions anew in every call.
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
