use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{ModelConfig, QkNorm, Result, RopeConfig, RopeScaling, config::keys::Keys};

/// OLMo 2 (Ai2, 2025, [arXiv:2501.00656](https://arxiv.org/abs/2501.00656)): Llama with norms
/// behind the blocks in place of those before them, and a norm over all heads of queries and of
/// keys.
pub(super) fn read_2(keys: &Keys) -> Result<ModelConfig> {
    read(Architecture::Olmo2, keys)?.without_windows(keys)
}

/// OLMo 3 ([arXiv:2512.13961](https://arxiv.org/abs/2512.13961)): OLMo 2 with a window in all but
/// every fourth layer, and rotary frequencies that are scaled in the others only.
pub(super) fn read_3(keys: &Keys) -> Result<ModelConfig> {
    let config = read(Architecture::Olmo3, keys)?;
    // As the models were trained; `transformers` 5.2 alone scales them in all layers.
    let unscaled = RopeConfig { scaling: RopeScaling::Default, ..config.rope.clone() };
    let local_rope = (unscaled != config.rope).then_some(unscaled);
    ModelConfig { local_rope, ..config }.with_window_of_layers(
        keys,
        keys.shared.window(Some(4096)),
        |layer| !(layer + 1).is_multiple_of(4),
    )
}

fn read(architecture: Architecture, keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { vocabulary: 50_304, epsilon: 1e-5, ..DEFAULTS };
    let config = ModelConfig::shared(architecture, keys, defaults)?.with_biases(keys);
    Ok(ModelConfig { qk_norm: Some(QkNorm::All), ..config })
}

pub(super) const NAMES: Names = &[
    (".attention_output_norm.", ".post_attention_layernorm."),
    (".feedforward_output_norm.", ".post_feedforward_layernorm."),
];
