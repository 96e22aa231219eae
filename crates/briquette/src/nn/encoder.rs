use burn::{
    nn::transformer::{TransformerEncoder, TransformerEncoderLayer},
    tensor::Tensor,
};

use super::attention::{CachedAttention, check_input};
use crate::{CacheLayer, CacheShape, Error, KvCache, Result};

/// Encoder of Burn as a decoder: its layers attend causally, over a cache.
pub trait CachedEncoder {
    /// Returns the shape of a cache for it.
    fn cache_shape(&self) -> CacheShape;

    /// Runs all layers over new tokens, which see the cache's entries and each other causally.
    ///
    /// Under [`Policy::full`](crate::Policy::full) it is what Burn's own `forward` computes of all
    /// tokens under a causal mask, outside of training. The module encodes no positions: add them
    /// to the embeddings, counted by [`tokens_seen`](KvCache::tokens_seen).
    ///
    /// # Shapes
    /// - `x`: `[batch, new, d_model]`
    /// - returns `[batch, new, d_model]`
    ///
    /// ```
    /// use briquette::{KvCache, Policy, nn::CachedEncoder};
    /// use burn::{
    ///     nn::{
    ///         attention::generate_autoregressive_mask,
    ///         transformer::{TransformerEncoderConfig, TransformerEncoderInput},
    ///     },
    ///     tensor::{Distribution, Tensor},
    /// };
    ///
    /// # fn main() -> briquette::Result<()> {
    /// let device = briquette::device::open("flex")?;
    /// let encoder = TransformerEncoderConfig::new(64, 128, 4, 3).init(&device);
    /// let x = Tensor::<3>::random([2, 12, 64], Distribution::Default, &device);
    /// let mask = generate_autoregressive_mask(2, 12, &device);
    /// let whole = encoder.forward(TransformerEncoderInput::new(x.clone()).mask_attn(mask));
    ///
    /// let mut cache = KvCache::new(encoder.cache_shape(), Policy::full(), &device)?;
    /// // A prompt of ten tokens, and two that are decoded.
    /// for (start, new) in [(0, 10), (10, 1), (11, 1)] {
    ///     let out = encoder.forward_with(x.clone().narrow(1, start, new), &mut cache)?;
    ///     let off = (out - whole.clone().narrow(1, start, new)).abs().max();
    ///     assert!(off.try_into_scalar::<f32>()? < 1e-5);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidShape`] for a cache of another shape, and those of
    /// [`CachedAttention::forward_with`]. What these checks refuse has changed nothing. If a later
    /// layer fails, those before it hold the tokens already: see
    /// [`transaction`](KvCache::transaction).
    fn forward_with(&self, x: Tensor<3>, cache: &mut KvCache) -> Result<Tensor<3>>;
}

impl CachedEncoder for TransformerEncoder {
    fn cache_shape(&self) -> CacheShape {
        CacheShape {
            layers: self.layers.len(),
            query_heads: self.n_heads,
            kv_heads: self.n_heads,
            head_dim: self.d_model.checked_div(self.n_heads).unwrap_or(0),
        }
    }

    fn forward_with(&self, x: Tensor<3>, cache: &mut KvCache) -> Result<Tensor<3>> {
        self.layers.iter().try_for_each(|layer| check_input(&layer.mha, &x))?;
        let shape = cache.shape();
        if shape != self.cache_shape() {
            return Err(Error::InvalidShape {
                shape,
                reason: "the encoder has another, which `cache_shape` returns",
            });
        }
        let mut x = x;
        for (index, layer) in self.layers.iter().enumerate() {
            x = forward_layer(layer, x, cache.layer(index)?)?;
        }
        Ok(x)
    }
}

/// Runs a layer. `norm_2` is the attention's where norms come first, and the feed-forward's where
/// they come last.
fn forward_layer(
    layer: &TransformerEncoderLayer,
    x: Tensor<3>,
    cache: CacheLayer<'_>,
) -> Result<Tensor<3>> {
    let TransformerEncoderLayer { mha, pwff, norm_1, norm_2, .. } = layer;
    if layer.norm_first {
        let x = x.clone() + mha.forward_with(norm_2.forward(x), cache)?;
        Ok(x.clone() + pwff.forward(norm_1.forward(x)))
    } else {
        let x = norm_1.forward(x.clone() + mha.forward_with(x, cache)?);
        Ok(norm_2.forward(x.clone() + pwff.forward(x)))
    }
}
