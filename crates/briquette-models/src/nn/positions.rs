use std::sync::Arc;

use burn::tensor::Device;

use briquette::position::{NoPositionEncoding, PositionEncoding};

use crate::{ModelConfig, Result};

/// The position encoding of every layer of a model.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    layers: Vec<Arc<dyn PositionEncoding>>,
}

impl Positions {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Result<Self> {
        let rotary = |rope: &crate::RopeConfig| {
            rope.encoding(config.head_dim, config.max_position_embeddings, device)
        };
        let global = rotary(&config.rope)?;
        let local = match &config.local_rope {
            Some(rope) => rotary(rope)?,
            None => global.clone(),
        };
        let none: Arc<dyn PositionEncoding> = match config.attn_temperature {
            Some(temperature) => Arc::new(temperature),
            None => Arc::new(NoPositionEncoding),
        };
        let of = |layer| {
            let without = config.layers_without_rope.contains(&layer);
            let local = config.sliding_layers.contains(&layer).then_some(&local);
            if without { none.clone() } else { local.unwrap_or(&global).clone() }
        };
        Ok(Self { layers: (0..config.num_hidden_layers).map(of).collect() })
    }

    /// The encoding of a layer; layers beyond the last encode nothing.
    pub(crate) fn of(&self, layer: usize) -> &dyn PositionEncoding {
        self.layers.get(layer).map_or(&NoPositionEncoding, |encoding| encoding.as_ref())
    }
}
