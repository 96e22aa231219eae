use anyhow::{Result, ensure};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{
    Kind, Layout, Weights,
    attention::attention,
    head,
    operations::{normalise, rotate, swiglu},
    weights::Gradients,
};

/// Strips that the tokens of a micro-batch are cut into, at most. The gradient of a matrix is a
/// product over all tokens with few rows and columns: cut, it keeps the whole device busy.
const STRIPS: usize = 64;

/// Sequences of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Tokens of a sequence.
    pub length: usize,
    /// Token ids, sequence after sequence.
    pub tokens: Vec<i32>,
    /// The token that each token is to predict: the next one; the last of a sequence has weight 0.
    pub targets: Vec<i32>,
    /// The weight of each target in the loss.
    pub weights: Vec<f32>,
}

impl Batch {
    /// Sequences with the weight of each of their tokens as a target.
    ///
    /// # Errors
    /// If a sequence is shorter than 2, or they differ in length.
    pub fn new(sequences: &[(Vec<u32>, Vec<f32>)]) -> Result<Self> {
        let length = sequences.first().map_or(0, |(tokens, _)| tokens.len());
        ensure!(length > 1, "a sequence of {length} tokens predicts nothing");
        let mut batch =
            Self { length, tokens: Vec::new(), targets: Vec::new(), weights: Vec::new() };
        for (tokens, weights) in sequences {
            ensure!(
                tokens.len() == length && weights.len() == length,
                "sequences of {length} and of {} tokens with {} weights in one batch",
                tokens.len(),
                weights.len()
            );
            batch.tokens.extend(tokens.iter().map(|token| *token as i32));
            batch.targets.extend(tokens[1..].iter().map(|token| *token as i32));
            batch.targets.push(0);
            batch.weights.extend(&weights[1..]);
            batch.weights.push(0.0);
        }
        Ok(batch)
    }

    /// The sum of the weights.
    pub fn weight(&self) -> f64 {
        self.weights.iter().map(|weight| f64::from(*weight)).sum()
    }

    /// Sequences.
    pub fn rows(&self) -> usize {
        self.tokens.len() / self.length
    }
}

/// The computation of one architecture on one device.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    layout: Layout,
    device: Device,
    dtype: DType,
    /// Cosines of all positions, `[1, tokens, 1, head_dim / 2]`, f32.
    cos: Tensor<4>,
    sin: Tensor<4>,
}

