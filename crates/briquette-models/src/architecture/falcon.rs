use burn::{
    module::Module,
    nn::{LayerNorm, LayerNormConfig},
    tensor::Tensor,
};
use serde::Deserialize;

use super::{Architecture, DEFAULTS, Defaults, Names};
use crate::{
    Activation, ModelConfig, Result,
    config::{activation, given::Given, keys::Keys},
    nn::{
        attend::LayerAttention,
        build::Build,
        merged::MergedAttention,
        projection::{Projection, Projections, within},
        residual::Residual,
    },
    setting::{contradiction, invalid, unsupported},
};

/// Falcon-7B (Almazrouei et al., 2023, [arXiv:2311.16867](https://arxiv.org/abs/2311.16867)): one
/// key-value head for all queries (Shazeer, 2019), attention and feed-forward network side by side
/// behind one LayerNorm, and no gate.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let own: OwnKeys = keys.own()?;
    let flags = [
        ("alibi", &own.alibi, false, "false"),
        ("new_decoder_architecture", &own.new_decoder_architecture, false, "false"),
        ("multi_query", &own.multi_query, true, "true"),
        ("parallel_attn", &own.parallel_attn, true, "true"),
    ];
    for (key, found, here, supported) in flags {
        if found.is_on(here) != here {
            return Err(unsupported(key, !here, supported));
        }
    }
    let defaults = Defaults {
        vocabulary: 65_024,
        hidden: 4544,
        heads: 71,
        tied: true,
        activation: Activation::Gelu,
        ..DEFAULTS
    };
    let config = ModelConfig::shared(Architecture::Falcon, keys, defaults)?;
    let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
    if let Some(other) = own.n_embed.filter(|other| *other != hidden) {
        return Err(contradiction("n_embed", other, "hidden_size", hidden));
    }
    if config.head_dim * heads != hidden {
        let must_be = format!("hidden_size / num_attention_heads = {hidden} / {heads}");
        return Err(invalid("head_dim", config.head_dim, must_be));
    }
    let bias = own.bias.unwrap_or(false);
    ModelConfig {
        num_key_value_heads: 1,
        intermediate_size: own.ffn_hidden_size.unwrap_or_else(|| hidden.saturating_mul(4)),
        rms_norm_eps: own.layer_norm_epsilon.unwrap_or(1e-5),
        hidden_act: activation::of_keys(
            ("activation", own.activation.as_deref()),
            ("hidden_act", keys.shared.hidden_act.as_deref()),
            Activation::Gelu,
        )?,
        attention_bias: bias,
        output_bias: bias,
        mlp_bias: bias,
        ..config
    }
    .without_windows(keys)
}

pub(super) const NAMES: Names = &[
    ("model.embed_tokens.", "transformer.word_embeddings."),
    ("model.layers.", "transformer.h."),
    ("model.norm.", "transformer.ln_f."),
    (".self_attn.qkv_proj.", ".self_attention.query_key_value."),
    (".self_attn.o_proj.", ".self_attention.dense."),
];

#[derive(Deserialize)]
struct OwnKeys {
    ffn_hidden_size: Option<usize>,
    layer_norm_epsilon: Option<f64>,
    activation: Option<String>,
    #[serde(default)]
    alibi: Given<bool>,
    #[serde(default)]
    new_decoder_architecture: Given<bool>,
    #[serde(default)]
    multi_query: Given<bool>,
    #[serde(default)]
    parallel_attn: Given<bool>,
    bias: Option<bool>,
    /// An older name of `hidden_size`.
    n_embed: Option<usize>,
}

#[derive(Module, Debug)]
pub(crate) struct FalconLayer {
    input_layernorm: LayerNorm,
    pub(crate) self_attn: MergedAttention,
    mlp: FeedForward,
}

impl FalconLayer {
    pub(crate) fn new(build: Build<'_>) -> Self {
        Self {
            input_layernorm: layer_norm(build),
            self_attn: MergedAttention::new(build),
            mlp: FeedForward::new(build),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let mut all = within("self_attn", self.self_attn.projections());
        all.extend(within("mlp", self.mlp.projections()));
        all
    }

    pub(crate) fn forward(&self, residual: Residual, at: LayerAttention<'_>) -> Result<Residual> {
        let x = residual.summed();
        let normal = self.input_layernorm.forward(x.clone());
        let attention = self.self_attn.forward(normal.clone(), at)?;
        Ok(Residual::new(x + attention + self.mlp.forward(normal)?))
    }
}

pub(crate) fn layer_norm(build: Build<'_>) -> LayerNorm {
    let config = LayerNormConfig::new(build.config.hidden_size);
    config.with_epsilon(build.config.rms_norm_eps).init(build.device)
}

#[derive(Module, Debug)]
struct FeedForward {
    dense_h_to_4h: Projection,
    dense_4h_to_h: Projection,
    #[module(skip)]
    activation: Activation,
}

impl FeedForward {
    fn new(build: Build<'_>) -> Self {
        let config = build.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            dense_h_to_4h: build.linear(hidden, inner, config.mlp_bias),
            dense_4h_to_h: build.linear(inner, hidden, config.mlp_bias),
            activation: config.hidden_act,
        }
    }

    fn projections(&mut self) -> Projections<'_> {
        let Self { dense_h_to_4h, dense_4h_to_h, .. } = self;
        vec![("dense_h_to_4h".into(), dense_h_to_4h), ("dense_4h_to_h".into(), dense_4h_to_h)]
    }

    fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        self.dense_4h_to_h.forward(self.activation.apply(self.dense_h_to_4h.forward(x)?))
    }
}
