use std::ops::Range;

use anyhow::{Result, ensure};
use briquette_models::{Architecture, ModelConfig, RopeScaling};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde::{Deserialize, Serialize};

/// Kind of a layer's matrix, in the order of [`Layout::KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Projection of the heads into the residual.
    Output,
    /// The gate of the feed-forward network.
    Gate,
    /// The other side of the feed-forward network, which the gate multiplies.
    Up,
    /// Projection of the feed-forward network into the residual.
    Down,
}

/// Places of the weights in two flat vectors: one of the matrices, one of the norms' weights.
///
/// The optimiser then updates two vectors instead of 74 tensors, and the two differ in their weight
/// decay. Matrices lie as Hugging Face has them, `[outputs, inputs]` row after row: the token
/// embedding first, then kind by kind, layer by layer. The norms follow each other as a token meets
/// them: before attention and before the feed-forward network of each layer, then the last one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Channels of the residual stream.
    pub hidden: usize,
    /// Channels inside the feed-forward network.
    pub inner: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub epsilon: f32,
    /// The base of the rotary frequencies.
    pub theta: f64,
}

/// The weights that training changes, f32.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The matrices, `[Layout::matrices]`.
    pub matrices: Tensor<1>,
    /// The norms' weights, `[Layout::norms]`.
    pub norms: Tensor<1>,
}

impl Layout {
    /// The matrices of a layer.
    pub const KINDS: [Kind; 7] =
        [Kind::Query, Kind::Key, Kind::Value, Kind::Output, Kind::Gate, Kind::Up, Kind::Down];

    /// The layout of a configuration.
    ///
    /// # Errors
    /// If the configuration has what this program does not train: biases, a head of its own,
    /// stretched positions.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        ensure!(
            config.architecture == Architecture::Llama,
            "only models of the llama architecture are trained here, not {:?}",
            config.architecture
        );
        ensure!(
            config.tie_word_embeddings && !config.attention_bias && !config.mlp_bias,
            "only models without biases and with a head tied to the embedding are trained here"
        );
        ensure!(
            config.rope.scaling == RopeScaling::Default,
            "only plain rotary positions are trained here"
        );
        Ok(Self {
            vocabulary: config.vocab_size,
            hidden: config.hidden_size,
            inner: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            epsilon: config.rms_norm_eps as f32,
            theta: config.rope.theta,
        })
    }

    /// `[outputs, inputs]` of a matrix.
    pub fn shape(&self, kind: Kind) -> [usize; 2] {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        match kind {
            Kind::Query => [queries, self.hidden],
            Kind::Key | Kind::Value => [keys, self.hidden],
            Kind::Output => [self.hidden, queries],
            Kind::Gate | Kind::Up => [self.inner, self.hidden],
            Kind::Down => [self.hidden, self.inner],
        }
    }

    /// Place of the token embedding among the matrices.
    pub fn embedding(&self) -> Range<usize> {
        0..self.vocabulary * self.hidden
    }

    /// Place of a matrix among the matrices.
    pub fn matrix(&self, layer: usize, kind: Kind) -> Range<usize> {
        let size = |kind| self.shape(kind).iter().product::<usize>();
        let before = Self::KINDS[..kind as usize].iter().map(|kind| size(*kind) * self.layers);
        let start = self.embedding().end + before.sum::<usize>() + layer * size(kind);
        start..start + size(kind)
    }

    /// Place of a norm's weight among the norms: two per layer, then the last.
    pub fn norm(&self, index: usize) -> Range<usize> {
        index * self.hidden..(index + 1) * self.hidden
    }

    /// Numbers in all matrices.
    pub fn matrices(&self) -> usize {
        self.matrix(self.layers.saturating_sub(1), Kind::Down).end
    }

    /// Numbers in all norms' weights.
    pub fn norms(&self) -> usize {
        (2 * self.layers + 1) * self.hidden
    }

    /// Every tensor as Hugging Face names it: name, shape, whether it is a norm's weight, and its
    /// place.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, bool, Range<usize>)> {
        let name = |kind| match kind {
            Kind::Query => "self_attn.q_proj",
            Kind::Key => "self_attn.k_proj",
            Kind::Value => "self_attn.v_proj",
            Kind::Output => "self_attn.o_proj",
            Kind::Gate => "mlp.gate_proj",
            Kind::Up => "mlp.up_proj",
            Kind::Down => "mlp.down_proj",
        };
        let embedding = vec![self.vocabulary, self.hidden];
        let mut tensors =
            vec![("model.embed_tokens.weight".into(), embedding, false, self.embedding())];
        for layer in 0..self.layers {
            for kind in Self::KINDS {
                let full = format!("model.layers.{layer}.{}.weight", name(kind));
                tensors.push((full, self.shape(kind).into(), false, self.matrix(layer, kind)));
            }
            for (index, norm) in ["input_layernorm", "post_attention_layernorm"].iter().enumerate()
            {
                let full = format!("model.layers.{layer}.{norm}.weight");
                tensors.push((full, vec![self.hidden], true, self.norm(2 * layer + index)));
            }
        }
        let last = self.norm(2 * self.layers);
        tensors.push(("model.norm.weight".into(), vec![self.hidden], true, last));
        tensors
    }
}

impl Parameters {
    /// Random weights: normal with deviation 0.02, smaller by the root of twice the layers where
    /// they write into the residual, so that their sum over the layers keeps its size (GPT-2); the
    /// norms 1.
    pub fn random(layout: &Layout, seed: u64, device: &Device) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut matrices = vec![0.0_f32; layout.matrices()];
        for pair in matrices.chunks_mut(2) {
            // Box and Muller.
            let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt() * 0.02;
            let angle = rng.random::<f64>() * std::f64::consts::TAU;
            for (number, value) in pair.iter_mut().zip([angle.cos(), angle.sin()]) {
                *number = (radius * value) as f32;
            }
        }
        let smaller = ((2 * layout.layers) as f32).sqrt();
        for layer in 0..layout.layers {
            for kind in [Kind::Output, Kind::Down] {
                matrices[layout.matrix(layer, kind)].iter_mut().for_each(|x| *x /= smaller);
            }
        }
        Self::from_values(matrices, vec![1.0; layout.norms()], device)
    }

    /// Weights as they lie in the layout.
    pub fn from_values(matrices: Vec<f32>, norms: Vec<f32>, device: &Device) -> Self {
        let flat = |values: Vec<f32>| {
            let count = values.len();
            Tensor::from_data(TensorData::new(values, [count]), (device, DType::F32))
        };
        Self { matrices: flat(matrices), norms: flat(norms) }
    }
}
