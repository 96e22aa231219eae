//! Parts of kernels that multiply tiles.

pub(crate) mod mma;
pub(crate) mod portable;
pub(crate) mod product;
pub(crate) mod support;
#[cfg(cubecl_0_12)]
pub(crate) mod wgmma;
