//! Parts of the kernels of several families.

pub(crate) mod backend;
pub mod buffer;
pub(crate) mod check;
#[cfg(feature = "persistence")]
pub(crate) mod compiled;
pub(crate) mod copy_rows;
pub(crate) mod eviction;
pub(crate) mod line;
pub(crate) mod masked;
pub(crate) mod memory;
pub(crate) mod nvidia;
pub(crate) mod optional;
pub(crate) mod order;
pub(crate) mod padding;
pub(crate) mod processors;
pub(crate) mod rounding;
pub(crate) mod rows;
pub(crate) mod scan;
pub(crate) mod statistics;
pub(crate) mod strides;
pub(crate) mod tile;
pub(crate) mod vector;
pub(crate) mod writable;
