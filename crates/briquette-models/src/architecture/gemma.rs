use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{
    Activation, ModelConfig, QkNorm, Result,
    config::{
        given::Given,
        keys::{Keys, SharedKeys},
        rope::RopeConfig,
        rope_keys::{RopeKeys, RopeParameters},
    },
    setting::{check_positive, check_positive_number, unsupported},
};

/// Gemma 2 (Gemma Team, 2024, [arXiv:2408.00118](https://arxiv.org/abs/2408.00118)): norms before
/// and after each block, GeGLU, embeddings multiplied by the root of their width, capped logits,
/// capped scores of attention, and a window in every second layer.
pub(super) fn read_2(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let config = own.read(Architecture::Gemma2, keys, defaults(8192), Caps::GEMMA_2)?;
    let windowed = windowed(keys, config.num_hidden_layers, 2)?;
    config.with_window(keys.shared.window(Some(4096)), windowed)
}

/// Gemma 3 (Gemma Team, 2025, [arXiv:2503.19786](https://arxiv.org/abs/2503.19786)): Gemma 2 with
/// normalised queries and keys in place of the caps, and two rotary embeddings, that of windowed
/// layers with a base of its own.
pub(super) fn read_3(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let defaults = Defaults { vocabulary: 262_208, theta: 1e6, ..defaults(131_072) };
    // The two embeddings come from the parameters of each kind of layer.
    let nested = keys.shared.rope_parameters.clone().unwrap_or_default();
    let of = |kind: Option<Box<RopeParameters>>| kind.map(|parameters| *parameters);
    let (full, sliding) = (of(nested.full_attention.clone()), of(nested.sliding_attention.clone()));
    // `transformers` writes a type beside both kinds where a model has layers of one only.
    let is_default = full.is_some() && sliding.is_some();
    let rope_type = nested.rope_type.filter(|kind| !is_default || kind != "default");
    let flat =
        RopeParameters { full_attention: None, sliding_attention: None, rope_type, ..nested };
    if flat != RopeParameters::default() {
        let supported = "full_attention and sliding_attention";
        return Err(unsupported("rope_parameters", "one for all layers", supported));
    }
    let mut scaling = keys.shared.rope_scaling.clone();
    if let (Some(scaling), Some(full)) = (&mut scaling, &full) {
        scaling.rope_theta = scaling.rope_theta.or(full.rope_theta);
    }
    let keys = &keys.with_shared(SharedKeys {
        rope_scaling: scaling,
        rope_parameters: full,
        ..keys.shared.clone()
    });
    let config = own.read(Architecture::Gemma3, keys, defaults, Caps::GEMMA_3)?;
    let local_rope = RopeConfig::from_keys(&RopeKeys {
        theta: own.rope_local_base_freq,
        default_theta: 10_000.0,
        context: config.max_position_embeddings,
        parameters: sliding,
        ..RopeKeys::default()
    })?;
    let pattern = own.sliding_window_pattern.unwrap_or(6);
    let windowed = windowed(keys, config.num_hidden_layers, pattern)?;
    ModelConfig { local_rope: Some(local_rope), qk_norm: Some(QkNorm::Heads), ..config }
        .with_window(keys.shared.window(Some(4096)), windowed)
}

fn defaults(context: usize) -> Defaults {
    Defaults {
        vocabulary: 256_000,
        hidden: 2304,
        inner: 9216,
        layers: 26,
        heads: 8,
        kv_heads: Some(4),
        context,
        tied: true,
        head_dim: Some(256),
        activation: Activation::GeluTanh,
        ..DEFAULTS
    }
}

/// The layers with a window: those the file names, or all but every `pattern`th.
fn windowed(keys: &Keys, layers: usize, pattern: usize) -> Result<BTreeSet<usize>> {
    check_positive("sliding_window_pattern", pattern)?;
    keys.shared.sliding_layers(layers, |layer| !(layer + 1).is_multiple_of(pattern))
}

#[derive(Deserialize)]
struct OwnKeys {
    query_pre_attn_scalar: Option<f64>,
    #[serde(default)]
    attn_logit_softcapping: Given<f64>,
    #[serde(default)]
    final_logit_softcapping: Given<f64>,
    use_bidirectional_attention: Option<Value>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
}

/// The caps of a file that does not say them.
struct Caps {
    scores: Option<f64>,
    logits: Option<f64>,
}

impl Caps {
    const GEMMA_2: Self = Self { scores: Some(50.0), logits: Some(30.0) };
    const GEMMA_3: Self = Self { scores: None, logits: None };
}

impl OwnKeys {
    fn read(
        &self,
        architecture: Architecture,
        keys: &Keys,
        defaults: Defaults,
        absent: Caps,
    ) -> Result<ModelConfig> {
        let sees_later = self.use_bidirectional_attention.as_ref();
        if let Some(found) = sees_later.filter(|found| **found != Value::Bool(false)) {
            return Err(unsupported("use_bidirectional_attention", found, "false"));
        }
        // `transformers` does not look at the cap of Gemma 3, which published files do not have.
        let cap = self.attn_logit_softcapping.clone().or(absent.scores);
        if let (Some(cap), Architecture::Gemma3) = (cap, architecture) {
            return Err(unsupported("attn_logit_softcapping", cap, "null"));
        }
        let scalar = self.query_pre_attn_scalar.unwrap_or(256.0);
        check_positive_number("query_pre_attn_scalar", scalar)?;
        let config = ModelConfig::shared(architecture, keys, defaults)?.with_biases(keys);
        Ok(ModelConfig {
            softmax_scale: Some(scalar.powf(-0.5)),
            embedding_multiplier: Some((config.hidden_size as f64).sqrt()),
            attn_logit_softcapping: cap,
            final_logit_softcapping: self.final_logit_softcapping.clone().or(absent.logits),
            ..config
        })
    }
}

pub(super) const NAMES: Names = &[
    (".post_attention_layernorm.", ".pre_feedforward_layernorm."),
    (".attention_output_norm.", ".post_attention_layernorm."),
    (".feedforward_output_norm.", ".post_feedforward_layernorm."),
];
