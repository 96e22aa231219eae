use super::{Architecture, DEFAULTS, Defaults};
use crate::{ModelConfig, Result, config::keys::Keys};

/// Mistral 7B (Jiang et al., 2023, [arXiv:2310.06825](https://arxiv.org/abs/2310.06825)): Llama, in
/// v0.1 with a sliding window in all layers.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { inner: 14_336, kv_heads: Some(8), context: 4096 * 32, ..DEFAULTS };
    let window = keys.shared.window(Some(4096));
    // `transformers` reads files with `layer_types` as Ministral's.
    ModelConfig::shared(Architecture::Mistral, keys, defaults)?.with_window_of_layers(
        keys,
        window,
        |_| window.is_some(),
    )
}
