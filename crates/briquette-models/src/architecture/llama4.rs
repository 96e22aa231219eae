use std::collections::BTreeSet;

use briquette::ops::Window;
use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults, Names, smollm3};
use crate::{
    AttnTemperature, ExpertsConfig, ModelConfig, QkNorm, Result, Routing,
    checkpoint::stacked::{Outputs, Stacked},
    config::{given::Given, keys::Keys},
    setting::{check_positive, invalid, unsupported},
};

/// Llama 4 (Meta, 2025, [model card](https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E)): the
/// text part. Chunks of attention in layers that encode positions, queries scaled by position in
/// the others, and experts whose input is weighed, beside one that every token goes through.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults {
        vocabulary: 202_048,
        hidden: 5120,
        inner: 8192,
        layers: 48,
        heads: 40,
        kv_heads: Some(8),
        epsilon: 1e-5,
        theta: 500_000.0,
        context: 4096 * 32,
        head_dim: Some(128),
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::Llama4, keys, defaults)?.with_biases(keys);
    // Queries and keys are normalised behind the rotation, which a norm without weights does not
    // see; factors of the rotation it would.
    if config.rope.scaling.attention_factor() != 1.0 {
        return Err(unsupported("rope_type", &config.rope, "one without a factor of the rotation"));
    }
    let layers = config.num_hidden_layers;
    let layers_without_rope = smollm3::layers_without_rope(
        own.no_rope_layers.as_ref().filter(|list| !list.is_empty()),
        own.no_rope_layer_interval.unwrap_or(4),
        layers,
    )?;
    let chunked =
        keys.shared.chunked_layers(layers, |layer| !layers_without_rope.contains(layer))?;
    let sliding_window = match own.attention_chunk_size.clone().or(Some(8192)) {
        _ if chunked.is_empty() => None,
        Some(size) => {
            check_positive("attention_chunk_size", size)?;
            Some(Window::Chunk(size))
        }
        None => {
            let must_be = "given where layers attend in chunks";
            return Err(invalid("attention_chunk_size", "none", must_be));
        }
    };
    let temperature = AttnTemperature {
        floor_scale: own.floor_scale.unwrap_or(8192.0),
        attn_scale: own.attn_scale.unwrap_or(0.1),
    };
    temperature.check()?;
    let is_tuned =
        own.attn_temperature_tuning.clone().or(Some(Switch::Flag(true))).is_some_and(Switch::is_on);
    let experts = own.experts(&config)?;
    Ok(ModelConfig {
        intermediate_size: own.intermediate_size_mlp.unwrap_or(16_384),
        qk_norm: own.use_qk_norm.is_on(true).then_some(QkNorm::Unweighted),
        attn_temperature: is_tuned.then_some(temperature),
        experts: Some(experts),
        layers_without_rope,
        sliding_window,
        sliding_layers: chunked,
        ..config
    })
}

pub(super) const NAMES: Names = &[
    (".mlp.gate.", ".mlp.router."),
    (".mlp.shared_experts.", ".mlp.shared_expert."),
    (".mlp.", ".feed_forward."),
];

/// The outputs of gate come before those of up.
pub(super) const STACKED: &[Stacked] = &[
    Stacked {
        name: "gate_up_proj",
        projections: &[("gate_proj", Outputs::First), ("up_proj", Outputs::Second)],
    },
    Stacked { name: "down_proj", projections: &[("down_proj", Outputs::All)] },
];

#[derive(Deserialize)]
struct OwnKeys {
    intermediate_size_mlp: Option<usize>,
    #[serde(default)]
    attention_chunk_size: Given<usize>,
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    #[serde(default)]
    use_qk_norm: Given<bool>,
    #[serde(default)]
    attn_temperature_tuning: Given<Switch>,
    floor_scale: Option<f64>,
    attn_scale: Option<f64>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    /// The layers with experts.
    moe_layers: Option<Vec<usize>>,
    interleave_moe_layer_step: Option<usize>,
}

/// A flag, which some files write as a number.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "attn_temperature_tuning must be true, false or a number")]
enum Switch {
    Flag(bool),
    Number(f64),
}

impl Switch {
    fn is_on(self) -> bool {
        match self {
            Self::Flag(is_on) => is_on,
            Self::Number(number) => number != 0.0,
        }
    }
}

impl OwnKeys {
    fn experts(&self, config: &ModelConfig) -> Result<ExpertsConfig> {
        let layers = config.num_hidden_layers;
        let step = self.interleave_moe_layer_step.unwrap_or(1);
        let sparse: BTreeSet<usize> = match &self.moe_layers {
            Some(list) => list.iter().copied().collect(),
            None => {
                check_positive("interleave_moe_layer_step", step)?;
                (0..layers).filter(|layer| (layer + 1).is_multiple_of(step)).collect()
            }
        };
        if let Some(beyond) = sparse.last().filter(|last| **last >= layers) {
            let must_be = format!("below num_hidden_layers = {layers}");
            return Err(invalid("moe_layers", beyond, must_be));
        }
        let experts = ExpertsConfig {
            experts: self.num_local_experts.unwrap_or(16),
            experts_per_token: self.num_experts_per_tok.unwrap_or(1),
            intermediate_size: config.intermediate_size,
            shared_intermediate_size: Some(config.intermediate_size),
            routing: Routing::InputSigmoid,
            norm_topk_prob: false,
            dense_layers: (0..layers).filter(|layer| !sparse.contains(layer)).collect(),
        };
        experts.check("num_local_experts", "intermediate_size")?;
        Ok(experts)
    }
}
