//! Transformer families written in [Burn](https://burn.dev) that run on a Briquette cache.
//!
//! Every [`Architecture`] is read from a Hugging Face folder (`config.json`, `model.safetensors` or
//! shards, `tokenizer.json`); Llama, Qwen2 and Qwen3 from a GGUF file too, which has all of that in
//! it.
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
//! layer; everything else is the decoder as its paper writes it. An architecture is described by
//! what it changes in Llama, and what it cannot be computed with here is refused by name.

mod architecture;
mod checkpoint;
mod config;
mod device_map;
mod error;
mod families;
mod generate;
mod interrupt;
mod json;
mod load;
mod memory_plan;
mod model;
mod nn;
mod quantize;
mod setting;
mod shown;
mod text;
mod weight_bits;
mod weight_plan;

pub use architecture::Architecture;
pub use checkpoint::source::{is_gguf, parts_of};
pub use config::activation::Activation;
pub use config::attn_temperature::AttnTemperature;
pub use config::delta_net_config::DeltaNetConfig;
pub use config::experts_config::ExpertsConfig;
pub use config::latent_config::LatentConfig;
pub use config::model_config::{ModelConfig, QkNorm};
pub use config::rope::RopeConfig;
pub use config::rope_scaling::RopeScaling;
pub use config::routing::Routing;
pub use device_map::DeviceMap;
pub use error::{Error, Result};
pub use families::{ModelFamily, families};
pub use generate::generated::Generation;
pub use generate::generation::{
    continue_batch_until, generate, generate_batch, generate_batch_until, generate_until,
};
pub use generate::options::GenerateOptions;
pub use generate::prefill::{prefill, prefill_shared, prefill_shared_timed};
pub use generate::reconstruct::reconstruct;
pub use generate::stream::TokenStream;
pub use generate::timing::Timing;
pub use interrupt::Interrupt;
pub use memory_plan::MemoryPlan;
pub use model::Model;
pub use nn::attend::{Attend, StateStep};
pub use nn::linear::Linear;
pub use text::chat::{ChatMessage, ChatTemplate};
pub use text::conversation::{Conversation, ConversationTurn};
pub use text::conversation_state::ConversationState;
pub use text::instruction::Instruction;
pub use text::tokenizer::{StreamDecoder, Tokenizer};
pub use weight_bits::WeightBits;
