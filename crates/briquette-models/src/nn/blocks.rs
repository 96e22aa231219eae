//! The blocks that layers of several architectures are made of. Fields carry the names of the
//! Hugging Face checkpoint.

use std::sync::Arc;

use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{Tensor, activation::sigmoid},
};

use briquette::ops::Ops;
use briquette_ops::GatedInput;

use crate::{
    Activation, QkNorm, Result,
    nn::{
        attend::LayerAttention,
        build::Build,
        head_norm::HeadNorm,
        projection::{Projection, Projections},
    },
};

/// Attention of groups of query heads, with one matrix each for queries, keys and values.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    pub(crate) q_proj: Projection,
    pub(crate) k_proj: Projection,
    pub(crate) v_proj: Projection,
    pub(crate) o_proj: Projection,
    pub(crate) q_norm: Option<HeadNorm>,
    pub(crate) k_norm: Option<HeadNorm>,
    /// A logit per query head, which the cache is [told](crate::Model::cache_config) of.
    pub(crate) sinks: Option<Param<Tensor<1>>>,
    /// Whether norms are of all heads of a token together.
    pub(crate) normalises_all: bool,
    /// Whether the projection of queries gives the gate of each head's output behind the head.
    pub(crate) is_gated: bool,
    pub(crate) head_dim: usize,
}

impl Attention {
    pub(crate) fn new(build: Build<'_>, layer: usize) -> Self {
        let config = build.config;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let is_gated = config.architecture.gates_heads();
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        let linear_in = |output| build.linear(hidden, output, config.attention_bias);
        let norm = |all: usize| match config.qk_norm? {
            QkNorm::Heads => Some(HeadNorm::Weighted(build.rms_norm(head_dim))),
            QkNorm::All => Some(HeadNorm::Weighted(build.rms_norm(all))),
            QkNorm::Unweighted => {
                let is_rotated = !config.layers_without_rope.contains(&layer);
                is_rotated.then_some(HeadNorm::Unweighted(config.rms_norm_eps))
            }
        };
        let sinks = || Initializer::Zeros.init([config.num_attention_heads], build.device);
        Self {
            q_proj: linear_in(if is_gated { 2 * queries } else { queries }),
            k_proj: linear_in(keys),
            v_proj: linear_in(keys),
            o_proj: build.linear(queries, hidden, config.output_bias),
            q_norm: norm(queries),
            k_norm: norm(keys),
            sinks: config.architecture.has_sinks().then(sinks),
            normalises_all: config.qk_norm == Some(QkNorm::All),
            is_gated,
            head_dim,
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        vec![
            ("q_proj".into(), &mut self.q_proj),
            ("k_proj".into(), &mut self.k_proj),
            ("v_proj".into(), &mut self.v_proj),
            ("o_proj".into(), &mut self.o_proj),
        ]
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        at.attend.hidden_states(&x);
        let (mut q, mut k) = (self.q_proj.forward(x.clone())?, self.k_proj.forward(x.clone())?);
        let v = self.v_proj.forward(x)?;
        let gate;
        (q, gate) = if self.is_gated { parted(q, self.head_dim) } else { (q, None) };
        let mut norms = [&self.q_norm, &self.k_norm];
        if let (true, [Some(q_norm), Some(k_norm)]) = (self.normalises_all, norms) {
            (q, k) = (q_norm.forward(q)?, k_norm.forward(k)?);
            norms = [&None, &None];
        }
        let [q, k, v] = [q, k, v].map(|x| split_heads(x, self.head_dim));
        let found = attend([q, k, v], norms, at)?;
        self.o_proj.forward(match gate {
            Some(gate) => found * sigmoid(gate),
            None => found,
        })
    }
}

/// Queries and the gates behind each head of them, both `[batch, tokens, heads * head_dim]`.
fn parted(x: Tensor<3>, head_dim: usize) -> (Tensor<3>, Option<Tensor<3>>) {
    let [batch, tokens, channels] = x.dims();
    let heads = x.reshape([batch, tokens, channels / (2 * head_dim), 2 * head_dim]);
    let [queries, gates] = [0, head_dim].map(|start| {
        let part = heads.clone().narrow(3, start, head_dim);
        part.reshape([batch, tokens, channels / 2])
    });
    (queries, Some(gates))
}

/// Attention of queries, keys and values, `[batch, heads, tokens, head_dim]` -> `[batch, tokens,
/// query_heads * head_dim]`. Norms are those of queries and keys.
pub(crate) fn attend(
    [mut q, mut k, v]: [Tensor<4>; 3],
    [q_norm, k_norm]: [&Option<HeadNorm>; 2],
    at: LayerAttention<'_>,
) -> Result<Tensor<3>> {
    if let Some(norm) = q_norm {
        q = norm.forward(q)?;
    }
    if let Some(norm) = k_norm {
        k = norm.forward(k)?;
    }
    let out = at.attend.attend(at.layer, q, k, v, at.positions)?;
    let [batch, heads, tokens, head_dim] = out.dims();
    Ok(out.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim]))
}

