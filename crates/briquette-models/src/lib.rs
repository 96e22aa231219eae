//! Transformer families written in [Burn](https://burn.dev) that run on a Briquette cache.
//!
//! Today: Llama, read from a Hugging Face folder (`config.json`, `model.safetensors` or shards,
//! `tokenizer.json`).
//!
//! ```no_run
//! use briquette::{Budget, Policy};
//! use briquette_models::{GenerateOptions, Llama, Tokenizer, generate};
//! use burn::tensor::DType;
//!
//! # fn main() -> briquette_models::Result<()> {
//! let device = briquette::device::open("flex")?;
//! let model = Llama::load("models/ember-7m", &device, DType::F32)?;
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
//! layer; everything else is the decoder as its paper writes it.

mod attend;
mod config;
mod decoder;
mod error;
mod generate;
mod json;
mod linear;
mod llama;
mod load;
mod rms_norm;
mod rope;
mod sample;
mod tokenizer;

pub use attend::Attend;
pub use config::LlamaConfig;
pub use error::{Error, Result};
pub use generate::{
    GenerateOptions, Generation, Timing, generate, generate_batch, generate_until, prefill,
};
pub use linear::Linear;
pub use llama::Llama;
pub use rope::{RopeConfig, RopeScaling};
pub use tokenizer::{StreamDecoder, Tokenizer};
