//! Blocks with one matrix for several products of the same rows: as Phi-3 and Falcon store them,
//! and as others are [merged](crate::Model::merge_projections) into. A decode step then hands over
//! fewer launches.

use std::sync::Arc;

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use briquette::ops::Ops;

use crate::{
    Activation, Result,
    nn::{
        attend::LayerAttention,
        blocks::{Attention, GatedFeedForward, attend, split_heads},
        build::Build,
        head_norm::HeadNorm,
        projection::{Projection, Projections},
    },
};

/// Attention of groups of query heads, with one matrix for queries, keys and values.
#[derive(Module, Debug)]
pub(crate) struct MergedAttention {
    qkv_proj: Projection,
    pub(crate) o_proj: Projection,
    q_norm: Option<HeadNorm>,
    k_norm: Option<HeadNorm>,
    pub(crate) sinks: Option<Param<Tensor<1>>>,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl MergedAttention {
    pub(crate) fn new(build: Build<'_>) -> Self {
        let config = build.config;
        let (query_heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let outputs = (query_heads + 2 * kv_heads) * head_dim;
        Self {
            qkv_proj: build.linear(hidden, outputs, config.attention_bias),
            o_proj: build.linear(query_heads * head_dim, hidden, config.output_bias),
            q_norm: None,
            k_norm: None,
            sinks: None,
            query_heads,
            kv_heads,
            head_dim,
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        vec![("qkv_proj".into(), &mut self.qkv_proj), ("o_proj".into(), &mut self.o_proj)]
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        at.attend.hidden_states(&x);
        let heads = split_heads(self.qkv_proj.forward(x)?, self.head_dim);
        let q = heads.clone().narrow(1, 0, self.query_heads);
        let k = heads.clone().narrow(1, self.query_heads, self.kv_heads);
        let v = heads.narrow(1, self.query_heads + self.kv_heads, self.kv_heads);
        let norms = [&self.q_norm, &self.k_norm];
        self.o_proj.forward(attend([q, k, v], norms, at)?)
    }

    /// The same attention, if the weights of its projections are stored alike, and heads are
    /// normalised one by one and have no gates.
    pub(crate) fn of(apart: &Attention) -> Option<Self> {
        if apart.normalises_all || apart.is_gated {
            return None;
        }
        let Attention { q_proj, k_proj, v_proj, .. } = apart;
        let qkv_proj = Projection::side_by_side(&[q_proj, k_proj, v_proj])?;
        let Attention { q_proj, k_proj, o_proj, q_norm, k_norm, sinks, head_dim, .. } =
            apart.clone();
        let (query_heads, kv_heads) = (q_proj.outputs() / head_dim, k_proj.outputs() / head_dim);
        Some(Self { qkv_proj, o_proj, q_norm, k_norm, sinks, query_heads, kv_heads, head_dim })
    }
}

/// SwiGLU (Shazeer, 2020) of one matrix.
#[derive(Module, Debug)]
pub(crate) struct MergedFeedForward {
    gate_up_proj: Projection,
    down_proj: Projection,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    ops: Arc<dyn Ops>,
}

impl MergedFeedForward {
    pub(crate) fn new(build: Build<'_>) -> Self {
        let config = build.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            gate_up_proj: build.linear(hidden, 2 * inner, false),
            down_proj: build.linear(inner, hidden, false),
            activation: config.hidden_act,
            ops: build.ops.clone(),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        vec![
            ("gate_up_proj".into(), &mut self.gate_up_proj),
            ("down_proj".into(), &mut self.down_proj),
        ]
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        self.down_proj.forward(self.gate_up_proj.forward_gated(x, self.activation)?)
    }

    /// The same network, if the weights of both sides are stored alike, and unbounded.
    pub(crate) fn of(apart: &GatedFeedForward) -> Option<Self> {
        if apart.limit.is_some() {
            return None;
        }
        let gate_up_proj = Projection::side_by_side(&[&apart.gate_proj, &apart.up_proj])?;
        let GatedFeedForward { down_proj, activation, ops, .. } = apart.clone();
        Some(Self { gate_up_proj, down_proj, activation, ops })
    }
}
