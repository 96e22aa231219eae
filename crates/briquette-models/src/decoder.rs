use burn::{
    module::Module,
    nn::{Embedding, EmbeddingConfig, LinearConfig},
    tensor::{Device, Int, Tensor, activation::silu},
};

use briquette::position::PositionEncoding;

use crate::{Attend, Linear, LlamaConfig, Result, rms_norm::RmsNorm};

// Fields carry the names of the Hugging Face checkpoint, so a weight's path here is its name there.

/// The decoder without its head.
#[derive(Module, Debug)]
pub(crate) struct Decoder {
    pub(crate) embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
}

impl Decoder {
    pub(crate) fn new(config: &LlamaConfig, device: &Device) -> Self {
        Self {
            embed_tokens: EmbeddingConfig::new(config.vocab_size, config.hidden_size).init(device),
            layers: (0..config.num_hidden_layers)
                .map(|_| DecoderLayer::new(config, device))
                .collect(),
            norm: RmsNorm::new(config.hidden_size, config.rms_norm_eps, device),
        }
    }

    /// `[batch, tokens]` -> `[batch, tokens, hidden_size]`
    pub(crate) fn forward(
        &self,
        tokens: Tensor<2, Int>,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<3>> {
        let mut x = self.embed_tokens.forward(tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x, index, positions, attend)?;
        }
        Ok(self.norm.forward(x))
    }
}

#[derive(Module, Debug)]
struct DecoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl DecoderLayer {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let norm = || RmsNorm::new(config.hidden_size, config.rms_norm_eps, device);
        Self {
            input_layernorm: norm(),
            self_attn: Attention::new(config, device),
            post_attention_layernorm: norm(),
            mlp: FeedForward::new(config, device),
        }
    }

    /// `[batch, tokens, hidden_size]` -> the same
    fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<3>> {
        let normal = self.input_layernorm.forward(x.clone());
        let x = x + self.self_attn.forward(normal, layer, positions, attend)?;
        let normal = self.post_attention_layernorm.forward(x.clone());
        Ok(x + self.mlp.forward(normal))
    }
}

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    head_dim: usize,
}

impl Attention {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let hidden = config.hidden_size;
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        let linear = |input, output| linear(input, output, config.attention_bias, device);
        Self {
            q_proj: linear(hidden, queries),
            k_proj: linear(hidden, keys),
            v_proj: linear(hidden, keys),
            o_proj: linear(queries, hidden),
            head_dim: config.head_dim,
        }
    }

    /// `[batch, tokens, hidden_size]` -> the same
    fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        positions: &dyn PositionEncoding,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<3>> {
        let q = self.split_heads(self.q_proj.forward(x.clone()));
        let k = self.split_heads(self.k_proj.forward(x.clone()));
        let v = self.split_heads(self.v_proj.forward(x));
        let out = attend.attend(layer, q, k, v, positions)?;
        let [batch, heads, tokens, head_dim] = out.dims();
        let out = out.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim]);
        Ok(self.o_proj.forward(out))
    }

    /// `[batch, tokens, heads * head_dim]` -> `[batch, heads, tokens, head_dim]`
    fn split_heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, channels] = x.dims();
        x.reshape([batch, tokens, channels / self.head_dim, self.head_dim]).swap_dims(1, 2)
    }
}

/// SwiGLU (Shazeer, 2020).
#[derive(Module, Debug)]
struct FeedForward {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl FeedForward {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let linear = |input, output| linear(input, output, config.mlp_bias, device);
        Self {
            gate_proj: linear(hidden, inner),
            up_proj: linear(hidden, inner),
            down_proj: linear(inner, hidden),
        }
    }

    /// `[.., hidden_size]` -> the same
    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}

pub(crate) fn linear(input: usize, output: usize, bias: bool, device: &Device) -> Linear {
    LinearConfig::new(input, output).with_bias(bias).init(device).into()
}
