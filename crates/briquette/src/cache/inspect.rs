//! Methods that report the state of a cache.

use burn::tensor::{DType, Device, Tensor};

use super::{
    CacheConfig, KvCache, call::compress::distinct, layer::LayerCache, progress::Progress,
    recurrent::RecurrentLayer,
};
use crate::{
    CacheShape, Error, Policy, Result,
    ops::{Entries, Fallback, Window, expand_clusters},
};

impl KvCache {
    /// Returns the number of tokens that every layer has seen, per batch row, padding not counted;
    /// empty before the first token.
    pub fn tokens_seen(&self) -> Vec<usize> {
        let seen = self.all_progress().map(Progress::seen);
        seen.min_by_key(|seen| seen.iter().sum::<usize>()).unwrap_or_default().to_vec()
    }

    /// Returns the number of columns that every layer has seen, per batch row: its tokens and its
    /// padding. A model that rotates the rows of a padded batch from one start begins the next call
    /// there. Empty before the first token.
    pub fn columns_seen(&self) -> Vec<usize> {
        let seen = self.all_progress().map(Progress::columns);
        seen.min_by_key(|seen| seen.first().copied()).unwrap_or_default().to_vec()
    }

    /// Returns the number of tokens that the longest head of a layer keeps, per batch row; empty
    /// before the first token. See [`kept_by_head`](Self::kept_by_head).
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn tokens_kept(&self, layer: usize) -> Result<Vec<usize>> {
        let longest = |heads: Vec<usize>| heads.into_iter().max().unwrap_or(0);
        Ok(self.kept_by_head(layer)?.into_iter().map(longest).collect())
    }

