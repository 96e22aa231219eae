//! Blocks with one matrix for several products of the same rows: as Phi-3 stores them, and as
//! others are [merged](crate::Model::merge_projections) into. A decode step then hands over fewer
//! launches.

use std::sync::Arc;

use burn::{
    module::{Module, Param, ParamId},
    tensor::Tensor,
};

use briquette::{ops::Ops, position::PositionEncoding};

use crate::{
    Activation, Attend, Result,
    nn::{
        blocks::{Attention, GatedFeedForward, merge_heads, split_heads, times_active},
        build::Build,
        linear::Linear,
        rms_norm::RmsNorm,
    },
};

/// Attention of groups of query heads, with one matrix for queries, keys and values.
#[derive(Module, Debug)]
pub(crate) struct MergedAttention {
    qkv_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    query_scale: Option<f64>,
}

impl MergedAttention {
    pub(crate) fn new(build: Build<'_>) -> Self {
        let config = build.config;
        let (query_heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        Self {
            qkv_proj: build.linear(hidden, (query_heads + 2 * kv_heads) * head_dim, false),
            o_proj: build.linear(query_heads * head_dim, hidden, false),
            q_norm: None,
            k_norm: None,
            query_heads,
            kv_heads,
            head_dim,
            query_scale: None,
        }
    }

    pub(crate) fn output_projection(&self) -> &Linear {
        &self.o_proj
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<3>> {
        attend.hidden_states(&x);
        let heads = split_heads(self.qkv_proj.forward(x)?, self.head_dim);
        let mut q = heads.clone().narrow(1, 0, self.query_heads);
        let mut k = heads.clone().narrow(1, self.query_heads, self.kv_heads);
        let v = heads.narrow(1, self.query_heads + self.kv_heads, self.kv_heads);
        if let Some(norm) = &self.q_norm {
            q = norm.forward(q)?;
        }
        if let Some(norm) = &self.k_norm {
            k = norm.forward(k)?;
        }
        if let Some(scale) = self.query_scale {
            q = q * scale;
        }
        let out = attend.attend(layer, q, k, v, positions)?;
        self.o_proj.forward(merge_heads(out))
    }
}

impl From<Attention> for MergedAttention {
    fn from(apart: Attention) -> Self {
        let Attention { q_proj, k_proj, v_proj, o_proj, q_norm, k_norm, head_dim, query_scale } =
            apart;
        let heads = |of: &Linear| of.weight.lazy_shape()[1] / head_dim;
        let (query_heads, kv_heads) = (heads(&q_proj), heads(&k_proj));
        let qkv_proj = side_by_side(vec![q_proj, k_proj, v_proj]);
        Self { qkv_proj, o_proj, q_norm, k_norm, query_heads, kv_heads, head_dim, query_scale }
    }
}

/// SwiGLU (Shazeer, 2020) of one matrix.
#[derive(Module, Debug)]
pub(crate) struct MergedFeedForward {
    gate_up_proj: Linear,
    down_proj: Linear,
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

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        let [batch, tokens, hidden] = x.dims();
        let both = self.gate_up_proj.forward(x.reshape([batch * tokens, hidden]))?;
        let inner = both.dims()[1] / 2;
        let gate = both.clone().narrow(1, 0, inner);
        let up = both.narrow(1, inner, inner);
        let active = times_active(gate, up, self.activation, self.ops.as_ref())?;
        Ok(self.down_proj.forward(active)?.reshape([batch, tokens, hidden]))
    }
}

impl From<GatedFeedForward> for MergedFeedForward {
    fn from(apart: GatedFeedForward) -> Self {
        let GatedFeedForward { gate_proj, up_proj, down_proj, activation, ops } = apart;
        let gate_up_proj = side_by_side(vec![gate_proj, up_proj]);
        Self { gate_up_proj, down_proj, activation, ops }
    }
}

/// One layer whose outputs are those of all, one behind the other.
fn side_by_side(layers: Vec<Linear>) -> Linear {
    let biases: Option<Vec<Tensor<1>>> =
        layers.iter().map(|layer| Some(layer.bias.as_ref()?.val())).collect();
    let ops = layers[0].ops.clone();
    let weights: Vec<Tensor<2>> = layers.into_iter().map(|layer| layer.weight.val()).collect();
    let device = weights[0].device();
    // Where Burn puts weights that it loads.
    let weight = device.memory_persistent_allocations(weights, |weights| Tensor::cat(weights, 1));
    let bias = biases.map(|biases| {
        device.memory_persistent_allocations(biases, |biases| Tensor::cat(biases, 0))
    });
    let param = |tensor| Param::initialized(ParamId::new(), tensor);
    Linear {
        weight: param(weight),
        bias: bias.map(|bias| Param::initialized(ParamId::new(), bias)),
        ops,
    }
}
