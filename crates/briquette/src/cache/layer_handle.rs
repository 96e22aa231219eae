//! A layer of a cache as an object of its own.

use burn::tensor::{Device, Tensor};

use super::{CacheConfig, KvCache, call::answer::VisibleEntries};
use crate::{Budget, CacheShape, Error, Policy, Result, position::PositionEncoding};

/// A layer of a cache, for models that hand each attention module a cache of its own.
///
/// See [`KvCache::layer`].
#[derive(Debug)]
pub struct CacheLayer<'a> {
    cache: &'a mut KvCache,
    layer: usize,
}

impl KvCache {
    /// Lends a layer, for an attention module that takes a cache and no index.
    ///
    /// ```
    /// use briquette::{Budget, CacheShape, KvCache, Policy, position::Rotated};
    /// # use burn::tensor::Tensor;
    /// # fn main() -> briquette::Result<()> {
    /// # let device = briquette::device::open("flex")?;
    /// # let shape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// # let x = |heads| Tensor::<4>::zeros([1, heads, 9, 16], &device);
    /// let mut cache = KvCache::new(shape, Policy::snapkv(Budget::Tokens(64)), &device)?;
    /// for layer in 0..3 {
    ///     let mut layer = cache.layer(layer)?;
    ///     // In the module: `rope.apply(queries, layer.tokens_seen())`.
    ///     assert!(layer.tokens_seen().is_empty());
    ///     layer.attend(x(4), x(2), x(2), &Rotated)?;
    ///     assert_eq!(layer.tokens_seen(), [9]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn layer(&mut self, layer: usize) -> Result<CacheLayer<'_>> {
        self.layer_cache(layer)?;
        Ok(CacheLayer { cache: self, layer })
    }

    /// Creates a cache of one layer for each layer of `shape`, for models that own a cache object
    /// per layer. Each of them is called as layer 0.
    ///
    /// Output weights, sinks, windows, layer shapes and devices in `config` are those of all
    /// layers, and each cache gets its own.
    ///
    /// # Errors
    /// [`Error::LayersTogether`] for a policy that looks at all layers: one that shares budgets out
    /// among them, or reads a profile of the model, or a memory ceiling or a budget in bytes, which
    /// are for all layers; for a model with recurrent layers. Otherwise those of
    /// [`with_config`](Self::with_config).
    pub fn per_layer(
        shape: CacheShape,
        policy: &Policy,
        config: &CacheConfig,
        device: &Device,
    ) -> Result<Vec<Self>> {
        // What concerns all layers is checked before anything is shared out.
        Self::with_config(shape, policy.clone(), config.clone(), device)?;
        if let Some(what) = policy.spans_layers(config) {
            return Err(Error::LayersTogether { policy: policy.name().to_owned(), what });
        }
        let of_layer = |layer: usize| {
            let weights = config.output_weights.as_ref().and_then(|all| all.get(layer));
            let output_weights = weights.map(|weight| vec![weight.clone()].into());
            let sinks = config.sinks.as_ref().and_then(|all| all.get(layer));
            let devices = config.devices.clone();
            let config = CacheConfig {
                output_weights,
                sinks: sinks.map(|sinks| vec![sinks.clone()].into()),
                windows: config.windows.as_ref().map(|_| vec![config.window(layer)].into()),
                layer_shapes: config.layer_shapes_of(layer),
                devices: None,
                ..config.clone()
            };
            let device = devices.as_ref().and_then(|all| all.get(layer)).unwrap_or(device);
            Self::with_config(CacheShape { layers: 1, ..shape }, policy.clone(), config, device)
        };
        (0..shape.layers).map(of_layer).collect()
    }
}

impl Policy {
    /// What it looks at in all layers, so that a cache per layer cannot follow it.
    fn spans_layers(&self, config: &CacheConfig) -> Option<&'static str> {
        if self.allocator().spans_layers() {
            return Some("its allocator shares the budget out among layers");
        }
        if self.reads_profile() {
            return Some("it reads a profile of all layers");
        }
        if self.second_pass().is_some() {
            return Some("it compresses all layers by one second pass");
        }
        if matches!(self.budget(), Some(Budget::Bytes(_))) {
            return Some("its budget in bytes is for all layers");
        }
        if !config.recurrent_shapes().is_empty() {
            return Some("its recurrent layers are beside all others");
        }
        config.memory_ceiling.map(|_| "the memory ceiling is for all layers")
    }
}

impl CacheLayer<'_> {
    /// Calls [`KvCache::attend`] of this layer.
    ///
    /// # Errors
    /// Those of [`KvCache::attend`].
    pub fn attend(
        &mut self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        self.cache.attend(self.layer, queries, keys, values, encoding)
    }

    /// Calls [`KvCache::attend_keys`] of this layer.
    ///
    /// # Errors
    /// Those of [`KvCache::attend_keys`].
    pub fn attend_keys(
        &mut self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        self.cache.attend_keys(self.layer, queries, keys, encoding)
    }

    /// Calls [`KvCache::update`] of this layer.
    ///
    /// # Errors
    /// Those of [`KvCache::update`].
    pub fn update(&mut self, keys: Tensor<4>, values: Tensor<4>) -> Result<VisibleEntries> {
        self.cache.update(self.layer, keys, values)
    }

    /// Calls [`KvCache::update_with`] of this layer.
    ///
    /// # Errors
    /// Those of [`KvCache::update_with`].
    pub fn update_with(
        &mut self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<VisibleEntries> {
        self.cache.update_with(self.layer, queries, keys, values, encoding)
    }

    /// Calls [`KvCache::read`] of this layer.
    ///
    /// # Errors
    /// Those of [`KvCache::read`].
    pub fn read(&self, queries: Tensor<4>, encoding: &dyn PositionEncoding) -> Result<Tensor<4>> {
        self.cache.read(self.layer, queries, encoding)
    }

    /// Returns the number of tokens that this layer has seen, per batch row, padding not counted;
    /// empty before the first token.
    pub fn tokens_seen(&self) -> &[usize] {
        self.cache.layers[self.layer].progress().seen()
    }

    /// Returns the number of columns that this layer has seen, per batch row, padding included;
    /// empty before the first token.
    pub fn columns_seen(&self) -> &[usize] {
        self.cache.layers[self.layer].progress().columns()
    }
}
