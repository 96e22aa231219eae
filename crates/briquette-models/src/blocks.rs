//! The blocks that layers of several architectures are made of. Fields carry the names of the Hugging Face checkpoint.

use burn::{
    module::Module,
    nn::LinearConfig,
    tensor::{Device, Tensor},
};

use briquette::position::PositionEncoding;

use crate::{Activation, Attend, ModelConfig, Result, linear::Linear, rms_norm::RmsNorm};

/// Attention of groups of query heads, with a matrix each for queries, keys and values.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    head_dim: usize,
    /// What queries are multiplied by where scores are not divided by the root of `head_dim`, which the cache does.
    query_scale: Option<f64>,
}

impl Attention {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        let linear_in = |output| linear(hidden, output, config.attention_bias, device);
        let norm = || config.qk_norm.then(|| RmsNorm::new(head_dim, config, device));
        Self {
            q_proj: linear_in(queries),
            k_proj: linear_in(keys),
            v_proj: linear_in(keys),
            o_proj: linear(queries, hidden, config.output_bias, device),
            q_norm: norm(),
            k_norm: norm(),
            head_dim,
            query_scale: config
                .query_pre_attn_scalar
                .map(|scalar| (head_dim as f64 / scalar).sqrt()),
        }
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<3>> {
        let mut q = split_heads(self.q_proj.forward(x.clone()), self.head_dim);
        let mut k = split_heads(self.k_proj.forward(x.clone()), self.head_dim);
        let v = split_heads(self.v_proj.forward(x), self.head_dim);
        if let Some(norm) = &self.q_norm {
            q = norm.forward(q);
        }
        if let Some(norm) = &self.k_norm {
            k = norm.forward(k);
        }
        if let Some(scale) = self.query_scale {
            q = q * scale;
        }
        let out = attend.attend(layer, q, k, v, positions)?;
        Ok(self.o_proj.forward(merge_heads(out)))
    }

    /// The weights of the output projection, `[heads * head_dim, hidden_size]`.
    pub(crate) fn output_projection(&self) -> Tensor<2> {
        self.o_proj.weight.val()
    }
}

/// `[batch, tokens, heads * head_dim]` -> `[batch, heads, tokens, head_dim]`
pub(crate) fn split_heads(x: Tensor<3>, head_dim: usize) -> Tensor<4> {
    let [batch, tokens, channels] = x.dims();
    x.reshape([batch, tokens, channels / head_dim, head_dim]).swap_dims(1, 2)
}

/// `[batch, heads, tokens, head_dim]` -> `[batch, tokens, heads * head_dim]`
pub(crate) fn merge_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, head_dim] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim])
}

/// A gated feed-forward network: SwiGLU or GeGLU (Shazeer, 2020).
#[derive(Module, Debug)]
pub(crate) struct GatedFeedForward {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl GatedFeedForward {
    pub(crate) fn new(config: &ModelConfig, inner: usize, device: &Device) -> Self {
        let linear = |input, output| linear(input, output, config.mlp_bias, device);
        Self {
            gate_proj: linear(config.hidden_size, inner),
            up_proj: linear(config.hidden_size, inner),
            down_proj: linear(inner, config.hidden_size),
            activation: config.hidden_act,
        }
    }

    /// `[.., hidden_size]` -> the same
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = self.activation.apply(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}

pub(crate) fn linear(input: usize, output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(input, output).with_bias(bias).init(device).into()
}
