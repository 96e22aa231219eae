//! The memory that a model and its cache will take, known before a weight is read.

use std::{path::Path, sync::Arc};

use briquette::{CacheConfig, KvCache, Policy};
use burn::tensor::{DType, Device, Tensor};

use crate::{DeviceMap, ModelConfig, Result, WeightBits, weight_plan::weight_bytes};

/// Rows that are looked for at most.
const MOST_ROWS: usize = 1 << 24;

/// What a model and its caches will take of a memory, by the headers of its files. The activations
/// of a prompt, which depend on its chunks, and the room for tokens to come are not in it.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    config: ModelConfig,
    weight_bytes: usize,
    dtype: DType,
    device: Device,
    /// The device of each layer of a cache, where there are several.
    devices: Option<Arc<[Device]>>,
}

impl MemoryPlan {
    /// The plan of a model that would be [loaded](crate::Model::load_as) so, and
    /// [quantized](crate::Model::quantize_weights) to `bits`. Of the files the headers are read,
    /// and the embedding and the head where both are stored and may be one.
    ///
    /// # Errors
    /// As [`Model::load_as`](crate::Model::load_as).
    pub fn of(
        config: ModelConfig,
        path: impl AsRef<Path>,
        devices: impl Into<DeviceMap>,
        dtype: DType,
        bits: Option<WeightBits>,
    ) -> Result<Self> {
        let map = devices.into();
        let device = map.first().clone();
        let (weight_bytes, devices) =
            weight_bytes(config.clone(), path.as_ref(), &map, dtype, bits)?;
        Ok(Self { config, weight_bytes, dtype, device, devices })
    }

    /// The bytes of the weights, as [`Model::weight_bytes`](crate::Model::weight_bytes) counts
    /// them. MXFP4 of a GGUF file is taken for kept in eight bits.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The bytes of a cache behind a prompt of `context` tokens in each of `rows` rows, in a model
    /// [with that context](ModelConfig::with_context): [`KvCache::bytes_after_prompt`].
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for a context that the model cannot
    /// have, [`Error::NoLayerToCompress`](crate::Error::NoLayerToCompress), and
    /// [`Error::Cache`](crate::Error::Cache) for a policy that the model or the plan refuses.
    pub fn cache_bytes(&self, policy: &Policy, context: usize, rows: usize) -> Result<usize> {
        Ok(self.cache(policy, context)?.bytes_after_prompt(rows, context)?)
    }

    /// The most rows whose caches fit into `memory` bytes beside the weights, 0 for none.
    ///
    /// # Errors
    /// As [`cache_bytes`](Self::cache_bytes).
    pub fn most_rows(&self, policy: &Policy, context: usize, memory: u64) -> Result<usize> {
        let cache = self.cache(policy, context)?;
        cache.bytes_after_prompt(1, context)?;
        let of_rows = |rows| cache.bytes_after_prompt(rows, context).ok();
        Ok(most(MOST_ROWS, |rows| self.fits(of_rows(rows), memory)))
    }

    /// The longest context whose cache of `rows` rows fits into `memory` bytes beside the weights,
    /// 0 for none.
    ///
    /// # Errors
    /// As [`cache_bytes`](Self::cache_bytes) of one token.
    pub fn longest_context(&self, policy: &Policy, rows: usize, memory: u64) -> Result<usize> {
        self.cache_bytes(policy, 1, rows)?;
        let of_tokens = |tokens| self.cache_bytes(policy, tokens, rows).ok();
        Ok(most(self.config.longest_context(), |tokens| self.fits(of_tokens(tokens), memory)))
    }

    fn fits(&self, cache: Option<usize>, memory: u64) -> bool {
        let all = cache.map(|bytes| bytes.saturating_add(self.weight_bytes));
        all.is_some_and(|all| u64::try_from(all).is_ok_and(|all| all <= memory))
    }

    /// The cache of a model with this context.
    fn cache(&self, policy: &Policy, context: usize) -> Result<KvCache> {
        let model = self.config.clone().with_context(context)?;
        model.check_layers_to_compress(policy)?;
        let shape = model.cache_shape();
        let mut config = model.with_attention(CacheConfig::default().with_dtype(self.dtype));
        if policy.reads_output_weights() {
            // How many channels they write does not matter.
            let width = config.value_dim.unwrap_or(shape.head_dim);
            let inputs = shape.query_heads.saturating_mul(width);
            let weights = (0..shape.layers).map(|_| Tensor::zeros([inputs, 1], &self.device));
            config = config.with_output_weights(weights.collect());
        }
        config.devices.clone_from(&self.devices);
        Ok(KvCache::with_config(shape, policy.clone(), config, &self.device)?)
    }
}

/// The largest number up to `limit` that fits, where all below it do; 0 if none does. Larger ones
/// are tried later, as a store of many rows takes long to make.
fn most(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, 1);
    while high <= limit && fits(high) {
        (low, high) = (high, high.saturating_mul(2));
    }
    high = high.min(limit.saturating_add(1));
    while high.saturating_sub(low) > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}
