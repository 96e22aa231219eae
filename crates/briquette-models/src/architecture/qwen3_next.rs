use serde::Deserialize;

use super::{Architecture, Defaults, Names, qwen2::DEFAULTS_OF_QWEN, qwen3};
use crate::{
    Activation, DeltaNetConfig, ExpertsConfig, ModelConfig, Result, Routing,
    config::{given::Given, keys::Keys},
    setting::{check_positive, unsupported},
};

/// Qwen3-Next (Qwen Team, 2025,
/// [model card](https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct)): gated delta nets (Yang
/// et al., 2024, [arXiv:2412.06464](https://arxiv.org/abs/2412.06464)) in three of four layers,
/// gated attention in the others, and experts beside a gated one that every token goes through.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults {
        hidden: 2048,
        inner: 5632,
        layers: 48,
        heads: 16,
        kv_heads: Some(2),
        head_dim: Some(256),
        ..DEFAULTS_OF_QWEN
    };
    let keys = &keys.with_shared(keys.shared.clone().partly_rotated(0.25));
    let config = qwen3::normed(Architecture::Qwen3Next, keys, defaults)?;
    if config.hidden_act != Activation::Silu {
        let found = keys.shared.hidden_act.as_deref().unwrap_or_default();
        return Err(unsupported("hidden_act", found, "silu for this model type"));
    }
    let layers = config.num_hidden_layers;
    let delta_net = own.delta_net(keys, layers)?;
    Ok(ModelConfig { experts: own.experts(layers)?, delta_net: Some(delta_net), ..config })
}

/// The layers that keep a state, and all that there are.
const KINDS: (&str, &str) = ("linear_attention", "full_attention and linear_attention");

pub(super) const NAMES: Names = &[
    (".self_attn.in_proj_", ".linear_attn.in_proj_"),
    (".self_attn.conv1d.", ".linear_attn.conv1d."),
    (".self_attn.dt_bias", ".linear_attn.dt_bias"),
    (".self_attn.a_log", ".linear_attn.A_log"),
    (".self_attn.norm.", ".linear_attn.norm."),
    (".self_attn.out_proj.", ".linear_attn.out_proj."),
    (".mlp.shared_experts.", ".mlp.shared_expert."),
];

#[derive(Deserialize)]
struct OwnKeys {
    full_attention_interval: Option<usize>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    #[serde(default)]
    norm_topk_prob: Given<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
}

impl OwnKeys {
    fn delta_net(&self, keys: &Keys, layers: usize) -> Result<DeltaNetConfig> {
        let interval = self.full_attention_interval.unwrap_or(4);
        check_positive("full_attention_interval", interval)?;
        let linear = |layer: &usize| !(layer + 1).is_multiple_of(interval);
        let delta_net = DeltaNetConfig {
            layers: keys.shared.layers_of_kind(KINDS, layers, linear)?,
            key_heads: self.linear_num_key_heads.unwrap_or(16),
            value_heads: self.linear_num_value_heads.unwrap_or(32),
            key_dim: self.linear_key_head_dim.unwrap_or(128),
            value_dim: self.linear_value_head_dim.unwrap_or(128),
            kernel: self.linear_conv_kernel_dim.unwrap_or(4),
        };
        delta_net.check(layers)?;
        Ok(delta_net)
    }

    /// The experts; `None` if every layer is dense.
    fn experts(&self, layers: usize) -> Result<Option<ExpertsConfig>> {
        let step = self.decoder_sparse_step.unwrap_or(1);
        check_positive("decoder_sparse_step", step)?;
        let dense = self.mlp_only_layers.clone().unwrap_or_default();
        let sparse = |layer: &usize| (layer + 1).is_multiple_of(step) && !dense.contains(layer);
        let experts = ExpertsConfig {
            experts: self.num_experts.unwrap_or(512),
            experts_per_token: self.num_experts_per_tok.unwrap_or(10),
            intermediate_size: self.moe_intermediate_size.unwrap_or(512),
            shared_intermediate_size: Some(self.shared_expert_intermediate_size.unwrap_or(512)),
            routing: Routing::Softmax,
            norm_topk_prob: self.norm_topk_prob.is_on(true),
            dense_layers: (0..layers).filter(|layer| !sparse(layer)).collect(),
        };
        if experts.experts == 0 {
            return Ok(None);
        }
        experts.check("num_experts", "moe_intermediate_size")?;
        let shared = experts.shared_intermediate_size.unwrap_or_default();
        check_positive("shared_expert_intermediate_size", shared)?;
        Ok(Some(experts))
    }
}
