use super::{Architecture, DEFAULTS};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Llama (Touvron et al., 2023, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971); Dubey et al.,
/// 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783)): RMSNorm before each block, rotary
/// positions, groups of query heads, SwiGLU. The others are described by what they change.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let config = ModelConfig::shared(Architecture::Llama, keys, DEFAULTS)?.with_biases(keys);
    let mlp_bias = keys.shared.mlp_bias.unwrap_or(false);
    ModelConfig { mlp_bias, ..config }.without_windows(keys)
}
