//! The memory that a model and its cache will take, known before a weight is read.

use std::path::Path;

use briquette::{CacheConfig, KvCache, Policy};
use burn::tensor::{DType, Device, Tensor};

use crate::{DeviceMap, ModelConfig, Result, WeightBits, weight_plan::WeightPlan};

/// Rows that are looked for at most.
const MOST_ROWS: usize = 1 << 24;

/// What a model and its caches will take of a memory, by the headers of its files. The activations
/// of a prompt, which depend on its chunks, and the room for tokens to come are not in it.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    config: ModelConfig,
    weights: WeightPlan,
    dtype: DType,
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
        let weights = WeightPlan::of(config.clone(), path.as_ref(), &devices.into(), dtype, bits)?;
        Ok(Self { config, weights, dtype })
    }

    /// The bytes of the weights, as [`Model::weight_bytes`](crate::Model::weight_bytes) counts
    /// them. MXFP4 of a GGUF file is taken for kept in eight bits.
    pub fn weight_bytes(&self) -> usize {
        self.weights.of_devices.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The devices of the model, each once, with the bytes of the weights there.
    pub fn weights_of_devices(&self) -> &[(Device, usize)] {
        &self.weights.of_devices
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

    /// The most rows whose caches fit beside the weights, 0 for none: on each device into the bytes
    /// that `memory` says.
    ///
    /// # Errors
    /// As [`cache_bytes`](Self::cache_bytes).
    pub fn most_rows(
        &self,
        policy: &Policy,
        context: usize,
        memory: impl Fn(&Device) -> u64,
    ) -> Result<usize> {
        let cache = self.cache(policy, context)?;
        cache.bytes_after_prompt(1, context)?;
        let Some(room) = self.room(memory) else { return Ok(0) };
        Ok(most(MOST_ROWS, |rows| fits(&cache, &room, context, rows)))
    }

    /// The longest context whose cache of `rows` rows fits beside the weights, 0 for none: on each
    /// device into the bytes that `memory` says.
    ///
    /// # Errors
    /// As [`cache_bytes`](Self::cache_bytes) of one token.
    pub fn longest_context(
        &self,
        policy: &Policy,
        rows: usize,
        memory: impl Fn(&Device) -> u64,
    ) -> Result<usize> {
        self.cache_bytes(policy, 1, rows)?;
        let Some(room) = self.room(memory) else { return Ok(0) };
        Ok(most(self.config.longest_context(), |context| {
            self.cache(policy, context).is_ok_and(|cache| fits(&cache, &room, context, rows))
        }))
    }

    /// What the weights leave of the memory of each device, if they fit.
    fn room(&self, memory: impl Fn(&Device) -> u64) -> Option<Vec<(&Device, u64)>> {
        let of_devices = self.weights.of_devices.iter();
        let left = of_devices.map(|(device, bytes)| {
            let bytes = u64::try_from(*bytes).ok()?;
            Some((device, memory(device).checked_sub(bytes)?))
        });
        left.collect()
    }

    /// The cache of a model with this context.
    fn cache(&self, policy: &Policy, context: usize) -> Result<KvCache> {
        let model = self.config.clone().with_context(context)?;
        model.check_layers_to_compress(policy)?;
        let shape = model.cache_shape();
        let (device, _) = &self.weights.of_devices[0];
        let mut config = model.with_attention(CacheConfig::default().with_dtype(self.dtype));
        if policy.reads_output_weights() {
            // How many channels they write does not matter.
            let width = config.value_dim.unwrap_or(shape.head_dim);
            let inputs = shape.query_heads.saturating_mul(width);
            let weights = (0..shape.layers).map(|_| Tensor::zeros([inputs, 1], device));
            config = config.with_output_weights(weights.collect());
        }
        config.devices.clone_from(&self.weights.devices_of_cache);
        Ok(KvCache::with_config(shape, policy.clone(), config, device)?)
    }
}

/// Whether a cache behind such prompts fits into the room of each device.
fn fits(cache: &KvCache, room: &[(&Device, u64)], context: usize, rows: usize) -> bool {
    room.iter().all(|(device, room)| {
        let bytes = cache.bytes_after_prompt_on(device, rows, context).ok();
        bytes.is_some_and(|bytes| u64::try_from(bytes).is_ok_and(|bytes| bytes <= *room))
    })
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
