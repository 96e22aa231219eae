use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};

use briquette::{
    Result as CacheResult,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
};

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
        let none: Arc<dyn PositionEncoding> = Arc::new(NoPositionEncoding);
        let of = |layer| {
            let without = config.layers_without_rope.contains(&layer);
            let local = config.local_layers.contains(&layer).then_some(&local);
            if without { none.clone() } else { local.unwrap_or(&global).clone() }
        };
        Ok(Self { layers: (0..config.num_hidden_layers).map(of).collect() })
    }

    /// That of a layer; layers there are not encode nothing.
    pub(crate) fn of(&self, layer: usize) -> &dyn PositionEncoding {
        self.layers.get(layer).map_or(&NoPositionEncoding, |encoding| encoding.as_ref())
    }
}

/// Rotary position embedding of the first channels of a head; the others pass (Phi-4-mini, after GPT-NeoX).
#[derive(Clone, Debug)]
pub(crate) struct PartialRotary {
    pub(crate) inner: RotaryEmbedding,
    pub(crate) head_dim: usize,
}

impl PositionEncoding for PartialRotary {
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        let (rotated, channels) = (self.inner.head_dim(), x.dims()[3]);
        let rest = x.clone().narrow(3, rotated, channels - rotated);
        Tensor::cat(vec![self.inner.encode(x.narrow(3, 0, rotated), positions), rest], 3)
    }

    fn max_positions(&self) -> Option<usize> {
        self.inner.max_positions()
    }

    fn check(&self, head_dim: usize, device: &Device) -> CacheResult<()> {
        if head_dim != self.head_dim {
            return Err(briquette::Error::InvalidParameter {
                parameter: "head_dim of the rotary embedding",
                value: self.head_dim.to_string(),
                must_be: format!("{head_dim}, as in the cache"),
            });
        }
        self.inner.check(self.inner.head_dim(), device)
    }
}