    /// Returns the number of tokens that each head of a layer keeps, `[batch][kv_head]`; empty
    /// before the first token. Where tokens share entries (EMS), it is read from the device.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn kept_by_head(&self, layer: usize) -> Result<Vec<Vec<usize>>> {
        if self.policy_of(layer).reducer().makes_clusters() {
            let positions = self.kept_positions(layer)?;
            return Ok(positions.iter().map(|row| row.iter().map(Vec::len).collect()).collect());
        }
        let held = self.layer_cache(layer)?.held();
        Ok(held.chunks(self.shape_of(layer).kv_heads).map(<[usize]>::to_vec).collect())
    }

    /// Returns the number of tokens that a layer holds quantized, or with fewer key channels, per
    /// batch row: those of the head with the most. The newest tokens stay in full precision, and of
    /// a short text all do. `None` if the store packs nothing, and before the first token.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn tokens_packed(&self, layer: usize) -> Result<Option<Vec<usize>>> {
        let counts =
            self.layer_cache(layer)?.store.as_ref().and_then(|store| store.packed_counts());
        let most = |heads: &[usize]| heads.iter().copied().max().unwrap_or(0);
        Ok(counts.map(|counts| counts.chunks(self.shape_of(layer).kv_heads).map(most).collect()))
    }

    /// Returns the number of entries that each head of a layer holds, `[batch][kv_head]`; fewer
    /// than tokens where tokens share entries (EMS).
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn entries_by_head(&self, layer: usize) -> Result<Vec<Vec<usize>>> {
        let cache = self.layer_cache(layer)?;
        let held = match cache.entries()? {
            Some(entries) => distinct(&entries, cache.held()),
            None => cache.held().to_vec(),
        };
        Ok(held.chunks(self.shape_of(layer).kv_heads).map(<[usize]>::to_vec).collect())
    }

    /// The allocator's measure of a layer at the last prompt, per batch row (CAKE: the preference;
    /// D2O: the density); `None` if it measures nothing.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn layer_measure(&self, layer: usize) -> Result<Option<Vec<f64>>> {
        Ok(self.layer_cache(layer)?.measure.as_ref().map(|measure| measure.of_rows.clone()))
    }

    /// The state of a layer's reducer, `[batch, numbers]` (D2O: the threshold of each row); `None`
    /// if it has no state.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn reducer_state(&self, layer: usize) -> Result<Option<Tensor<2>>> {
        Ok(self.layer_cache(layer)?.state.as_deref().cloned())
    }

    /// The positions a layer keeps, ascending: `[batch][kv_head][entry]`. Reads from the device.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn kept_positions(&self, layer: usize) -> Result<Vec<Vec<Vec<usize>>>> {
        let Some(positions) = self.layer_cache(layer)?.positions() else { return Ok(Vec::new()) };
        let [_, heads, columns] = positions.dims();
        let positions = positions.try_into_vec_as::<i64>()?;
        let heads_of_rows = positions.chunks(heads * columns).map(|row| {
            let heads = row.chunks(columns);
            heads
                .map(|head| head.iter().filter_map(|&p| usize::try_from(p).ok()).collect())
                .collect()
        });
        Ok(heads_of_rows.collect())
    }

    /// Returns the entries of a layer, one row per token; `None` before the first token.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn entries(&self, layer: usize) -> Result<Option<Entries>> {
        let Some(entries) = self.layer_cache(layer)?.entries()? else { return Ok(None) };
        Ok(Some(expand_clusters(entries, self.config.ops.as_ref())?))
    }

    /// Returns the bytes that the buffers of all layers take on the device now: keys, values,
    /// positions, statistics, queries held for scorers, states of recurrent layers, and the
    /// [room](Self::bytes_spare) for future tokens. Padding that a device adds to rows counts too
    /// (CUDA pads rows of scalars).
    pub fn bytes_held(&self) -> usize {
        self.bytes_of(&self.layers, &self.recurrent)
    }

    /// The bytes that these layers take where its own lie.
    pub(super) fn bytes_of(&self, layers: &[LayerCache], recurrent: &[RecurrentLayer]) -> usize {
        let layers = layers.iter().enumerate();
        let of_layers = layers.map(|(number, layer)| layer.bytes(self.devices.rows(number)));
        let states = recurrent.iter().enumerate();
        let of_states = states
            .map(|(number, layer)| layer.bytes(self.devices.rows(self.place_of_state(number))));
        of_layers.chain(of_states).sum()
    }

    /// The place of a recurrent layer among all: it is counted behind those of attention.
    pub(super) fn place_of_state(&self, layer: usize) -> usize {
        self.shape.layers + layer
    }

    /// Returns the bytes among [`bytes_held`](Self::bytes_held) that are free: the room for future
    /// tokens. The rest are the kept keys and values, with their bookkeeping.
    pub fn bytes_spare(&self) -> usize {
        self.layers.iter().map(LayerCache::spare_bytes).sum()
    }

    /// Returns the bytes that the keys and values of all tokens seen would take, in layers with
    /// windows those of the tokens in them, with the states of recurrent layers.
    pub fn bytes_full(&self) -> usize {
        let CacheShape { layers, .. } = self.shape;
        let seen = self.tokens_seen();
        let of_layer = |layer: usize| {
            let most = self.config.window(layer).map_or(usize::MAX, Window::size);
            let tokens: usize = seen.iter().map(|&seen| seen.min(most)).sum();
            self.config.token_bytes(self.shape, layer, self.dtype()) * tokens
        };
        let states = self.config.recurrent_shapes().iter().map(|shape| shape.bytes() * seen.len());
        (0..layers).map(of_layer).chain(states).sum()
    }

    /// Returns the calls that tensor operations computed in place of a kernel, by operation and
    /// reason: the device has no kernels, no kernel computes the weights, or the call was too
    /// large. A copy of the cache shares its counts with the original.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.config.ops.fallbacks()
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The dimensions.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// The configuration.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// The type keys and values are held in: the configured one, or else that of the first keys.
    /// f32 before the first token if none is configured.
    pub fn dtype(&self) -> DType {
        self.dtype_or(DType::F32)
    }

    /// The [type](Self::dtype), where that of the first keys is this one if none have come.
    pub(super) fn dtype_or(&self, first: DType) -> DType {
        self.config.dtype.or(self.first_dtype).unwrap_or(first)
    }

    /// The device. Where layers lie on [several](CacheConfig::devices), it is the one that the
    /// cache was created with.
    pub fn device(&self) -> &Device {
        &self.devices.first
    }

    /// The progress of every layer, those of attention first.
    fn all_progress(&self) -> impl Iterator<Item = &Progress> {
        let recurrent = self.recurrent.iter().map(|layer| &layer.progress);
        self.layers.iter().map(LayerCache::progress).chain(recurrent)
    }

    /// The devices that its layers lie on.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.each()
    }

    pub(super) fn layer_cache(&self, layer: usize) -> Result<&LayerCache> {
        let layers = self.layers.len();
        self.layers.get(layer).ok_or(Error::LayerOutOfRange { layer, layers })
    }
}
