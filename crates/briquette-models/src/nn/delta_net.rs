use briquette::RecurrentState;
use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{
        DType, Int, Tensor, TensorData,
        activation::{relu, sigmoid, silu},
    },
};

use crate::{
    DeltaNetConfig, Result,
    nn::{
        attend::LayerAttention,
        build::Build,
        delta_rule::{DeltaInput, gated_delta_rule},
        projection::{Projection, Projections},
        rms_norm::RmsNorm,
    },
};

/// How the path of the weights ends that tell how much of a state is kept, and written to.
pub(crate) const GATES_OF_STATE: &str = ".in_proj_ba";

/// Linear attention with a gated delta rule behind a causal convolution (Yang et al., 2024,
/// [arXiv:2412.06464](https://arxiv.org/abs/2412.06464)), as Qwen3-Next has it. Its state is with
/// the cache.
#[derive(Module, Debug)]
pub(crate) struct DeltaNet {
    /// Queries, keys, values and output gates, key head by key head.
    in_proj_qkvz: Projection,
    /// The strength of writing and the decay, key head by key head.
    in_proj_ba: Projection,
    conv1d: Convolution,
    dt_bias: Param<Tensor<1>>,
    a_log: Param<Tensor<1>>,
    norm: RmsNorm,
    out_proj: Projection,
    #[module(skip)]
    dims: DeltaNetConfig,
}

/// A causal convolution of each channel by itself, `[channels, 1, kernel]`.
#[derive(Module, Debug)]
struct Convolution {
    weight: Param<Tensor<3>>,
}