impl Body {
    /// A body for sequences of up to `longest` tokens. Computes in `dtype`, f32 or bf16.
    pub(crate) fn new(layout: &Layout, longest: usize, dtype: DType, device: &Device) -> Self {
        let half = layout.head_dim / 2;
        let angle = |at: usize| {
            let (position, pair) = (at / half, at % half);
            position as f64 * layout.theta.powf(-((2 * pair) as f64) / layout.head_dim as f64)
        };
        let table = |value: fn(f64) -> f64| {
            let values: Vec<f32> = (0..longest * half).map(|at| value(angle(at)) as f32).collect();
            let data = TensorData::new(values, [1, longest, 1, half]);
            Tensor::from_data(data, (device, DType::F32))
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        Self { layout: layout.clone(), device: device.clone(), dtype, cos, sin }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The gradients of the weighted sum of a batch's losses, each weight multiplied by `scale`.
    pub(crate) fn gradients(
        &self,
        weights: &Weights,
        batch: &Batch,
        scale: f64,
    ) -> Result<Gradients> {
        let weights = weights.leaves();
        let tokens = self.ints(&batch.tokens);
        let start = self.embed(&weights, tokens.clone()).autodiff().require_grad();
        let hidden = self.hidden(&weights, start.clone(), batch.length)?;

        let scaled = batch.weights.iter().map(|weight| (f64::from(*weight) * scale) as f32);
        let [strips, rows, _] = tokens.dims();
        let scaled = TensorData::new(scaled.collect::<Vec<_>>(), [strips, rows, 1]);
        let scaled = Tensor::from_data(scaled, (&self.device, DType::F32));
        let targets = self.ints(&batch.targets);
        let head = head::loss(hidden.clone().inner(), &weights.head, targets, scaled);

        // The gradient of this sum in the body is that of the loss.
        let surrogate = (hidden * head.hidden.clone().autodiff()).sum();
        let mut found = surrogate.backward();
        let missing = || anyhow::anyhow!("a weight has no gradient");
        let of_start = start.grad_remove(&mut found).ok_or_else(missing)?;
        let vocabulary = self.layout.vocabulary;
        let embedding = head::of_embedding(of_start, tokens, vocabulary, self.dtype);
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            let mut gradients = Vec::with_capacity(layer.len());
            for weight in layer {
                gradients.push(weight.grad_remove(&mut found).ok_or_else(missing)?);
            }
            layers.push(gradients.try_into().map_err(|_| missing())?);
        }
        Ok(Gradients::new(head, embedding, layers))
    }

    /// The loss of each target, in the order of the tokens.
    pub(crate) fn token_losses(&self, weights: &Weights, batch: &Batch) -> Result<Vec<f32>> {
        let start = self.embed(weights, self.ints(&batch.tokens));
        let hidden = self.hidden(weights, start, batch.length)?;
        let losses = head::token_losses(hidden, &weights.head, self.ints(&batch.targets));
        Ok(losses.try_into_data()?.convert::<f32>().try_into_vec::<f32>()?)
    }

    /// The likeliest next token at some places of a batch, counted through all of its sequences.
    pub(crate) fn predictions(
        &self,
        weights: &Weights,
        batch: &Batch,
        places: &[usize],
    ) -> Result<Vec<i32>> {
        let logits = self.logits(weights, batch, places)?;
        Ok(logits.argmax(1).try_into_data()?.convert::<i32>().try_into_vec::<i32>()?)
    }

    /// The logits at some places of a batch, counted through all of its sequences:
    /// `[places, vocabulary]`, f32.
    pub(crate) fn logits(
        &self,
        weights: &Weights,
        batch: &Batch,
        places: &[usize],
    ) -> Result<Tensor<2>> {
        let start = self.embed(weights, self.ints(&batch.tokens));
        let hidden = self.hidden(weights, start, batch.length)?;
        let [strips, rows, channels] = hidden.dims();
        let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
        let places = TensorData::new(places.clone(), [places.len()]);
        let places = Tensor::from_data(places, (&self.device, DType::I32));
        let chosen = hidden.reshape([strips * rows, channels]).select(0, places);
        Ok(head::logits(chosen.unsqueeze(), &weights.head).cast(DType::F32).squeeze_dim(0))
    }

    /// `[strips, rows, 1]`
    fn ints(&self, values: &[i32]) -> Tensor<3, Int> {
        let strips = strips(values.len());
        let data = TensorData::new(values.to_vec(), [strips, values.len() / strips, 1]);
        Tensor::from_data(data, (&self.device, DType::I32))
    }

    /// `[strips, rows, hidden]`, f32.
    fn embed(&self, weights: &Weights, tokens: Tensor<3, Int>) -> Tensor<3> {
        let [strips, rows, _] = tokens.dims();
        let chosen = weights.embedding.clone().select(0, tokens.reshape([strips * rows]));
        chosen.cast(DType::F32).reshape([strips, rows, self.layout.hidden])
    }

    /// `[strips, rows, hidden]` -> the last norm's output without its weight, in the type of the
    /// computation.
    fn hidden(&self, weights: &Weights, start: Tensor<3>, length: usize) -> Result<Tensor<3>> {
        let Layout { epsilon, .. } = self.layout;
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.clone().narrow(1, 0, length));
        let mut x = start;
        for layer in &weights.layers {
            let of = |kind: Kind| layer[kind as usize].clone();
            let normal = normalise(x.clone(), epsilon, self.dtype);
            let heads = |kind, count: usize| {
                let shape = [0, length, count, self.layout.head_dim];
                let projected = normal.clone().matmul(of(kind));
                let [strips, rows, _] = projected.dims();
                projected.reshape([strips * rows / length, shape[1], shape[2], shape[3]])
            };
            let (count, few) = (self.layout.heads, self.layout.kv_heads);
            let queries = rotate(heads(Kind::Query, count), cos.clone(), sin.clone());
            let keys = rotate(heads(Kind::Key, few), cos.clone(), sin.clone());
            let values = heads(Kind::Value, few);
            let [queries, keys, values] = [queries, keys, values].map(|x| x.swap_dims(1, 2));
            let attended = attention(queries, keys, values)?.swap_dims(1, 2);
            let [strips, rows, _] = x.dims();
            let attended = attended.reshape([strips, rows, count * self.layout.head_dim]);
            x = x + attended.matmul(of(Kind::Output)).cast(DType::F32);

            let normal = normalise(x.clone(), epsilon, self.dtype);
            let gate = normal.clone().matmul(of(Kind::Gate));
            let inner = swiglu(gate, normal.matmul(of(Kind::Up)));
            x = x + inner.matmul(of(Kind::Down)).cast(DType::F32);
        }
        Ok(normalise(x, epsilon, self.dtype))
    }
}

/// The most strips, a power of two, that leave each at least a thousand tokens.
fn strips(tokens: usize) -> usize {
    let mut strips = 1;
    while strips < STRIPS && tokens.is_multiple_of(2 * strips) && tokens / (2 * strips) >= 1024 {
        strips *= 2;
    }
    strips
}
