use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Qwen2 and Qwen2.5 (Yang et al., 2024, [arXiv:2407.10671](https://arxiv.org/abs/2407.10671)):
/// Llama with biases of queries, keys and values, and in some files a sliding window in the upper
/// layers.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { context: 32_768, ..DEFAULTS };
    let config = ModelConfig::shared(Architecture::Qwen2, keys, defaults)?;
    ModelConfig { attention_bias: true, ..config }.with_window(window(keys)?)
}

#[derive(Deserialize)]
struct OwnKeys {
    max_window_layers: Option<usize>,
}

/// The window of Qwen's files: that of the layers from `max_window_layers` on, if there are any.
pub(super) fn window(keys: &Keys) -> Result<Option<usize>> {
    let OwnKeys { max_window_layers } = keys.own()?;
    let full = max_window_layers.unwrap_or(28);
    Ok(keys.shared.optional_window().filter(|_| full < keys.shared.num_hidden_layers))
}
