use super::{Architecture, DEFAULTS, Defaults};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Phi-3 (Abdin et al., 2024, [arXiv:2404.14219](https://arxiv.org/abs/2404.14219)): Llama with one
/// matrix for queries, keys and values and one for both sides of SwiGLU, and LongRoPE in the models
/// of 128 k tokens.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { epsilon: 1e-5, context: 4096, ..DEFAULTS };
    ModelConfig::shared(Architecture::Phi3, keys, defaults)?.with_window(keys.shared.sliding_window)
}
