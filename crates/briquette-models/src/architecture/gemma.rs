use std::collections::BTreeSet;

use burn::module::Module;
use serde::Deserialize;

use briquette::position::PositionEncoding;

use super::{Architecture, DEFAULTS, Defaults};
use crate::{
    Activation, Attend, ModelConfig, Result,
    config::{
        keys::Keys,
        rope::RopeConfig,
        rope_keys::{RopeKeys, RopeParameters},
    },
    nn::{
        blocks::{Attention, GatedFeedForward},
        build::Build,
        projection::{Projection, Projections, within},
        residual::Residual,
        rms_norm::RmsNorm,
    },
    setting::{invalid, unsupported},
};

/// Gemma 2 (Gemma Team, 2024, [arXiv:2408.00118](https://arxiv.org/abs/2408.00118)): norms before
/// and after each block, GeGLU, embeddings multiplied by the root of their width, capped logits,
/// and a window in every second layer. Attention whose scores are capped is refused: the cache has
/// none.
pub(super) fn read_2(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    if let Some(cap) = own.attn_logit_softcapping {
        return Err(unsupported("attn_logit_softcapping", cap, "null"));
    }
    let config = ModelConfig::shared(Architecture::Gemma2, keys, defaults(8192))?;
    let windowed = windowed(keys, 2)?;
    let config = own.apply(config, keys);
    config.with_window(keys.shared.sliding_window.filter(|_| !windowed.is_empty()))
}

/// Gemma 3 (Gemma Team, 2025, [arXiv:2503.19786](https://arxiv.org/abs/2503.19786)): Gemma 2 with
/// normalised queries and keys in place of the caps, and two rotary embeddings, that of windowed
/// layers with a base of its own.
pub(super) fn read_3(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    if let Some(cap) = own.attn_logit_softcapping {
        return Err(unsupported("attn_logit_softcapping", cap, "null"));
    }
    if own.use_bidirectional_attention == Some(true) {
        return Err(unsupported("use_bidirectional_attention", true, "false"));
    }
    let defaults = Defaults { theta: 1e6, ..defaults(131_072) };
    let mut config = ModelConfig::shared(Architecture::Gemma3, keys, defaults)?;
    let context = config.max_position_embeddings;
    let rope = |theta, parameters: Option<RopeParameters>| {
        RopeConfig::from_keys(RopeKeys {
            theta,
            partial: None,
            context,
            original: None,
            parameters,
        })
    };
    let nested = own.rope_parameters.as_ref();
    let local = rope(
        own.rope_local_base_freq.unwrap_or(10_000.0),
        nested.and_then(|nested| nested.sliding_attention.clone()),
    )?;
    if let Some(full) = nested.and_then(|nested| nested.full_attention.clone()) {
        config.rope = rope(1e6, Some(full))?;
    }
    config.local_layers = windowed(keys, own.sliding_window_pattern.unwrap_or(6))?;
    config.local_rope = Some(local);
    config.qk_norm = true;
    let window = keys.shared.sliding_window.filter(|_| !config.local_layers.is_empty());
    own.apply(config, keys).with_window(window)
}

fn defaults(context: usize) -> Defaults {
    let activation = Activation::GeluTanh;
    Defaults { context, tied: true, head_dim: Some(256), activation, ..DEFAULTS }
}

/// The layers with a window: those the file names, or all but every `pattern`th.
fn windowed(keys: &Keys, pattern: usize) -> Result<BTreeSet<usize>> {
    let layers = keys.shared.num_hidden_layers;
    if pattern == 0 {
        return Err(invalid("sliding_window_pattern", 0, "at least 1"));
    }
    match &keys.shared.layer_types {
        Some(types) if types.len() != layers => {
            let must_be = format!("num_hidden_layers = {layers}");
            Err(invalid("the length of layer_types", types.len(), must_be))
        }
        Some(types) => {
            Ok((0..layers).filter(|layer| types[*layer] == "sliding_attention").collect())
        }
        None => Ok((0..layers).filter(|layer| !(layer + 1).is_multiple_of(pattern)).collect()),
    }
}

#[derive(Deserialize)]
struct OwnKeys {
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: Option<bool>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
    rope_parameters: Option<NestedRope>,
}

/// `rope_parameters` where layers differ.
#[derive(Deserialize)]
struct NestedRope {
    full_attention: Option<RopeParameters>,
    sliding_attention: Option<RopeParameters>,
}

impl OwnKeys {
    fn apply(&self, config: ModelConfig, keys: &Keys) -> ModelConfig {
        ModelConfig {
            query_pre_attn_scalar: Some(self.query_pre_attn_scalar.unwrap_or(256.0)),
            final_logit_softcapping: self.final_logit_softcapping,
            attention_bias: keys.shared.attention_bias,
            output_bias: keys.shared.attention_bias,
            ..config
        }
    }
}

#[derive(Module, Debug)]
pub(crate) struct GemmaLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedFeedForward,
    post_feedforward_layernorm: RmsNorm,
}

impl GemmaLayer {
    pub(crate) fn new(build: Build<'_>) -> Self {
        let norm = || build.rms_norm(build.config.hidden_size);
        Self {
            input_layernorm: norm(),
            self_attn: Attention::new(build),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: norm(),
            mlp: GatedFeedForward::new(build, build.config.intermediate_size),
            post_feedforward_layernorm: norm(),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let mut all = within("self_attn", self.self_attn.projections());
        all.extend(within("mlp", self.mlp.projections()));
        all
    }

    pub(crate) fn output_projection(&self) -> &Projection {
        self.self_attn.output_projection()
    }

    pub(crate) fn forward(
        &self,
        residual: Residual,
        layer: usize,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Residual> {
        let (residual, normal) = residual.normalised(&self.input_layernorm)?;
        let attention = self.self_attn.forward(normal, layer, positions, attend)?;
        let residual = residual.with(self.post_attention_layernorm.forward(attention)?);
        let (residual, normal) = residual.normalised(&self.pre_feedforward_layernorm)?;
        let inner = self.mlp.forward(normal)?;
        Ok(residual.with(self.post_feedforward_layernorm.forward(inner)?))
    }
}
