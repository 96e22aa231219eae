//! Gradient of attention: the weights of each query are computed again from its log-sum-exp, so
//! that the forward pass keeps only its inputs and outputs (FlashAttention-2, Dao 2023, equations
//! of its backward pass).

use burn::{
    backend::{
        Autodiff, Backend, TensorMetadata,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        get_or_init_device_settings,
        tensor::{BoolTensor, Device, FloatTensor, IntTensor},
    },
    tensor::{FloatDType, IntDType, Shape, Slice},
};

use super::backend::AttentionBackend;
use crate::common::masked::MASKED;

/// Fewest queries of a block, whose weights are there at a time: fewer would make too many
/// launches.
const FEWEST_ROWS: usize = 256;
/// Most blocks of queries: each saves the weights of the keys behind it.
const BLOCKS: usize = 4;

impl<B: AttentionBackend, C: CheckpointStrategy> AttentionBackend for Autodiff<B, C> {
    fn attention_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [queries.node(), keys.node(), values.node()];
        let [queries, keys, values] = [queries, keys, values].map(|x| x.into_primitive());
        match CausalGradient.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let inputs = (queries.clone(), keys.clone(), values.clone());
                let (output, sums) = B::attention_causal(queries, keys, values, scale);
                let state = State {
                    queries: inputs.0,
                    keys: inputs.1,
                    values: inputs.2,
                    output: output.clone(),
                    log_sum_exp: sums.clone(),
                    scale,
                };
                (prep.finish(state, output), FloatTensor::<Self>::new(sums))
            }
            OpsKind::UnTracked(prep) => {
                let (output, sums) = B::attention_causal(queries, keys, values, scale);
                (prep.finish(output), FloatTensor::<Self>::new(sums))
            }
        }
    }

    /// Has no gradient; [`super::attention`] refuses calls that would need one.
    fn attention_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [queries, keys, values] = [queries, keys, values].map(|x| x.into_primitive());
        let (output, sums) = B::attention_by_position(
            queries,
            keys,
            values,
            query_positions,
            entry_positions,
            scale,
        );
        (FloatTensor::<Self>::new(output), FloatTensor::<Self>::new(sums))
    }
}

#[derive(Debug)]
struct CausalGradient;

/// Inputs and outputs of the forward pass.
#[derive(Clone, Debug)]
struct State<F> {
    queries: F,
    keys: F,
    values: F,
    output: F,
    log_sum_exp: F,
    scale: f32,
}

