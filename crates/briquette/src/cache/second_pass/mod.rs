//! A second pass over a prompt: the model repeats it, and all layers are compressed by the weights
//! that its entries receive.

mod compress_by;
mod reconstruction;

pub use reconstruction::Reconstruction;
