//! Files of weights: Hugging Face folders of safetensors or PyTorch files, and GGUF.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub(crate) mod fill;
mod folder;
pub(crate) mod gguf;
mod mxfp4;
pub(crate) mod part;
mod pickle_limit;
pub(crate) mod progress;
mod pytorch;
mod safetensors;
pub(crate) mod source;
pub(crate) mod stacked;
mod tensors;
pub(crate) mod unstack;
pub(crate) mod weights;
