//! GGUF, the file that llama.cpp reads: metadata, tokenizer and weights in one
//! ([specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)).
//!
//! The reader is our own. `candle-core` has a well-kept one, but brings another tensor library with
//! it; the crates that only read the container leave the blocks to their caller or believe the
//! counts that a file claims.

#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a block has the bytes of its encoding, whatever they are, and places in it are constants"
)]
mod blocks;
mod byte_pairs;
mod config;
mod families;
mod file;
mod header;
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "places in a block are constants"
)]
mod quantized;
mod rope;
mod sentencepiece;
mod special_tokens;
mod tensors;
mod tokenizer_parts;
mod value;
mod vocabulary;

pub(crate) use blocks::Encoding;
pub(crate) use config::config_json;
pub(crate) use families::is_read;
pub(crate) use file::Gguf;
pub(crate) use quantized::matrix;
pub(crate) use special_tokens::special_tokens;
pub(crate) use tensors::tensors;
pub(crate) use vocabulary::{chat_template, tokenizer_json};
