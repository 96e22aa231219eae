//! Files of weights: Hugging Face folders and GGUF.

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

pub(crate) mod gguf;
pub(crate) mod part;
pub(crate) mod source;
pub(crate) mod weights;
