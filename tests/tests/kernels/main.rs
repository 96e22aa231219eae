//! The kernels by themselves, against f64, on every device of the build that has them. One file an
//! operation, in families.

mod attention;
mod cluster;
mod common;
mod entries;
mod fallbacks;
mod merge;
mod model;
mod select;
#[cfg(not(cubecl_0_12))]
mod spirv;
mod stores;
