//! The model as it is trained: Llama's decoder over whole sequences, without a cache, with
//! gradients.

mod attention;
mod body;
mod head;
mod layout;
mod operations;
mod weights;

pub use body::Batch;
pub use layout::{Kind, Layout, Parameters};
pub use weights::Weights;

pub(crate) use body::Body;

#[cfg(test)]
mod tests;
