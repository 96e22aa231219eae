use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{ModelConfig, Result, config::keys::Keys};

/// GLM-4 of 2024 (GLM Team, [arXiv:2406.12793](https://arxiv.org/abs/2406.12793)): Llama with one
/// matrix for both sides of SwiGLU, biases of queries, keys and values, and rotated pairs of
/// channels beside each other in the first half of each head. Such channels are put into the order
/// of Llama's as a model is loaded.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    of(Architecture::Glm, keys)
}

/// GLM-4-0414 ([model card](https://huggingface.co/zai-org/GLM-4-9B-0414)): GLM with norms behind
/// the blocks too.
pub(super) fn read_4(keys: &Keys) -> Result<ModelConfig> {
    of(Architecture::Glm4, keys)
}

fn of(architecture: Architecture, keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults {
        vocabulary: 151_552,
        inner: 13_696,
        layers: 40,
        kv_heads: Some(2),
        epsilon: 1.5625e-7,
        context: 131_072,
        head_dim: Some(128),
        ..DEFAULTS
    };
    let keys = &keys.with_shared(keys.shared.clone().partly_rotated(0.5));
    let config = ModelConfig::shared(architecture, keys, defaults)?;
    let attention_bias = keys.shared.attention_bias.is_on(true);
    ModelConfig { attention_bias, ..config }.without_windows(keys)
}

pub(super) const NAMES_4: Names = &[
    (".attention_output_norm.", ".post_self_attn_layernorm."),
    (".feedforward_output_norm.", ".post_mlp_layernorm."),
];
