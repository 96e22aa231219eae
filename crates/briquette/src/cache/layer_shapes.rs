//! What a configuration says of the shapes of layers.

use std::sync::Arc;

use burn::tensor::DType;

use super::CacheConfig;
use crate::{Budget, CacheShape, LayerShape, Policy, Result, check};

impl CacheConfig {
    /// Sets the number of channels of a value, where it is not that of a key: values are
    /// `[batch, kv_heads, new, value_dim]`, and so wide is the output of a query head.
    ///
    /// The policy must hold its entries one by one, in full precision: in the store `dense` or
    /// `ragged`.
    pub fn with_value_dim(mut self, value_dim: usize) -> Self {
        (self.value_dim, self.values_in_keys) = (Some(value_dim), false);
        self
    }

    /// Sets that the first `value_dim` channels of a key are the value too, as in absorbed
    /// multi-head latent attention (DeepSeek). They are held once, and the model calls
    /// [`KvCache::attend_keys`](crate::KvCache::attend_keys). Position encodings are of the other
    /// channels.
    ///
    /// The policy must keep or drop entries as they are, in the store `dense` or `ragged`, without
    /// a second pass. Steps are not recorded.
    pub fn with_values_in_keys(mut self, value_dim: usize) -> Self {
        (self.value_dim, self.values_in_keys) = (Some(value_dim), true);
        self
    }

    /// Sets the dimensions of each layer, in place of those of [`CacheShape`], which says how many
    /// layers there are.
    ///
    /// Where they differ from these, the policy must go layer by layer: one that shares its budget
    /// out among layers, a budget in bytes, a second pass and a profile are refused.
    pub fn with_layer_shapes(mut self, shapes: Vec<LayerShape>) -> Self {
        self.layer_shapes = Some(shapes.into());
        self
    }

    /// The dimensions of a layer of a cache of this shape.
    pub(crate) fn layer_shape(&self, shape: CacheShape, layer: usize) -> LayerShape {
        let own = self.layer_shapes.as_ref().and_then(|all| all.get(layer).copied());
        own.unwrap_or_else(|| {
            let alike = LayerShape::from(shape);
            alike.with_value_dim(self.value_dim.unwrap_or(alike.value_dim))
        })
    }

    /// The dimensions of the cache, with those of one of its layers.
    pub(crate) fn shape_of(&self, shape: CacheShape, layer: usize) -> CacheShape {
        self.layer_shape(shape, layer).of_cache(shape.layers)
    }

    /// Bytes of a token in a layer whose entries are all kept.
    pub(super) fn token_bytes(&self, shape: CacheShape, layer: usize, dtype: DType) -> usize {
        let LayerShape { kv_heads, head_dim, value_dim, .. } = self.layer_shape(shape, layer);
        let of_values = if self.values_in_keys { 0 } else { value_dim };
        [head_dim.saturating_add(of_values), kv_heads, dtype.size()]
            .into_iter()
            .fold(1, usize::saturating_mul)
    }

    /// The parts of this configuration that are a layer's own.
    pub(super) fn layer_shapes_of(&self, layer: usize) -> Option<Arc<[LayerShape]>> {
        self.layer_shapes.as_ref().and_then(|all| all.get(layer)).map(|own| vec![*own].into())
    }

    /// What it says of values, and of the shapes of layers, as text; `None` for what it leaves to
    /// the shape of the cache.
    pub(super) fn shape_texts(&self) -> [Option<String>; 2] {
        let place = if self.values_in_keys { " in keys" } else { "" };
        let values = self.value_dim.map(|value_dim| format!("{value_dim}{place}"));
        [values, self.layer_shapes.as_ref().map(|shapes| format!("{shapes:?}"))]
    }

    /// Checks that layer shapes and values are those that a cache of this shape can have, and that
    /// the policy can hold them.
    pub(crate) fn check_shapes(&self, shape: CacheShape, policy: &Policy) -> Result<()> {
        if let Some(shapes) = &self.layer_shapes {
            self.check_layer_shapes(shapes, shape, policy)?;
        }
        for layer in 0..self.layer_shapes.as_ref().map_or(1, |shapes| shapes.len()) {
            self.check_values(self.layer_shape(shape, layer), policy)?;
            policy.check_shape(self.shape_of(shape, layer))?;
        }
        Ok(())
    }

    fn check_layer_shapes(
        &self,
        shapes: &[LayerShape],
        shape: CacheShape,
        policy: &Policy,
    ) -> Result<()> {
        if shapes.len() != shape.layers {
            let must_be = format!("of {} layers, as the cache", shape.layers);
            return check::refuse("layer_shapes", format!("of {} layers", shapes.len()), must_be);
        }
        let in_keys = self.values_in_keys.then_some(shape.head_dim);
        if let Some(value_dim) = self.value_dim.or(in_keys) {
            let found = format!("{value_dim} beside layer_shapes");
            return check::refuse("value_dim", found, "given by the shape of each layer");
        }
        shapes.iter().try_for_each(|own| own.of_cache(shape.layers).check())?;
        let Some(reason) = policy.looks_at_all_layers() else { return Ok(()) };
        let of_cache = LayerShape::from(shape);
        let mut others = shapes.iter().enumerate().filter(|(_, own)| **own != of_cache);
        let Some((layer, own)) = others.next() else { return Ok(()) };
        let name = policy.name();
        let found = format!("{own:?} in layer {layer}, given to `{name}`, which {reason}");
        let must_be =
            format!("{of_cache:?} as the cache, or for a policy that goes layer by layer");
        check::refuse("layer_shapes", found, must_be)
    }

    fn check_values(&self, shape: LayerShape, policy: &Policy) -> Result<()> {
        let LayerShape { head_dim, value_dim, .. } = shape;
        if value_dim == 0 || value_dim > 1 << 20 {
            return check::refuse("value_dim", value_dim, "at least 1 and at most 1048576");
        }
        if self.values_in_keys && value_dim >= head_dim {
            let must_be = format!("below head_dim, which is {head_dim}, where values are in keys");
            return check::refuse("value_dim", value_dim, must_be);
        }
        let store = policy.store();
        let reason = if value_dim != head_dim && !store.holds_value_dims() {
            format!("holds them in the store `{}`", store.name())
        } else if self.values_in_keys && !policy.reducer().drops_only() {
            format!("merges them by `{}`", policy.reducer().name())
        } else if self.values_in_keys && policy.second_pass().is_some() {
            "reads them in a second pass".to_owned()
        } else {
            return Ok(());
        };
        let place = if self.values_in_keys { "in keys of" } else { "beside keys of" };
        let found =
            format!("{value_dim} {place} {head_dim}, given to `{}`, which {reason}", policy.name());
        let must_be = match self.values_in_keys {
            true => "given to a policy that drops entries in the store `dense` or `ragged`",
            false => "that of keys, or given to a policy of the store `dense` or `ragged`",
        };
        check::refuse("value_dim", found, must_be)
    }
}

impl Policy {
    /// Why it cannot leave some layers out, or treat them as of other dimensions than the rest;
    /// `None` if it goes layer by layer.
    pub(super) fn looks_at_all_layers(&self) -> Option<&'static str> {
        if self.allocator().spans_layers() {
            Some("shares its budget out among all layers")
        } else if self.second_pass().is_some() {
            Some("compresses by a second pass over all tokens")
        } else if matches!(self.budget(), Some(Budget::Bytes(_))) {
            Some("has a budget in bytes for all layers")
        } else {
            None
        }
    }
}
