//! The kernels by themselves, against f64, on every device of the build that has them. One file an operation.

mod accumulate;
mod nearest;
mod ragged_attention;
mod window_scores;
