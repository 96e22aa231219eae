/// Numbers along the contraction that are multiplied between two looks at where a share ends.
pub(super) const STEP: usize = 32;
