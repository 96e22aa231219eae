use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{
    ExpertsConfig, ModelConfig, Result, Routing, config::keys::Keys, setting::contradiction,
};

/// Mixtral (Jiang et al., 2024, [arXiv:2401.04088](https://arxiv.org/abs/2401.04088)): Mistral with
/// experts in place of the feed-forward network. The weights of a token's experts sum to 1.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults {
        inner: 14_336,
        kv_heads: Some(8),
        epsilon: 1e-5,
        theta: 1e6,
        context: 4096 * 32,
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::Mixtral, keys, defaults)?;
    let number = ("num_experts", own.num_experts);
    let experts = ExpertsConfig {
        experts: number_of_experts(number, own.num_local_experts)?.unwrap_or(8),
        experts_per_token: own.num_experts_per_tok.unwrap_or(2),
        intermediate_size: config.intermediate_size,
        shared_intermediate_size: None,
        routing: Routing::Softmax,
        norm_topk_prob: true,
        dense_layers: BTreeSet::new(),
    };
    experts.check("num_local_experts", "intermediate_size")?;
    ModelConfig { experts: Some(experts), ..config }
        .with_window_of_all(keys, keys.shared.window(None))
}

/// The number of experts, which has two names.
pub(super) fn number_of_experts(
    (key, number): (&'static str, Option<usize>),
    local: Option<usize>,
) -> Result<Option<usize>> {
    match (number, local) {
        (Some(number), Some(local)) if number != local => {
            Err(contradiction(key, number, "num_local_experts", local))
        }
        _ => Ok(number.or(local)),
    }
}

pub(super) const NAMES: Names = &[
    (".mlp.", ".block_sparse_moe."),
    (".gate_proj.", ".w1."),
    (".down_proj.", ".w2."),
    (".up_proj.", ".w3."),
];

#[derive(Deserialize)]
struct OwnKeys {
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
}
