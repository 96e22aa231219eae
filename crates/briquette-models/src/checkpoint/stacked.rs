/// A tensor that holds a matrix of every expert of a layer, and the projections whose outputs the
/// matrices have: `[experts, inputs, outputs]`, and `[experts, outputs]` for their biases, whose
/// name ends with `_bias`. Matrices in MXFP4 lie in two tensors, whose names end with `_blocks`
/// and `_scales`.
pub(crate) struct Stacked {
    /// Its name, beside the numbers that experts of their own would have.
    pub(crate) name: &'static str,
    pub(crate) projections: &'static [(&'static str, Outputs)],
}

/// Outputs of a matrix that belong to one projection.
#[derive(Clone, Copy)]
pub(crate) enum Outputs {
    All,
    /// The first of each pair.
    Even,
    /// The second of each pair.
    Odd,
    /// The first half.
    First,
    /// The second half.
    Second,
}

impl Outputs {
    /// Their places among so many.
    pub(super) fn among(self, outputs: usize) -> impl ExactSizeIterator<Item = usize> {
        let (range, step) = match self {
            Self::All => (0..outputs, 1),
            Self::Even => (0..outputs, 2),
            Self::Odd => (1..outputs, 2),
            Self::First => (0..outputs / 2, 1),
            Self::Second => (outputs / 2..outputs, 1),
        };
        range.step_by(step)
    }
}
