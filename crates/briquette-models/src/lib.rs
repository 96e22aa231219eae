//! Transformer families written in [Burn](https://burn.dev) that run on a Briquette cache.
//!
//! Every [`Architecture`] is read from a Hugging Face folder (`config.json`, `model.safetensors` or
//! shards, `tokenizer.json`); Llama, Qwen2 and Qwen3 from a GGUF file too, which has all of that in it.
//!
//! ```no_run
//! use briquette::{Budget, Policy};
//! use briquette_models::{GenerateOptions, Model, Tokenizer, generate};
//! use burn::tensor::DType;
//!
//! # fn main() -> briquette_models::Result<()> {
//! let device = briquette::device::open("flex")?;
//! let model = Model::load("models/ember-7m", &device, DType::F32)?;
//! let tokenizer = Tokenizer::load("models/ember-7m")?;
//!
//! let mut cache = model.cache(Policy::snapkv(Budget::Tokens(256)))?;
//! let prompt = tokenizer.encode("Call me Ishmael.", true)?;
//! let options = GenerateOptions { stop: model.config().eos_token_ids.clone(), ..Default::default() };
//! let (generation, timing) = generate(&model, &prompt, &mut cache, &options, |_| {})?;
//!
//! println!("{}", tokenizer.decode(&generation.tokens)?);
//! println!("{:.0} tokens/s, {} bytes held", timing.decode_rate(), cache.bytes_held());
//! # Ok(())
//! # }
//! ```
//!
//! The model hands queries and keys to the cache before their positions are encoded, in one call a
//! layer; everything else is the decoder as its paper writes it. An architecture is
//! described by what it changes in Llama, and what it cannot be computed with here is refused by name.

mod activation;
mod architecture;
mod attend;
mod blocks;
mod build;
mod chat;
mod config;
mod conversation;
mod decoder;
mod error;
mod expected;
mod experts;
mod experts_config;
mod generate;
mod gguf;
mod instruction;
mod interrupt;
mod json;
mod keys;
mod linear;
mod load;
mod merged;
mod model;
mod options;
mod partial_rotary;
mod positions;
mod reconstruct;
mod residual;
mod rms_norm;
mod rope;
mod rope_keys;
mod rope_scaling;
mod sample;
mod setting;
mod sizes;
mod source;
mod stream;
mod template_limits;
mod tokenizer;
mod weights;

pub use activation::Activation;
pub use architecture::Architecture;
pub use attend::Attend;
pub use chat::{ChatMessage, ChatTemplate};
pub use config::ModelConfig;
pub use conversation::{Conversation, ConversationTurn};
pub use error::{Error, Result};
pub use experts_config::ExpertsConfig;
pub use generate::{Generation, Timing, generate, generate_batch, generate_until, prefill};
pub use instruction::Instruction;
pub use interrupt::Interrupt;
pub use linear::Linear;
pub use model::Model;
pub use options::GenerateOptions;
pub use reconstruct::reconstruct;
pub use rope::RopeConfig;
pub use rope_scaling::RopeScaling;
pub use source::is_gguf;
pub use stream::TokenStream;
pub use tokenizer::{StreamDecoder, Tokenizer};