/// `[batch, tokens, heads * head_dim]` -> `[batch, heads, tokens, head_dim]`
pub(crate) fn split_heads(x: Tensor<3>, head_dim: usize) -> Tensor<4> {
    let [batch, tokens, channels] = x.dims();
    x.reshape([batch, tokens, channels / head_dim, head_dim]).swap_dims(1, 2)
}

/// A gated feed-forward network: SwiGLU or GeGLU (Shazeer, 2020).
#[derive(Module, Debug)]
pub(crate) struct GatedFeedForward {
    pub(crate) gate_proj: Projection,
    pub(crate) up_proj: Projection,
    pub(crate) down_proj: Projection,
    #[module(skip)]
    pub(crate) activation: Activation,
    /// Bound of both sides, which the activation of gpt-oss has.
    pub(crate) limit: Option<f64>,
    #[module(skip)]
    pub(crate) ops: Arc<dyn Ops>,
}

impl GatedFeedForward {
    pub(crate) fn new(build: Build<'_>, inner: usize) -> Self {
        let config = build.config;
        let linear = |input, output| build.linear(input, output, config.mlp_bias);
        Self {
            gate_proj: linear(config.hidden_size, inner),
            up_proj: linear(config.hidden_size, inner),
            down_proj: linear(inner, config.hidden_size),
            activation: config.hidden_act,
            limit: config.swiglu_limit,
            ops: build.ops.clone(),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        vec![
            ("gate_proj".into(), &mut self.gate_proj),
            ("up_proj".into(), &mut self.up_proj),
            ("down_proj".into(), &mut self.down_proj),
        ]
    }

    /// `[.., hidden_size]` -> the same
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let gate = self.gate_proj.forward(x.clone())?;
        let up = self.up_proj.forward(x)?;
        self.down_proj.forward(match self.limit {
            Some(limit) => bounded(gate, up, limit),
            None => times_active(gate, up, self.activation, self.ops.as_ref())?,
        })
    }
}

/// SwiGLU as gpt-oss has it: both sides are bounded, and one is added to the linear one.
fn bounded<const D: usize>(gate: Tensor<D>, up: Tensor<D>, limit: f64) -> Tensor<D> {
    let (gate, up) = (gate.clamp_max(limit), up.clamp(-limit, limit));
    let active = gate.clone() * sigmoid(gate * 1.702);
    (up + 1.0) * active
}

/// `up` times the activation of `gate`, both `[.., channels]`.
pub(crate) fn times_active<const D: usize>(
    gate: Tensor<D>,
    up: Tensor<D>,
    activation: Activation,
    ops: &dyn Ops,
) -> Result<Tensor<D>> {
    let dims = gate.dims();
    let rows = dims[..D - 1].iter().product::<usize>();
    let [gate, up] = [gate, up].map(|side| side.reshape([rows, dims[D - 1]]));
    let input = GatedInput { gate, up, activation };
    Ok(ops.gated(input).map_err(briquette::Error::from)?.reshape(dims))
}
