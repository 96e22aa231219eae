//! What kernels that multiply tiles are made of.

pub(crate) mod mma;
pub(crate) mod portable;
pub(crate) mod product;
pub(crate) mod support;
