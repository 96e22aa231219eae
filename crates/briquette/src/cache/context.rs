use burn::tensor::{DType, Device};

use super::{CacheConfig, devices::Devices, shared_attention::SharedAttention};
use crate::{
    CacheShape, LayerShape, LayerView, Policy,
    device::Rows,
    ops::{Entries, Scoring},
    position::PositionEncoding,
    stage::AttentionRequest,
    store::StoreOptions,
    view::Measures,
};

/// Settings and tensors that the layers of a cache share in one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) layer: usize,
    /// The dimensions of the cache, with those of the layer.
    pub(super) shape: CacheShape,
    pub(super) policy: &'a Policy,
    pub(super) config: &'a CacheConfig,
    /// The type keys and values are held in.
    pub(super) dtype: DType,
    pub(super) devices: &'a Devices,
    pub(super) encoding: &'a dyn PositionEncoding,
    /// Minimum number of positions that encoding tables cover.
    pub(super) reach: usize,
    /// What the stages need from the attention pass.
    pub(super) observes: AttentionRequest,
    /// The measures of each layer at the last prompt.
    pub(super) measures: &'a Measures,
    /// The attention that caches of the same prompt have computed.
    pub(super) shared: Option<&'a SharedAttention>,
}

impl<'a> Context<'a> {
    /// The device of the layer.
    pub(super) fn device(&self) -> &'a Device {
        self.devices.of(self.layer)
    }

    /// The layout of rows on the device of the layer.
    pub(super) fn rows(&self) -> Rows {
        self.devices.rows(self.layer)
    }

    /// How query-key products of the layer become weights.
    pub(super) fn scoring(&self) -> Scoring {
        self.config.scoring(self.shape, self.layer)
    }

    /// What the layer's store of `batch` rows is built with.
    pub(super) fn store_options(&self, batch: usize) -> StoreOptions {
        let Self { layer, shape, config, dtype, observes, .. } = *self;
        let LayerShape { value_dim, .. } = config.layer_shape(shape, layer);
        StoreOptions {
            layer,
            shape,
            value_dim,
            values_in_keys: config.values_in_keys,
            batch,
            dtype,
            observes,
            device: self.device().clone(),
            rows: self.rows(),
            ops: config.ops.clone(),
        }
    }

    /// Bytes of the window of queries that a layer of `rows` rows holds between calls: none under a
    /// policy that compresses prompts only. A number of a query takes `size` bytes.
    pub(super) fn window_bytes(&self, size: usize, window: usize, rows: usize) -> usize {
        let in_decoding = self.policy.schedule().decode_every.is_some() && self.observes.window > 0;
        if in_decoding { self.query_bytes(size, window, rows) } else { 0 }
    }

    /// Bytes of so many queries with their positions.
    pub(super) fn query_bytes(&self, size: usize, queries: usize, rows: usize) -> usize {
        let rows_of = self.rows();
        let query = self.shape.query_heads * rows_of.bytes(self.shape.head_dim, size);
        let position_bytes = DType::from(self.device().settings().int_dtype).size();
        queries
            .saturating_mul(query)
            .saturating_add(rows_of.bytes(queries, position_bytes))
            .saturating_mul(rows)
    }

    /// The stages' view of a layer, without its window, scores and state.
    pub(super) fn view(
        &self,
        entries: &'a Entries,
        lengths: &'a [usize],
        seen: &'a [usize],
        budget: &'a [usize],
        prompt: bool,
    ) -> LayerView<'a> {
        let Self { layer, shape, policy, config, measures, .. } = *self;
        LayerView {
            layer,
            shape,
            entries,
            lengths,
            seen,
            budget,
            protect: policy.protect(),
            prompt,
            check: config.input_check.applies(prompt),
            heads_differ: policy.makes_ragged_heads(),
            packs_heads: policy.store().packs_heads(),
            window_queries: &[],
            window: None,
            queries: None,
            encoded: None,
            scale: config.scale(shape),
            output_weight: config.output_weights.as_ref().and_then(|all| all.get(layer)),
            profile: policy.profile(),
            measures,
            given: None,
            scores: None,
            state: None,
            ops: config.ops.as_ref(),
        }
    }
}
