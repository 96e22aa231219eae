use super::{Architecture, DEFAULTS, Defaults};
use crate::{
    ModelConfig, Result, RopeScaling,
    config::keys::{Keys, SharedKeys},
    setting::unsupported,
};

/// Phi-3 (Abdin et al., 2024, [arXiv:2404.14219](https://arxiv.org/abs/2404.14219)): Llama with one
/// matrix for queries, keys and values and one for both sides of SwiGLU, and LongRoPE in the models
/// of 128 k tokens.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults {
        vocabulary: 32_064,
        hidden: 3072,
        inner: 8192,
        epsilon: 1e-5,
        context: 4096,
        ..DEFAULTS
    };
    // This one it has, and takes before one among the rope's parameters.
    let original = keys.shared.original_max_position_embeddings.or(Some(4096));
    let keys = &keys.with_shared(SharedKeys {
        original_max_position_embeddings: original,
        ..keys.shared.clone()
    });
    let config = ModelConfig::shared(Architecture::Phi3, keys, defaults)?;
    if !matches!(config.rope.scaling, RopeScaling::Default | RopeScaling::LongRope { .. }) {
        return Err(unsupported("rope_type", &config.rope, "default and longrope"));
    }
    config.with_window_of_all(keys, keys.shared.window(None))
}
