use std::collections::BTreeSet;

use serde::{Deserialize, de::IgnoredAny};

use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{
    ExpertsConfig, ModelConfig, Result, Routing,
    checkpoint::stacked::{Outputs, Stacked},
    config::{
        given::Given,
        keys::{Keys, SharedKeys},
        rope_keys::RopeParameters,
    },
    setting::{contradiction, unsupported},
};

/// `swiglu_limit` of the published files. `transformers` does not read the key.
const LIMIT: f64 = 7.0;

/// gpt-oss (OpenAI, 2025, [arXiv:2508.10925](https://arxiv.org/abs/2508.10925)): experts whose
/// SwiGLU is bounded, biases everywhere, a window in every second layer, and a learned logit per
/// head that takes part of the attention away (sinks).
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults {
        vocabulary: 201_088,
        hidden: 2880,
        inner: 2880,
        layers: 36,
        heads: 64,
        kv_heads: Some(8),
        epsilon: 1e-5,
        theta: 150_000.0,
        context: 131_072,
        head_dim: Some(64),
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::GptOss, &scaled(keys, &own), defaults)?;
    let experts_per_token = own.num_experts_per_tok.unwrap_or(4);
    // Published files have both.
    if let Some(other) = own.experts_per_token.filter(|other| *other != experts_per_token) {
        let read = own.num_experts_per_tok.map_or("absent, which is 4".into(), |n| n.to_string());
        return Err(contradiction("experts_per_token", other, "num_experts_per_tok", read));
    }
    let experts = ExpertsConfig {
        experts: own.num_local_experts.unwrap_or(128),
        experts_per_token,
        intermediate_size: config.intermediate_size,
        shared_intermediate_size: None,
        routing: Routing::Softmax,
        norm_topk_prob: true,
        dense_layers: BTreeSet::new(),
    };
    experts.check("num_local_experts", "intermediate_size")?;
    if let Some(other) = own.swiglu_limit.filter(|limit| *limit != LIMIT) {
        return Err(unsupported("swiglu_limit", other, "7, which transformers takes in any case"));
    }
    let bias = keys.shared.attention_bias.is_on(true);
    ModelConfig {
        attention_bias: bias,
        output_bias: bias,
        mlp_bias: true,
        swiglu_limit: Some(LIMIT),
        experts: Some(experts),
        ..config
    }
    .with_window_of_layers(keys, keys.shared.window(Some(128)), |layer| layer.is_multiple_of(2))
}

/// The keys with the scaling of frequencies that a file means which does not say. `null` is none.
fn scaled<'a>(keys: &Keys<'a>, own: &OwnKeys) -> Keys<'a> {
    let shared = keys.shared.clone();
    let absent = || RopeParameters {
        rope_type: Some("yarn".into()),
        factor: Some(32.0),
        original_max_position_embeddings: Some(4096),
        truncate: Given::Value(false),
        ..RopeParameters::default()
    };
    let is_empty = |scaling: &RopeParameters| *scaling == RopeParameters::default();
    let absent = (shared.rope_scaling.as_ref().is_none_or(is_empty)
        && matches!(own.rope_parameters, Given::Absent))
    .then(absent);
    let rope_parameters = absent.or(shared.rope_parameters);
    keys.with_shared(SharedKeys { rope_parameters, ..shared })
}

pub(super) const NAMES: Names = &[(".mlp.gate.", ".mlp.router.")];

/// The outputs of gate and up lie in pairs.
pub(super) const STACKED: &[Stacked] = &[
    Stacked {
        name: "gate_up_proj",
        projections: &[("gate_proj", Outputs::Even), ("up_proj", Outputs::Odd)],
    },
    Stacked { name: "down_proj", projections: &[("down_proj", Outputs::All)] },
];

#[derive(Deserialize)]
struct OwnKeys {
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    experts_per_token: Option<usize>,
    swiglu_limit: Option<f64>,
    #[serde(default)]
    rope_parameters: Given<IgnoredAny>,
}
