//! Files of weights: Hugging Face folders and GGUF.

pub(crate) mod expected;
pub(crate) mod gguf;
pub(crate) mod part;
pub(crate) mod source;
pub(crate) mod weights;
