use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults, Names, mixtral::number_of_experts};
use crate::{
    ExpertsConfig, LatentConfig, ModelConfig, Result, RopeScaling, Routing,
    config::{
        given::Given,
        keys::{Keys, SharedKeys},
        rope_keys::RopeParameters,
        rope_scaling::mscale,
    },
    setting::{contradiction, unsupported},
};

/// DeepSeek V3 and R1 ([arXiv:2412.19437](https://arxiv.org/abs/2412.19437)): latent attention
/// (DeepSeek V2, [arXiv:2405.04434](https://arxiv.org/abs/2405.04434)), and experts that are chosen
/// among the best groups beside one that every token goes through.
pub(super) fn read_3(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let named = [
        ("scoring_func", &own.scoring_func, "sigmoid"),
        ("topk_method", &own.topk_method, "noaux_tc"),
    ];
    for (key, found, supported) in named {
        if let Some(found) = found.as_ref().filter(|found| *found != supported) {
            return Err(unsupported(key, found, supported));
        }
    }
    let latent = LatentConfig {
        q_lora_rank: own.q_lora_rank.clone().or(Some(1536)),
        kv_lora_rank: own.kv_lora_rank.unwrap_or(512),
        qk_nope_head_dim: own.qk_nope_head_dim.unwrap_or(128),
        qk_rope_head_dim: own.qk_rope_head_dim.unwrap_or(64),
        v_head_dim: own.v_head_dim.unwrap_or(128),
        rope_interleave: own.rope_interleave.is_on(true),
    };
    latent.check()?;
    let defaults = Defaults {
        vocabulary: 129_280,
        hidden: 7168,
        inner: 18_432,
        layers: 61,
        heads: 128,
        kv_heads: Some(128),
        context: 4096,
        head_dim: Some(latent.qk_rope_head_dim),
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::DeepseekV3, keys, defaults)?.with_biases(keys);
    let (heads, rotated) = (config.num_attention_heads, latent.qk_rope_head_dim);
    if config.num_key_value_heads != heads {
        let found = config.num_key_value_heads;
        return Err(contradiction("num_key_value_heads", found, "num_attention_heads", heads));
    }
    if config.head_dim != rotated {
        return Err(contradiction("head_dim", config.head_dim, "qk_rope_head_dim", rotated));
    }
    let width = latent.query_dim();
    if let Some(other) = own.qk_head_dim.filter(|other| *other != width) {
        let sum = "qk_nope_head_dim + qk_rope_head_dim";
        return Err(contradiction("qk_head_dim", other, sum, width));
    }
    let growth = growth(&keys.shared, &config.rope.scaling)?;
    let experts = own.experts(config.num_hidden_layers)?;
    ModelConfig {
        // The latent is the key and the value of all heads.
        num_key_value_heads: 1,
        softmax_scale: Some(growth * growth * (width as f64).powf(-0.5)),
        experts: Some(experts),
        latent: Some(latent),
        ..config
    }
    .without_windows(keys)
}

/// The root of the factor of scores that comes with YaRN.
fn growth(keys: &SharedKeys, scaling: &RopeScaling) -> Result<f64> {
    let mut given = [&keys.rope_scaling, &keys.rope_parameters].into_iter().flatten();
    let given = given.find(|parameters| **parameters != RopeParameters::default());
    let all = given.and_then(|parameters| parameters.mscale_all_dim).filter(|all| *all != 0.0);
    match (all, scaling) {
        (None, _) | (_, RopeScaling::Default) => Ok(1.0),
        (Some(all), RopeScaling::Yarn { factor, .. }) => Ok(mscale(*factor, all)),
        (Some(all), _) => Err(unsupported("mscale_all_dim", all, "0 for a rope type but yarn")),
    }
}

pub(super) const NAMES_3: Names =
    &[(".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias")];

#[derive(Deserialize)]
struct OwnKeys {
    #[serde(default)]
    q_lora_rank: Given<usize>,
    kv_lora_rank: Option<usize>,
    qk_nope_head_dim: Option<usize>,
    qk_rope_head_dim: Option<usize>,
    qk_head_dim: Option<usize>,
    v_head_dim: Option<usize>,
    #[serde(default)]
    rope_interleave: Given<bool>,
    first_k_dense_replace: Option<usize>,
    n_routed_experts: Option<usize>,
    /// Its name in `transformers`.
    num_local_experts: Option<usize>,
    n_shared_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    #[serde(default)]
    norm_topk_prob: Given<bool>,
    routed_scaling_factor: Option<f64>,
    scoring_func: Option<String>,
    topk_method: Option<String>,
}

impl OwnKeys {
    fn experts(&self, layers: usize) -> Result<ExpertsConfig> {
        let inner = self.moe_intermediate_size.unwrap_or(2048);
        let shared = self.n_shared_experts.unwrap_or(1).saturating_mul(inner);
        let routed = ("n_routed_experts", self.n_routed_experts);
        let experts = ExpertsConfig {
            experts: number_of_experts(routed, self.num_local_experts)?.unwrap_or(256),
            experts_per_token: self.num_experts_per_tok.unwrap_or(8),
            intermediate_size: inner,
            shared_intermediate_size: (shared > 0).then_some(shared),
            routing: Routing::Sigmoid {
                groups: self.n_group.unwrap_or(8),
                groups_per_token: self.topk_group.unwrap_or(4),
                scale: self.routed_scaling_factor.unwrap_or(2.5),
            },
            norm_topk_prob: self.norm_topk_prob.is_on(true),
            dense_layers: (0..self.first_k_dense_replace.unwrap_or(3).min(layers)).collect(),
        };
        experts.check("n_routed_experts", "moe_intermediate_size")?;
        Ok(experts)
    }
}
