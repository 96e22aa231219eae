use std::collections::BTreeMap;

use briquette::CacheShape;
use briquette_models::WeightBits;
use serde::{Deserialize, Serialize};

use crate::{date, environment::BURN};

/// The first line of results: with what they were made. A run whose header differs in anything but
/// `date` is another run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this program.
    pub briquette: String,
    /// Version of Burn.
    pub burn: String,
    /// The name of the run.
    pub name: String,
    /// When it was begun, in UTC.
    pub date: String,
    /// The kind of device, as `flex` or `cuda`, without its number.
    pub device: String,
    /// The models by label.
    pub models: BTreeMap<String, ModelHeader>,
}

/// Description of a model at the head of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelHeader {
    /// The type of weights, activations and cache.
    pub dtype: String,
    /// Bits that weights are quantized to; absent where they are as they are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<WeightBits>,
    /// The dimensions of its cache.
    pub shape: CacheShape,
    /// Tokens of context.
    pub context: usize,
    /// Tokens of a prompt given to it at a time; the whole if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Whether prompts are in the chat template of the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chat: bool,
    /// The tokens that end an answer, which `generation_config.json` may name.
    #[serde(default)]
    pub stop: Vec<u32>,
    /// The fingerprint of configuration, tokenizer and weights, by
    /// [`of_model`](crate::fingerprint::of_model).
    pub weights: String,
}

impl Header {
    /// Header of a run which begins now.
    pub fn new(name: String, device: &str, models: BTreeMap<String, ModelHeader>) -> Self {
        let kind = device.split_once(':').map_or(device, |(kind, _)| kind);
        Self {
            briquette: env!("CARGO_PKG_VERSION").into(),
            burn: BURN.into(),
            name,
            date: date::now(),
            device: kind.into(),
            models,
        }
    }
}
