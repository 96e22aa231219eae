//! The model as it is trained: Llama's decoder over whole sequences, in modules that are named as
//! Hugging Face names their tensors. Weights are f32, products of any type.

use anyhow::{Result, ensure};
use briquette_models::{Architecture, ModelConfig, RopeScaling};
use burn::{
    module::{Module, Param},
    nn::{Embedding, RmsNorm, RmsNormConfig},
    tensor::{
        DType, Device, Int, Tensor, TensorData,
        activation::{log_softmax, silu},
        module::attention,
        ops::AttentionModuleOptions,
    },
};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use crate::data::Drawn;

#[derive(Module, Debug)]
pub struct Ember {
    pub model: Decoder,
    /// Cosines and sines of all positions, `[1, tokens, 1, head_dim / 2]`.
    cos: Tensor<4>,
    sin: Tensor<4>,
}

#[derive(Module, Debug)]
pub struct Decoder {
    pub embed_tokens: Embedding,
    pub layers: Vec<Layer>,
    norm: RmsNorm,
}

#[derive(Module, Debug)]
pub struct Layer {
    input_layernorm: RmsNorm,
    pub self_attn: Attention,
    pub post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

#[derive(Module, Debug)]
pub struct Attention {
    q_proj: Matrix,
    pub k_proj: Matrix,
    v_proj: Matrix,
    o_proj: Matrix,
    head_dim: usize,
}

#[derive(Module, Debug)]
struct FeedForward {
    gate_proj: Matrix,
    up_proj: Matrix,
    down_proj: Matrix,
}

#[derive(Module, Debug)]
pub struct Matrix {
    /// `[outputs, inputs]`
    pub weight: Param<Tensor<2>>,
}

/// Sequences of one length on a device.
pub struct Batch {
    pub tokens: Tensor<2, Int>,
    /// The token that each is to predict, `[rows, tokens, 1]`; for the last any, at no weight.
    targets: Tensor<3, Int>,
    pub weights: Tensor<2>,
}

impl Batch {
    pub fn new(rows: &[Drawn], device: &Device) -> Self {
        let shape = [rows.len(), rows[0].tokens.len()];
        let ints = |tokens: &[i32]| {
            let data = TensorData::new(tokens.to_vec(), shape);
            Tensor::<2, Int>::from_data(data, (device, DType::I32))
        };
        let all = rows.iter().flat_map(|row| &row.tokens).map(|token| *token as i32);
        let mut all: Vec<i32> = all.collect();
        let tokens = ints(&all);
        // The first of each sequence weighs nothing, and so does what the last is to predict.
        all.rotate_left(1);
        let mut weights: Vec<f32> = rows.iter().flat_map(|row| &row.weights).copied().collect();
        weights.rotate_left(1);
        let weights = Tensor::from_data(TensorData::new(weights, shape), (device, DType::F32));
        Self { tokens, targets: ints(&all).unsqueeze_dim(2), weights }
    }
}

impl Ember {
    /// Random weights: normal with deviation 0.02, smaller by the root of twice the layers where
    /// they write into the residual, so that their sum over the layers keeps its size (GPT-2); the
    /// norms 1.
    pub fn new(config: &ModelConfig, seed: u64, device: &Device) -> Result<Self> {
        ensure!(
            config.architecture == Architecture::Llama
                && config.tie_word_embeddings
                && !config.attention_bias
                && !config.mlp_bias
                && config.rope.scaling == RopeScaling::Default,
            "only Llama with a tied head, no biases and plain rotary positions is trained here"
        );
        let (hidden, inner, head_dim) =
            (config.hidden_size, config.intermediate_size, config.head_dim);
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = |outputs: usize, inputs: usize, divisor: f32| -> Param<Tensor<2>> {
            let mut values = vec![0.0_f32; outputs * inputs];
            for pair in values.chunks_mut(2) {
                // Box and Muller.
                let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt() * 0.02;
                let angle = rng.random::<f64>() * std::f64::consts::TAU;
                for (number, value) in pair.iter_mut().zip([angle.cos(), angle.sin()]) {
                    *number = (radius * value) as f32 / divisor;
                }
            }
            Param::from_data(TensorData::new(values, [outputs, inputs]), device)
        };
        let count = config.num_hidden_layers;
        let smaller = ((2 * count) as f32).sqrt();
        let embed_tokens = Embedding { weight: draw(config.vocab_size, hidden, 1.0) };
        let kinds = [
            (queries, hidden, 1.0),
            (keys, hidden, 1.0),
            (keys, hidden, 1.0),
            (hidden, queries, smaller),
            (inner, hidden, 1.0),
            (inner, hidden, 1.0),
            (hidden, inner, smaller),
        ]
        .map(|(outputs, inputs, divisor)| {
            let matrix = |_| Matrix { weight: draw(outputs, inputs, divisor) };
            (0..count).map(matrix).collect::<Vec<_>>()
        });
        let norm = || RmsNormConfig::new(hidden).with_epsilon(config.rms_norm_eps).init(device);
        let layer = |layer: usize| {
            let [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj] =
                kinds.each_ref().map(|kind| kind[layer].clone());
            Layer {
                input_layernorm: norm(),
                self_attn: Attention { q_proj, k_proj, v_proj, o_proj, head_dim },
                post_attention_layernorm: norm(),
                mlp: FeedForward { gate_proj, up_proj, down_proj },
            }
        };
        let layers = (0..count).map(layer).collect();
        let (tokens, half) = (config.max_position_embeddings, head_dim / 2);
        let angle = |at: usize| {
            let (position, pair) = (at / half, at % half);
            position as f64 * config.rope.theta.powf(-((2 * pair) as f64) / head_dim as f64)
        };
        let table = |value: fn(f64) -> f64| {
            let values: Vec<f32> = (0..tokens * half).map(|at| value(angle(at)) as f32).collect();
            let data = TensorData::new(values, [1, tokens, 1, half]);
            Tensor::from_data(data, (device, DType::F32))
        };
        let model = Decoder { embed_tokens, layers, norm: norm() };
        Ok(Self { model, cos: table(f64::cos), sin: table(f64::sin) })
    }

