use super::{Architecture, DEFAULTS, Defaults, qwen2};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Qwen3 (Yang et al., 2025, [arXiv:2505.09388](https://arxiv.org/abs/2505.09388)): Llama with
/// RMSNorm over each head of queries and keys, before rotation, and heads of a width of their own.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    normed(Architecture::Qwen3, keys, Some(128))?.with_window(qwen2::window(keys)?)
}

/// Reads the keys that both kinds of Qwen3 share.
pub(super) fn normed(
    architecture: Architecture,
    keys: &Keys,
    head_dim: Option<usize>,
) -> Result<ModelConfig> {
    let defaults = Defaults { context: 32_768, head_dim, ..DEFAULTS };
    let config = ModelConfig::shared(architecture, keys, defaults)?;
    Ok(ModelConfig {
        qk_norm: true,
        attention_bias: keys.shared.attention_bias,
        output_bias: keys.shared.attention_bias,
        ..config
    })
}
