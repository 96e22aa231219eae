use briquette::CacheShape;
use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};

/// Grouped-query attention: the part that does not know the cache.
#[derive(Module, Debug)]
pub(crate) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    head_dim: usize,
}

impl Attention {
    pub(crate) fn new(shape: CacheShape, device: &Device) -> Self {
        let CacheShape { query_heads, kv_heads, head_dim, .. } = shape;
        let hidden = query_heads * head_dim;
        let linear = |to| LinearConfig::new(hidden, to).with_bias(false).init(device);
        Self {
            query: linear(hidden),
            key: linear(kv_heads * head_dim),
            value: linear(kv_heads * head_dim),
            output: linear(hidden),
            head_dim,
        }
    }

    /// `[batch, tokens, hidden]` -> queries, keys and values, each
    /// `[batch, heads, tokens, head_dim]`
    pub(crate) fn project(&self, x: Tensor<3>) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [batch, tokens, _] = x.dims();
        let split = |x: Tensor<3>| {
            let heads = x.dims()[2] / self.head_dim;
            x.reshape([batch, tokens, heads, self.head_dim]).swap_dims(1, 2)
        };
        let q = split(self.query.forward(x.clone()));
        let k = split(self.key.forward(x.clone()));
        let v = split(self.value.forward(x));
        (q, k, v)
    }

    /// `[batch, heads, tokens, head_dim]` -> `[batch, tokens, hidden]`
    pub(crate) fn project_output(&self, x: Tensor<4>) -> Tensor<3> {
        let [batch, heads, tokens, head_dim] = x.dims();
        self.output.forward(x.swap_dims(1, 2).reshape([batch, tokens, heads * head_dim]))
    }
}
