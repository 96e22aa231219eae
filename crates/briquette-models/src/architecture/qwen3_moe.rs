use serde::Deserialize;

use super::{Architecture, Defaults, mixtral::number_of_experts, qwen2::DEFAULTS_OF_QWEN, qwen3};
use crate::{
    ExpertsConfig, ModelConfig, Result, Routing, config::keys::Keys, setting::check_positive,
};

/// The mixtures of Qwen3 ([arXiv:2505.09388](https://arxiv.org/abs/2505.09388)): Qwen3 with experts
/// in place of the feed-forward network, in every layer or in some.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let step = own.decoder_sparse_step.unwrap_or(1);
    check_positive("decoder_sparse_step", step)?;
    let defaults =
        Defaults { hidden: 2048, inner: 6144, layers: 24, kv_heads: Some(4), ..DEFAULTS_OF_QWEN };
    let config = qwen3::normed(Architecture::Qwen3Moe, keys, defaults)?;
    let dense = own.mlp_only_layers.unwrap_or_default();
    let sparse = |layer: &usize| (layer + 1).is_multiple_of(step) && !dense.contains(layer);
    let number = ("num_experts", own.num_experts);
    let experts = ExpertsConfig {
        experts: number_of_experts(number, own.num_local_experts)?.unwrap_or(128),
        experts_per_token: own.num_experts_per_tok.unwrap_or(8),
        intermediate_size: own.moe_intermediate_size.unwrap_or(768),
        shared_intermediate_size: None,
        routing: Routing::Softmax,
        norm_topk_prob: own.norm_topk_prob.unwrap_or(false),
        dense_layers: (0..config.num_hidden_layers).filter(|layer| !sparse(layer)).collect(),
    };
    experts.check("num_experts", "moe_intermediate_size")?;
    ModelConfig { experts: Some(experts), ..config }
        .with_window_of_all(keys, keys.shared.optional_window(Some(4096)))
}

#[derive(Deserialize)]
struct OwnKeys {
    num_experts: Option<usize>,
    /// The name in newer files.
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
}