    /// The logits behind each token, `[rows, tokens, vocabulary]`, f32. Products are of `dtype`.
    pub fn logits(&self, tokens: Tensor<2, Int>, dtype: DType) -> Tensor<3> {
        let [_, count] = tokens.dims();
        let turn = [&self.cos, &self.sin].map(|table| table.clone().narrow(1, 0, count));
        let mut x = self.model.embed_tokens.forward(tokens);
        for layer in &self.model.layers {
            let normal = layer.input_layernorm.forward(x.clone()).cast(dtype);
            x = x + layer.self_attn.forward(normal, &turn).cast(DType::F32);
            let normal = layer.post_attention_layernorm.forward(x.clone()).cast(dtype);
            x = x + layer.mlp.forward(normal).cast(DType::F32);
        }
        let normal = self.model.norm.forward(x).cast(dtype);
        product(normal, &self.model.embed_tokens.weight).cast(DType::F32)
    }

    /// Cross entropy of each token's next one, `[rows, tokens]`, f32.
    pub fn losses(&self, batch: &Batch, dtype: DType) -> Tensor<2> {
        let logits = self.logits(batch.tokens.clone(), dtype);
        log_softmax(logits, 2).gather(2, batch.targets.clone()).squeeze_dim::<2>(2).neg()
    }
}

impl Attention {
    fn forward(&self, x: Tensor<3>, [cos, sin]: &[Tensor<4>; 2]) -> Tensor<3> {
        let [rows, tokens, _] = x.dims();
        // `[rows, tokens, heads, head_dim]`
        let heads = |matrix: &Matrix| {
            let [outputs, _] = matrix.weight.dims();
            let shape = [rows, tokens, outputs / self.head_dim, self.head_dim];
            product(x.clone(), &matrix.weight).reshape(shape)
        };
        let queries = rotate(heads(&self.q_proj), cos, sin).swap_dims(1, 2);
        let keys = rotate(heads(&self.k_proj), cos, sin).swap_dims(1, 2);
        let values = heads(&self.v_proj).swap_dims(1, 2);
        let ([_, count, ..], [_, few, ..]) = (queries.dims(), keys.dims());
        // Each key-value head as often as there are queries for it.
        let each = |x: Tensor<4>| {
            let shape = [rows, few, count / few, tokens, self.head_dim];
            x.unsqueeze_dim::<5>(2).expand(shape).reshape([rows, count, tokens, self.head_dim])
        };
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let output = attention(queries, each(keys), each(values), None, None, options);
        let output = output.swap_dims(1, 2).reshape([rows, tokens, count * self.head_dim]);
        product(output, &self.o_proj.weight)
    }
}

impl FeedForward {
    /// SwiGLU (Shazeer, 2020), the gate in f32.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(product(x.clone(), &self.gate_proj.weight).cast(DType::F32));
        let up = product(x.clone(), &self.up_proj.weight).cast(DType::F32);
        product((gate * up).cast(x.dtype()), &self.down_proj.weight)
    }
}

/// `x · weightᵀ` in the type of `x`.
fn product(x: Tensor<3>, weight: &Param<Tensor<2>>) -> Tensor<3> {
    let weight = weight.val().cast(x.dtype());
    x.matmul(weight.transpose().unsqueeze())
}

/// Rotary position embedding (Su et al., 2021) in f32, halves turned against each other as Llama's
/// checkpoints have them; Burn's own turns neighbours.
fn rotate(x: Tensor<4>, cos: &Tensor<4>, sin: &Tensor<4>) -> Tensor<4> {
    let (dtype, half) = (x.dtype(), x.dims()[3] / 2);
    let [low, high] = [0, half].map(|from| x.clone().narrow(3, from, half).cast(DType::F32));
    let turned_low = low.clone() * cos.clone() - high.clone() * sin.clone();
    let turned_high = high * cos.clone() + low * sin.clone();
    Tensor::cat(vec![turned_low, turned_high], 3).cast(dtype)
}