impl DeltaNet {
    pub(crate) fn new(build: Build<'_>, dims: &DeltaNetConfig) -> Self {
        let hidden = build.config.hidden_size;
        let (keys, values, heads) = (dims.key_channels(), dims.value_channels(), dims.value_heads);
        let zeros = |length| Initializer::Zeros.init([length], build.device);
        let kernel = [dims.state().channels, 1, dims.kernel];
        Self {
            in_proj_qkvz: build.linear(hidden, 2 * keys + 2 * values, false),
            in_proj_ba: build.linear(hidden, 2 * heads, false),
            conv1d: Convolution { weight: Initializer::Zeros.init(kernel, build.device) },
            dt_bias: zeros(heads),
            a_log: zeros(heads),
            norm: build.plain_norm(dims.value_dim),
            out_proj: build.linear(values, hidden, false),
            dims: dims.clone(),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        vec![
            ("in_proj_qkvz".into(), &mut self.in_proj_qkvz),
            ("in_proj_ba".into(), &mut self.in_proj_ba),
            ("out_proj".into(), &mut self.out_proj),
        ]
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        let ([batch, tokens, _], dtype) = (x.dims(), x.dtype());
        let DeltaNetConfig { key_heads, value_heads, key_dim, value_dim, .. } = self.dims;
        let group = value_heads / key_heads;
        let by_head = |x: Tensor<3>| {
            let [_, _, channels] = x.dims();
            x.cast(DType::F32).reshape([batch, tokens, key_heads, channels / key_heads])
        };
        let qkvz = by_head(self.in_proj_qkvz.forward(x.clone())?);
        let gates = by_head(self.in_proj_ba.forward(x)?);
        let part = |x: &Tensor<4>, start, channels| -> Tensor<3> {
            x.clone().narrow(3, start, channels).reshape([batch, tokens, key_heads * channels])
        };
        let values = group * value_dim;
        let [q, k] = [0, key_dim].map(|start| part(&qkvz, start, key_dim));
        let [v, z] = [0, values].map(|behind| part(&qkvz, 2 * key_dim + behind, values));
        let [strength, decay] = [0, group].map(|start| part(&gates, start, group));
        let new = NewTokens {
            channels: Tensor::cat(vec![q, k, v], 2).swap_dims(1, 2),
            strength: sigmoid(strength),
            decay: self.decay(decay),
        };

        let step = Box::new(|state: RecurrentState, padding: &[usize]| {
            Ok(self.recur(new.after_padding(padding, &state.inputs), state))
        });
        let found = at.attend.update_state(at.layer, [batch, tokens], step)?;
        let found = self.norm.forward(found.swap_dims(1, 2).cast(dtype))?;
        let gated =
            found.cast(DType::F32) * silu(z.reshape([batch, tokens, value_heads, value_dim]));
        self.out_proj.forward(gated.cast(dtype).reshape([batch, tokens, value_heads * value_dim]))
    }

    /// The logarithm of what each head keeps of its state, `[batch, tokens, value_heads]`.
    fn decay(&self, x: Tensor<3>) -> Tensor<3> {
        let [bias, rate] = [&self.dt_bias, &self.a_log].map(|x| x.val().cast(DType::F32));
        let x = x + bias.unsqueeze();
        // Softplus.
        let step = relu(x.clone()) + x.abs().neg().exp().log1p();
        step * rate.exp().neg().unsqueeze()
    }

    /// The output, `[batch, value_heads, tokens, value_dim]`, and the state behind the new tokens,
    /// whose channels have those of the state before them.
    fn recur(&self, new: NewTokens, state: RecurrentState) -> (Tensor<4>, RecurrentState) {
        let DeltaNetConfig { key_heads, value_heads, key_dim, value_dim, kernel, .. } = self.dims;
        let NewTokens { channels: all, strength, decay } = new;
        let [batch, channels, columns] = all.dims();
        let (before, tokens) = (kernel - 1, columns + 1 - kernel);
        let weight = self.conv1d.weight.val().cast(DType::F32).swap_dims(0, 1);
        let tap = |at| all.clone().narrow(2, at, tokens) * weight.clone().narrow(2, at, 1);
        let mixed = (1..kernel).fold(tap(0), |sum, at| sum + tap(at));
        let mixed = silu(mixed).swap_dims(1, 2);
        let keys = self.dims.key_channels();
        let heads = |start, count, channels| -> Tensor<4> {
            let part = mixed.clone().narrow(2, start, count * channels);
            part.reshape([batch, tokens, count, channels]).swap_dims(1, 2)
        };
        let group = value_heads / key_heads;
        let unit = |start| {
            let x = heads(start, key_heads, key_dim);
            let x = x.clone() * (x.square().sum_dim(3) + 1e-6).sqrt().recip();
            let repeated =
                x.unsqueeze_dim::<5>(2).expand([batch, key_heads, group, tokens, key_dim]);
            repeated.reshape([batch, value_heads, tokens, key_dim])
        };
        let per_head = |x: Tensor<3>| x.swap_dims(1, 2).unsqueeze_dim::<4>(3);
        let input = DeltaInput {
            queries: unit(0) * (key_dim as f64).powf(-0.5),
            keys: unit(keys),
            values: heads(2 * keys, value_heads, value_dim),
            strength: per_head(strength),
            decay: per_head(decay),
        };
        let (found, memory) = gated_delta_rule(input, state.memory);
        let inputs = all.narrow(2, columns - before, before);
        debug_assert_eq!(inputs.dims(), [batch, channels, before]);
        (found, RecurrentState { inputs, memory })
    }
}

/// What a layer receives of new tokens, in f32.
struct NewTokens {
    /// Inputs of the convolution, `[batch, channels, tokens]`.
    channels: Tensor<3>,
    /// `[batch, tokens, value_heads]`
    strength: Tensor<3>,
    /// `[batch, tokens, value_heads]`
    decay: Tensor<3>,
}

impl NewTokens {
    /// The tokens with the inputs before them, `[batch, channels, columns]`. Padding, so many first
    /// columns of each row, neither writes nor decays, and lies before these inputs.
    fn after_padding(self, padding: &[usize], before: &Tensor<3>) -> Self {
        let [_, channels, columns] = before.dims();
        let (batch, tokens) = (padding.len(), self.channels.dims()[2]);
        let all = Tensor::cat(vec![before.clone(), self.channels], 2);
        if padding.iter().all(|&padding| padding == 0) {
            return Self { channels: all, ..self };
        }
        let device = all.device();
        let length = columns + tokens;
        let from = padding.iter().flat_map(|&padding| {
            let (new, held) = (columns..columns + padding, 0..columns);
            new.chain(held).chain(columns + padding..length).map(|column| column as i64)
        });
        let from = TensorData::new(from.collect::<Vec<_>>(), [batch, 1, length]);
        let from = Tensor::<3, Int>::from_data(from, &device).expand([batch, channels, length]);
        let is_token = padding.iter().flat_map(|&padding| {
            (0..tokens).map(move |column| if column < padding { 0.0 } else { 1.0 })
        });
        let is_token = TensorData::new(is_token.collect::<Vec<f32>>(), [batch, tokens, 1]);
        let is_token = Tensor::<3>::from_data(is_token, (&device, DType::F32));
        Self {
            channels: all.gather(2, from),
            strength: self.strength * is_token.clone(),
            decay: self.decay * is_token,
        }
    }
}
