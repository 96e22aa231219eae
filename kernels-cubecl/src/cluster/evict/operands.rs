//! Operands of the operation that are of several kinds.

use burn::backend::{Backend, ExtensionType, tensor::IntTensor};

/// Numbers of a head: the first and the last clusters that stay, and the tokens that it may hold
/// before and after.
pub(super) type Numbers = [usize; 4];

/// The numbers of every head.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Limits<B: Backend> {
    /// The same of all.
    Alike { numbers: Numbers },
    /// Those of each head, at this token or those from it on: see
    /// [`EvictLimits`](briquette_ops::EvictLimits).
    Differ { table: IntTensor<B> },
}
