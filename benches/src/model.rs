//! Models with random weights.

use anyhow::{Result, bail};
use briquette_models::{DeviceMap, Model, ModelConfig};
use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Tensor},
};

/// The dimensions of a Llama model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Decoder layers.
    pub layers: usize,
    /// Channels of the residual stream.
    pub hidden: usize,
    /// Channels inside the feed-forward network.
    pub inner: usize,
    /// Query heads.
    pub query_heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of context.
    pub context: usize,
}

impl Dimensions {
    /// Llama 3 8B.
    pub const LLAMA_3_8B: Self = Self {
        layers: 32,
        hidden: 4096,
        inner: 14_336,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocabulary: 128_256,
        context: 65_536,
    };

    /// Llama 3 70B.
    pub const LLAMA_3_70B: Self = Self {
        layers: 80,
        hidden: 8192,
        inner: 28_672,
        query_heads: 64,
        kv_heads: 8,
        head_dim: 128,
        vocabulary: 128_256,
        context: 65_536,
    };

    /// Llama 2 7B.
    pub const LLAMA_2_7B: Self = Self {
        layers: 32,
        hidden: 4096,
        inner: 11_008,
        query_heads: 32,
        kv_heads: 32,
        head_dim: 128,
        vocabulary: 32_000,
        context: 16_384,
    };

    /// Llama 3.2 1B.
    pub const LLAMA_3_1B: Self = Self {
        layers: 16,
        hidden: 2048,
        inner: 8192,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocabulary: 128_256,
        context: 65_536,
    };

    /// SmolLM2-135M, with a longer context.
    pub const SMOLLM2_135M: Self = Self {
        layers: 30,
        hidden: 576,
        inner: 1536,
        query_heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        context: 65_536,
    };

    /// The embedded model, `models/ember-7m`.
    pub const EMBER_7M: Self = Self {
        layers: 8,
        hidden: 256,
        inner: 768,
        query_heads: 8,
        kv_heads: 2,
        head_dim: 32,
        vocabulary: 4096,
        context: 4096,
    };

    /// Small enough for anything.
    pub const TINY: Self = Self {
        layers: 2,
        hidden: 64,
        inner: 128,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocabulary: 256,
        context: 4096,
    };

    /// Parameters of such a model.
    pub fn parameters(&self) -> usize {
        let attention = 2 * self.hidden * (self.query_heads + self.kv_heads) * self.head_dim;
        let layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden;
        self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden
    }

    /// Bytes of the keys and values of a token, in all layers.
    pub fn token_bytes(&self, dtype: DType) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * dtype.size()
    }

    fn config(&self) -> Result<ModelConfig> {
        let text = serde_json::json!({
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
        });
        Ok(ModelConfig::from_json(&text.to_string())?)
    }
}

/// The type of that name.
///
/// # Errors
/// If it is none of bf16, f16 and f32.
pub fn dtype_of(name: &str) -> Result<DType> {
    match name {
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        "f32" => Ok(DType::F32),
        other => bail!("`{other}` is none of bf16, f16 and f32"),
    }
}

/// A Llama of these dimensions with random weights of `dtype`, made on devices. No more than one
/// tensor at a time is there in f32 too.
///
/// # Errors
/// If the dimensions do not fit together.
pub fn random_llama(
    dimensions: Dimensions,
    dtype: DType,
    devices: impl Into<DeviceMap>,
) -> Result<Model> {
    let model = Model::new(dimensions.config()?, devices)?;
    let model = model.map(&mut Cast(dtype)).merge_projections().with_k_major_weights();
    // What was there in f32 goes.
    model.clean_up();
    Ok(model)
}

/// Casts parameters, which are made when they are first looked at: here, one after another. They
/// lie where Burn puts those that it loads, apart from what comes and goes.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let device = tensor.device();
            device.memory_persistent_allocations(tensor, |tensor| tensor.cast(self.0))
        })
    }
}
