use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

use briquette::position::PositionEncoding;

use super::{Architecture, DEFAULTS, Defaults};
use crate::{
    Activation, Attend, ModelConfig, Result,
    blocks::{linear, merge_heads, split_heads},
    keys::Keys,
    linear::Linear,
};

/// Phi-3 (Abdin et al., 2024, [arXiv:2404.14219](https://arxiv.org/abs/2404.14219)): Llama with one matrix for queries, keys and
/// values and one for both sides of SwiGLU, and LongRoPE in the models of 128 k tokens.
pub(super) fn read(keys: &Keys) -> Result<ModelConfig> {
    let defaults = Defaults { epsilon: 1e-5, context: 4096, ..DEFAULTS };
    ModelConfig::shared(Architecture::Phi3, keys, defaults)?.with_window(keys.shared.sliding_window)
}

#[derive(Module, Debug)]
pub(crate) struct FusedAttention {
    qkv_proj: Linear,
    o_proj: Linear,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl FusedAttention {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (query_heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        Self {
            qkv_proj: linear(hidden, (query_heads + 2 * kv_heads) * head_dim, false, device),
            o_proj: linear(query_heads * head_dim, hidden, false, device),
            query_heads,
            kv_heads,
            head_dim,
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
        let heads = split_heads(self.qkv_proj.forward(x), self.head_dim);
        let q = heads.clone().narrow(1, 0, self.query_heads);
        let k = heads.clone().narrow(1, self.query_heads, self.kv_heads);
        let v = heads.narrow(1, self.query_heads + self.kv_heads, self.kv_heads);
        let out = attend.attend(layer, q, k, v, positions)?;
        Ok(self.o_proj.forward(merge_heads(out)))
    }

    /// The weights of the output projection, `[heads * head_dim, hidden_size]`.
    pub(crate) fn output_projection(&self) -> Tensor<2> {
        self.o_proj.weight.val()
    }
}

/// SwiGLU (Shazeer, 2020) of one matrix.
#[derive(Module, Debug)]
pub(crate) struct FusedFeedForward {
    gate_up_proj: Linear,
    down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl FusedFeedForward {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            gate_up_proj: linear(hidden, 2 * inner, false, device),
            down_proj: linear(inner, hidden, false, device),
            activation: config.hidden_act,
        }
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let both = self.gate_up_proj.forward(x);
        let inner = both.dims()[2] / 2;
        let gate = self.activation.apply(both.clone().narrow(2, 0, inner));
        self.down_proj.forward(gate * both.narrow(2, inner, inner))
    }
}
