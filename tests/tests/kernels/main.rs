//! The kernels by themselves, against f64, on every device of the build that has them. One file an operation.

mod attention;
mod compact;
mod decode_attention;
mod quantized_attention;
mod select;
mod shared_attention;
mod stores;
