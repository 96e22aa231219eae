//! A cache in the shape of burn-lm's: it hands back the keys and values of all tokens.

use burn::tensor::{Bool, Device, Tensor};

use crate::decoder::{HEAD_DIM, KV_HEADS, LAYERS};

/// Keys and values of a layer, in buffers of a fixed number of tokens.
pub(crate) struct KeyValueCache {
    keys: Tensor<4>,
    values: Tensor<4>,
    tokens: usize,
}

impl KeyValueCache {
    fn new(most: usize, device: &Device) -> Self {
        let buffer = || Tensor::zeros([1, KV_HEADS, most, HEAD_DIM], device);
        Self { keys: buffer(), values: buffer(), tokens: 0 }
    }

    /// Takes new keys and values in, and returns all of them.
    pub(crate) fn forward(&mut self, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (start, end) = (self.tokens, self.tokens + key.dims()[2]);
        self.tokens = end;
        let write = |buffer: &mut Tensor<4>, new: Tensor<4>| {
            let place = [0..1, 0..KV_HEADS, start..end, 0..HEAD_DIM];
            buffer.inplace(|buffer| buffer.slice_assign(place, new));
            buffer.clone().narrow(2, 0, end)
        };
        (write(&mut self.keys, key), write(&mut self.values, value))
    }

    /// Tokens that the last call attended to.
    pub(crate) fn len(&self) -> usize {
        self.tokens
    }
}

pub(crate) struct TransformerCache {
    pub(crate) layers: Vec<KeyValueCache>,
    device: Device,
}

impl TransformerCache {
    pub(crate) fn new(most: usize, device: &Device) -> Self {
        let layers = (0..LAYERS).map(|_| KeyValueCache::new(most, device)).collect();
        Self { layers, device: device.clone() }
    }

    /// The mask of so many new tokens in all layers; `None` if one sees everything.
    pub(crate) fn prepare(&self, new: usize) -> Option<Tensor<4, Bool>> {
        let seen = self.layers[0].len();
        let mask = || Tensor::<2, Bool>::tril_mask([new, seen + new], seen as i64, &self.device);
        (new > 1).then(|| mask().unsqueeze())
    }
}
