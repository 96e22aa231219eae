//! What a decode step changes of a cache, for those who record a step and replay it.

use burn::tensor::{Int, Tensor};

use crate::ops::{Sharing, Tracks};

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

pub(crate) fn visit_tracks(tracks: &mut Tracks, visitor: &mut dyn StateVisitor) {
    if let Some(stacked) = tracks.stacked_mut() {
        visitor.tensor(StateTensor::Float3(stacked));
    }
}

pub(crate) fn visit_sharing(sharing: &mut Sharing, visitor: &mut dyn StateVisitor) {
    let Sharing { tokens, entries, own, entry, norms, centers, members, none } = sharing;
    for list in [tokens, entries, own] {
        visitor.numbers(list);
    }
    for x in [entry, centers, members] {
        visitor.tensor(StateTensor::Int3(x));
    }
    visitor.tensor(StateTensor::Float3(norms));
    visitor.tensor(StateTensor::Int2(none));
}
