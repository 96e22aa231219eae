//! The kernels by themselves, against f64, on every device of the build that has them. One file an operation.

mod quantized_attention;
mod ragged_attention;
mod shared_attention;
mod stores;
