use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults};
use crate::{
    ModelConfig, Result,
    config::keys::Keys,
    setting::{check_positive, invalid},
};

/// SmolLM3 (Bakouch et al., 2025, [model card](https://huggingface.co/HuggingFaceTB/SmolLM3-3B)):
/// Llama in which every fourth layer does not encode positions (Yang et al., 2025,
/// [arXiv:2501.18795](https://arxiv.org/abs/2501.18795)).
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults {
        vocabulary: 128_256,
        hidden: 2048,
        layers: 36,
        heads: 16,
        kv_heads: Some(4),
        theta: 2e6,
        context: 32_768,
        tied: true,
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::SmolLm3, keys, defaults)?;
    let layers = config.num_hidden_layers;
    let interval = own.no_rope_layer_interval.unwrap_or(4);
    let layers_without_rope = layers_without_rope(own.no_rope_layers.as_ref(), interval, layers)?;
    let used = keys.shared.optional_window(None).is_some();
    let windowed = layers_without_rope.clone();
    let mlp_bias = keys.shared.mlp_bias.unwrap_or(false);
    ModelConfig { layers_without_rope, mlp_bias, ..config.with_biases(keys) }.with_window_of_layers(
        keys,
        keys.shared.window(None),
        |layer| used && windowed.contains(layer),
    )
}

/// The layers that do not encode positions: where a list says 0 and not 1, or without one the last
/// of so many each.
pub(super) fn layers_without_rope(
    rotated: Option<&Vec<u8>>,
    interval: usize,
    layers: usize,
) -> Result<BTreeSet<usize>> {
    match rotated {
        Some(rotated) if rotated.len() != layers => {
            let must_be = format!("num_hidden_layers = {layers}");
            Err(invalid("the length of no_rope_layers", rotated.len(), must_be))
        }
        Some(rotated) => Ok((0..layers).filter(|layer| rotated[*layer] == 0).collect()),
        None => {
            check_positive("no_rope_layer_interval", interval)?;
            Ok((0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect())
        }
    }
}

#[derive(Deserialize)]
struct OwnKeys {
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
}
