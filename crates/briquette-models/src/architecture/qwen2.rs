use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Qwen2 and Qwen2.5 (Yang et al., 2024, [arXiv:2407.10671](https://arxiv.org/abs/2407.10671)):
/// Llama with biases of queries, keys and values, and in some files a sliding window in the upper
/// layers.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let config = ModelConfig::shared(Architecture::Qwen2, keys, DEFAULTS_OF_QWEN)?;
    with_windows(ModelConfig { attention_bias: true, ..config }, keys)
}

pub(super) const DEFAULTS_OF_QWEN: Defaults = Defaults {
    vocabulary: 151_936,
    inner: 22_016,
    kv_heads: Some(32),
    context: 32_768,
    ..DEFAULTS
};

#[derive(Deserialize)]
struct OwnKeys {
    max_window_layers: Option<usize>,
}

/// Gives layers the window of Qwen's files: where `layer_types` is not there, those from
/// `max_window_layers` on.
pub(super) fn with_windows(config: ModelConfig, keys: &Keys) -> Result<ModelConfig> {
    let OwnKeys { max_window_layers } = keys.own()?;
    let full = max_window_layers.unwrap_or(28);
    let window = keys.shared.optional_window(Some(4096));
    config.with_window_of_layers(keys, window, |layer| window.is_some() && *layer >= full)
}
