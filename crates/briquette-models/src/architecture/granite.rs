use serde::Deserialize;

use super::{Architecture, DEFAULTS};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Granite 3 (IBM, 2024, [report](https://github.com/ibm-granite/granite-3.0-language-models)):
/// Llama with factors of embeddings, scores, what blocks add, and logits.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let config = ModelConfig::shared(Architecture::Granite, keys, DEFAULTS)?.with_biases(keys);
    ModelConfig {
        mlp_bias: keys.shared.mlp_bias.unwrap_or(false),
        // Scores are not divided by a root where a file does not say.
        softmax_scale: Some(own.attention_multiplier.unwrap_or(1.0)),
        embedding_multiplier: own.embedding_multiplier,
        residual_multiplier: own.residual_multiplier,
        logits_scaling: own.logits_scaling,
        ..config
    }
    .without_windows(keys)
}

#[derive(Deserialize)]
struct OwnKeys {
    attention_multiplier: Option<f64>,
    embedding_multiplier: Option<f64>,
    residual_multiplier: Option<f64>,
    logits_scaling: Option<f64>,
}
