use burn::tensor::{Bool, Tensor, activation::softmax};

use crate::{attention::Attention, rope::Rope};

/// Keys and values of every token so far, each `[batch, kv_heads, tokens, head_dim]`; one per
/// layer.
#[derive(Default)]
pub(crate) struct ClassicCache {
    held: Option<(Tensor<4>, Tensor<4>)>,
}

impl ClassicCache {
    pub(crate) fn tokens(&self) -> usize {
        self.held.as_ref().map_or(0, |(keys, _)| keys.dims()[2])
    }

    fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.held.take() {
            None => (keys, values),
            Some((k, v)) => (Tensor::cat(vec![k, keys], 2), Tensor::cat(vec![v, values], 2)),
        };
        self.held.insert(all).clone()
    }
}

impl Attention {
    pub(crate) fn forward_classic(
        &self,
        x: Tensor<3>,
        cache: &mut ClassicCache,
        rope: &Rope,
    ) -> Tensor<3> {
        let (q, k, v) = self.project(x);

        let (seen, new) = (cache.tokens(), q.dims()[2]);
        let q = rope.apply(q, seen);
        let k = rope.apply(k, seen);
        let (k, v) = cache.append(k, v);
        let group = q.dims()[1] / k.dims()[1];
        let (k, v) = (repeat_heads(k, group), repeat_heads(v, group));
        let scores = q.matmul(k.swap_dims(2, 3)) / (v.dims()[3] as f64).sqrt();
        let future = Tensor::<2, Bool>::tril_mask([new, seen + new], seen as i64, &scores.device());
        let future = future.unsqueeze::<4>().expand(scores.dims());
        let weights = softmax(scores.mask_fill(future, f32::NEG_INFINITY), 3);
        let out = weights.matmul(v);

        self.project_output(out)
    }
}

/// `[batch, kv_heads, tokens, head_dim]` -> `[batch, kv_heads * group, tokens, head_dim]`
fn repeat_heads(x: Tensor<4>, group: usize) -> Tensor<4> {
    let [batch, heads, tokens, head_dim] = x.dims();
    let x = x.unsqueeze_dim::<5>(2).expand([batch, heads, group, tokens, head_dim]);
    x.reshape([batch, heads * group, tokens, head_dim])
}
