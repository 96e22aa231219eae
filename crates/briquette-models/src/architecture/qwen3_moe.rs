use serde::Deserialize;

use super::{Architecture, qwen3};
use crate::{ExpertsConfig, ModelConfig, Result, config::keys::Keys, setting::invalid};

/// The mixtures of Qwen3 ([arXiv:2505.09388](https://arxiv.org/abs/2505.09388)): Qwen3 with experts
/// in place of the feed-forward network, in every layer or in some.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    if own.decoder_sparse_step == 0 {
        return Err(invalid("decoder_sparse_step", 0, "at least 1"));
    }
    let config = qwen3::normed(Architecture::Qwen3Moe, keys, None)?;
    let sparse = |layer: &usize| {
        (layer + 1).is_multiple_of(own.decoder_sparse_step) && !own.mlp_only_layers.contains(layer)
    };
    let experts = ExpertsConfig {
        experts: own.num_experts.or(own.num_local_experts).unwrap_or(128),
        experts_per_token: own.num_experts_per_tok,
        intermediate_size: own.moe_intermediate_size,
        norm_topk_prob: own.norm_topk_prob,
        dense_layers: (0..config.num_hidden_layers).filter(|layer| !sparse(layer)).collect(),
    };
    experts.check("num_experts", "moe_intermediate_size")?;
    ModelConfig { experts: Some(experts), ..config }.with_window(keys.shared.optional_window())
}

#[derive(Deserialize)]
struct OwnKeys {
    num_experts: Option<usize>,
    /// The name in newer files.
    num_local_experts: Option<usize>,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(default = "every_layer")]
    decoder_sparse_step: usize,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

fn every_layer() -> usize {
    1
}
