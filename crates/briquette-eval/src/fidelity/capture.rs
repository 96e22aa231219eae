//! Captures of what a model hands to its cache and gets back.

use briquette::{KvCache, position::PositionEncoding};
use briquette_models::Attend;
use burn::tensor::Tensor;

/// A cache, and what was handed to it and came back.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) cache: KvCache,
    /// One a layer, each call one more.
    pub(super) layers: Vec<Passed>,
    /// Whether queries, keys and values are kept too, not outputs alone.
    inputs: bool,
}

/// The calls of one layer, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    /// Before positions are encoded.
    pub(super) inputs: Vec<Projections>,
    /// `[1, query_heads, new, head_dim]` a call.
    pub(super) outputs: Vec<Tensor<4>>,
}

/// Queries, keys and values that a model hands to a cache in one call of one layer.
#[derive(Clone, Debug)]
pub(super) struct Projections {
    /// `[1, query_heads, new, head_dim]`
    pub(super) queries: Tensor<4>,
    /// `[1, kv_heads, new, head_dim]`
    pub(super) keys: Tensor<4>,
    /// `[1, kv_heads, new, head_dim]`
    pub(super) values: Tensor<4>,
}

impl Capture {
    /// Keeps what comes back, and the `inputs` too if asked.
    pub(super) fn new(cache: KvCache, inputs: bool) -> Self {
        let layers = vec![Passed::default(); cache.shape().layers];
        Self { cache, layers, inputs }
    }
}

impl Attend for Capture {
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> briquette::Result<Tensor<4>> {
        let inputs = self.inputs.then(|| Projections {
            queries: queries.clone(),
            keys: keys.clone(),
            values: values.clone(),
        });
        let output = self.cache.attend(layer, queries, keys, values, encoding)?;
        if let Some(passed) = self.layers.get_mut(layer) {
            passed.inputs.extend(inputs);
            passed.outputs.push(output.clone());
        }
        Ok(output)
    }
}
