//! A small decoder of the usual kind: the part that does not know the cache.

use briquette::CacheShape;
use burn::{
    module::Module,
    nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig},
    tensor::{Device, Int, Tensor, activation::silu},
};

pub(crate) const LAYERS: usize = 4;
pub(crate) const HEADS: usize = 8;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 32;
pub(crate) const VOCABULARY: usize = 256;
pub(crate) const SHAPE: CacheShape =
    CacheShape { layers: LAYERS, query_heads: HEADS, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
const D_MODEL: usize = HEADS * HEAD_DIM;

#[derive(Module, Debug)]
pub(crate) struct Transformer {
    embedding: Embedding,
    pub(crate) layers: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) attention_norm: RmsNorm,
    pub(crate) attention: Attention,
    feed_forward_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Grouped-query attention.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    wq: Linear,
    wk: Linear,
    wv: Linear,
    wo: Linear,
}

impl Transformer {
    /// One with random weights.
    pub(crate) fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let norm = || RmsNormConfig::new(D_MODEL).init(device);
        let block = || Block {
            attention_norm: norm(),
            attention: Attention {
                wq: linear(D_MODEL, HEADS * HEAD_DIM),
                wk: linear(D_MODEL, KV_HEADS * HEAD_DIM),
                wv: linear(D_MODEL, KV_HEADS * HEAD_DIM),
                wo: linear(HEADS * HEAD_DIM, D_MODEL),
            },
            feed_forward_norm: norm(),
            gate: linear(D_MODEL, 2 * D_MODEL),
            up: linear(D_MODEL, 2 * D_MODEL),
            down: linear(2 * D_MODEL, D_MODEL),
        };
        Self {
            embedding: EmbeddingConfig::new(VOCABULARY, D_MODEL).init(device),
            layers: (0..LAYERS).map(|_| block()).collect(),
            norm: norm(),
            output: linear(D_MODEL, VOCABULARY),
        }
    }

    /// `[batch, tokens]` -> `[batch, tokens, d_model]`
    pub(crate) fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.embedding.forward(tokens)
    }

    /// `[batch, tokens, d_model]` -> `[batch, tokens, vocabulary]`
    pub(crate) fn logits(&self, h: Tensor<3>) -> Tensor<3> {
        self.output.forward(self.norm.forward(h))
    }
}

impl Block {
    /// The rest of the layer behind the attention, whose output is `[batch, tokens, d_model]`.
    pub(crate) fn feed_forward(&self, h: Tensor<3>) -> Tensor<3> {
        let x = self.feed_forward_norm.forward(h.clone());
        h + self.down.forward(silu(self.gate.forward(x.clone())) * self.up.forward(x))
    }
}

impl Attention {
    /// `[batch, tokens, d_model]` -> queries, keys and values, each
    /// `[batch, heads, tokens, head_dim]`
    pub(crate) fn project(&self, x: Tensor<3>) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [batch, tokens, _] = x.dims();
        let split =
            |x: Tensor<3>, heads| x.reshape([batch, tokens, heads, HEAD_DIM]).swap_dims(1, 2);
        let q = split(self.wq.forward(x.clone()), HEADS);
        let k = split(self.wk.forward(x.clone()), KV_HEADS);
        let v = split(self.wv.forward(x), KV_HEADS);
        (q, k, v)
    }

    /// `[batch, heads, tokens, head_dim]` -> `[batch, tokens, d_model]`
    pub(crate) fn project_output(&self, x: Tensor<4>) -> Tensor<3> {
        let [batch, _, tokens, _] = x.dims();
        self.wo.forward(x.swap_dims(1, 2).reshape([batch, tokens, D_MODEL]))
    }
}
