use super::{
    Architecture, Defaults,
    qwen2::{self, DEFAULTS_OF_QWEN},
};
use crate::{ModelConfig, QkNorm, Result, config::keys::Keys};

/// Qwen3 (Yang et al., 2025, [arXiv:2505.09388](https://arxiv.org/abs/2505.09388)): Llama with
/// RMSNorm over each head of queries and keys, before rotation, and heads of a width of their own.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { head_dim: Some(128), ..DEFAULTS_OF_QWEN };
    qwen2::with_windows(normed(Architecture::Qwen3, keys, defaults)?, keys)
}

/// Reads the keys that both kinds of Qwen3 share.
pub(super) fn normed(
    architecture: Architecture,
    keys: &Keys,
    defaults: Defaults,
) -> Result<ModelConfig> {
    let config = ModelConfig::shared(architecture, keys, defaults)?.with_biases(keys);
    Ok(ModelConfig { qk_norm: Some(QkNorm::Heads), ..config })
}