impl<B: Backend> Backward<B, 3> for CausalGradient {
    type State = State<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let found = gradient::<B>(ops.state, grad);
        for (node, grad) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// Gradients of queries, keys and values, block of queries by block of queries. With `P` the
/// weights, `O` the output and `G` its gradient: `dV = Pᵀ G`,
/// `dS = scale · P ∘ (G Vᵀ − rowsum(G ∘ O))`, `dQ = dS K`, `dK = dSᵀ Q`. The query heads of a group
/// lie below each other, so that each product takes all that read the same keys, and sums over
/// them.
fn gradient<B: Backend>(state: State<FloatTensor<B>>, grad: FloatTensor<B>) -> [FloatTensor<B>; 3] {
    let State { queries, keys, values, output, log_sum_exp, scale } = state;
    let dtype: FloatDType = queries.dtype().into();
    let shape = queries.shape();
    let (batch, heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let group = heads / kv_heads;
    let grouped = |x: FloatTensor<B>, last: usize| {
        B::float_reshape(x, Shape::from([batch, kv_heads, group, new, last]))
    };
    let wide = |x| B::float_cast(x, FloatDType::F32);

    let shares = B::float_mul(wide(grad.clone()), wide(output));
    let shares = grouped(B::float_sum_dim(shares, 3), 1);
    let sums = grouped(log_sum_exp, 1);
    let queries = grouped(queries, head_dim);
    let grad = grouped(grad, head_dim);
    let device = keys.device();

    let rows = new.div_ceil(BLOCKS).max(FEWEST_ROWS);
    let mut of_queries = Vec::new();
    let mut of_entries: Option<[FloatTensor<B>; 2]> = None;
    for first in (0..new).step_by(rows) {
        let rows = rows.min(new - first);
        // Keys that the last query of the block sees.
        let seen = entries - new + first + rows;
        let block = |x: &FloatTensor<B>| narrow::<B>(x.clone(), 3, first, rows);
        let flat = |x: FloatTensor<B>, last: usize| {
            B::float_reshape(x, Shape::from([batch, kv_heads, group * rows, last]))
        };
        let apart = |x: FloatTensor<B>| {
            B::float_reshape(x, Shape::from([batch, kv_heads, group, rows, seen]))
        };
        let of_block = flat(block(&queries), head_dim);
        let grad_of_block = flat(block(&grad), head_dim);
        let [keys, values] = [&keys, &values].map(|x| narrow::<B>(x.clone(), 2, 0, seen));

        let scores = B::float_matmul(of_block.clone(), B::float_transpose(keys.clone()));
        let scores = B::float_mul_scalar(wide(apart(scores)), scale.into());
        let hidden = hidden::<B>([batch, kv_heads, group, rows, seen], seen - rows, &device);
        let weights = B::float_exp(B::float_mask_fill(
            B::float_sub(scores, block(&sums)),
            hidden,
            MASKED.into(),
        ));
        let slopes = B::float_matmul(grad_of_block.clone(), B::float_transpose(values));
        let slopes = B::float_sub(wide(apart(slopes)), block(&shares));
        let slopes = B::float_mul_scalar(B::float_mul(slopes, weights.clone()), scale.into());
        let [weights, slopes] = [weights, slopes].map(|x| flat(B::float_cast(x, dtype), seen));

        let of_values = B::float_matmul(B::float_transpose(weights), grad_of_block);
        let of_keys = B::float_matmul(B::float_transpose(slopes.clone()), of_block);
        let found = [of_keys, of_values].map(|x| {
            let behind = Shape::from([batch, kv_heads, entries - seen, head_dim]);
            let zeros = B::float_zeros(behind, &device, FloatDType::F32);
            if seen == entries { wide(x) } else { B::float_cat(vec![wide(x), zeros], 2) }
        });
        of_entries = Some(match of_entries {
            Some([keys, values]) => {
                let [of_keys, of_values] = found;
                [B::float_add(keys, of_keys), B::float_add(values, of_values)]
            }
            None => found,
        });
        let of_block = B::float_matmul(slopes, keys);
        let shape = Shape::from([batch, kv_heads, group, rows, head_dim]);
        of_queries.push(B::float_reshape(of_block, shape));
    }
    let of_queries = B::float_reshape(B::float_cat(of_queries, 3), shape);
    let [of_keys, of_values] = of_entries.unwrap_or_else(|| {
        // Unreachable: there is a query, so there is a block.
        [keys, values].map(|x| B::float_zeros(x.shape(), &device, FloatDType::F32))
    });
    [of_queries, B::float_cast(of_keys, dtype), B::float_cast(of_values, dtype)]
}

/// Mask of the keys that a query does not see: query `i` of a block sees the first
/// `before + i + 1`.
fn hidden<B: Backend>(shape: [usize; 5], before: usize, device: &Device<B>) -> BoolTensor<B> {
    let [_, _, _, rows, seen] = shape;
    let count = |range, shape: [usize; 2]| {
        let line = B::int_arange(range, device, IntDType::I32);
        B::int_expand(B::int_reshape(line, Shape::from(shape)), Shape::from([rows, seen]))
    };
    let last = B::int_reshape(
        B::int_arange(before as i64..(before + rows) as i64, device, IntDType::I32),
        Shape::from([rows, 1]),
    );
    let last = B::int_expand(last, Shape::from([rows, seen]));
    let key = count(0..seen as i64, [1, seen]);
    let stored = get_or_init_device_settings::<B>(device).bool_dtype;
    let hidden = B::int_lower(last, key, stored);
    let hidden = B::bool_reshape(hidden, Shape::from([1, 1, 1, rows, seen]));
    B::bool_expand(hidden, Shape::from(shape))
}

fn narrow<B: Backend>(x: FloatTensor<B>, dim: usize, start: usize, count: usize) -> FloatTensor<B> {
    let shape = x.shape();
    if start == 0 && count == shape[dim] {
        return x;
    }
    let range = |at: usize| if at == dim { start..start + count } else { 0..shape[at] };
    let slices: Vec<Slice> = (0..shape.num_dims()).map(|at| Slice::from(range(at))).collect();
    B::float_slice(x, &slices)
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::{Flex, ops::FloatTensorOps},
        tensor::{Device, Distribution, Tensor, TensorData, activation::softmax},
    };

    use super::*;

    fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    fn primitive(data: TensorData) -> FloatTensor<Flex> {
        Flex::float_from_data(data, &Default::default())
    }

    /// Beside the gradient that Burn finds through the textbook's operations.
    #[test]
    fn the_gradient_is_that_of_the_textbook() {
        let device = Device::flex();
        device.seed(1);
        let (batch, heads, kv_heads, head_dim) = (2, 4, 2, 8);
        // In several blocks, the last one smaller; with keys before the first query; in one.
        for (new, entries) in [(300, 300), (257, 290), (5, 5)] {
            let scale = 0.3;
            let queries = random([batch, heads, new, head_dim], &device);
            let keys = random([batch, kv_heads, entries, head_dim], &device);
            let values = random([batch, kv_heads, entries, head_dim], &device);
            let grad = random([batch, heads, new, head_dim], &device);

            let leaf = |x: &Tensor<4>| x.clone().autodiff().require_grad();
            let [q, k, v] = [&queries, &keys, &values].map(leaf);
            let each = |x: Tensor<4>| {
                let shape = [batch, kv_heads, heads / kv_heads, entries, head_dim];
                x.unsqueeze_dim::<5>(2).expand(shape).reshape([batch, heads, entries, head_dim])
            };
            let scores = q.clone().matmul(each(k.clone()).swap_dims(2, 3)) * scale;
            let mask = Tensor::<2>::ones([new, entries], &device)
                .triu((entries - new) as i64 + 1)
                .bool()
                .unsqueeze::<4>()
                .expand([batch, heads, new, entries]);
            let scores = scores.mask_fill(mask, -1e30);
            let output = softmax(scores.clone(), 3).matmul(each(v.clone()));
            let sums = scores.inner().exp().sum_dim(3).log().reshape([batch, heads, new]);
            let found = (output.clone() * grad.clone().autodiff()).sum().backward();
            let expected = [q, k, v].map(|x| x.grad(&found).unwrap().into_data());

            let state = State {
                queries: primitive(queries.into_data()),
                keys: primitive(keys.into_data()),
                values: primitive(values.into_data()),
                output: primitive(output.inner().into_data()),
                log_sum_exp: primitive(sums.into_data()),
                scale: scale as f32,
            };
            let found = gradient::<Flex>(state, primitive(grad.into_data()));
            for (found, expected) in found.into_iter().zip(expected) {
                let found = burn::tensor::read_sync(Flex::float_into_data(found)).unwrap();
                let (found, expected) =
                    (found.try_into_vec::<f32>().unwrap(), expected.try_into_vec::<f32>().unwrap());
                assert_eq!(found.len(), expected.len());
                let most = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                for (a, b) in found.iter().zip(&expected) {
                    assert!((a - b).abs() < 1e-5 * most, "{a} and {b}, most {most}");
                }
            }
        }
    }
}
