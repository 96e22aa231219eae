//! The kernels by themselves, against f64, on every device of the build that has them. One file an operation.

mod accumulate;
mod attention;
mod attention_gradient;
mod block;
mod common;
mod compact;
mod decode_attention;
mod fallbacks;
mod group;
mod linear;
mod lists;
mod merge;
mod nearest;
mod quantized_attention;
mod regroup;
mod rotate;
mod scores;
mod select;
mod shared_attention;
mod sparse_attention;
mod stores;
mod window_scores;
