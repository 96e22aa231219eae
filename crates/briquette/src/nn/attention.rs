use burn::{nn::attention::MultiHeadAttention, tensor::Tensor};

use crate::{CacheLayer, Error, Result, check, position::NoPositionEncoding};

/// Self-attention of Burn over a layer of a cache.
///
/// The number of heads is `query_heads` and `kv_heads` of the [`CacheShape`](crate::CacheShape),
/// `d_k` its `head_dim`. These modules encode no positions: add them to the embeddings, counted by
/// [`tokens_seen`](CacheLayer::tokens_seen).
pub trait CachedAttention {
    /// Computes causal self-attention of new tokens over the layer's entries and over themselves,
    /// as [`KvCache::attend`](crate::KvCache::attend) does.
    ///
    /// Under [`Policy::full`](crate::Policy::full) it is what Burn's own `forward` computes of all
    /// tokens under a causal mask. Dropout of attention weights is left out, as Burn leaves it out
    /// outside of training.
    ///
    /// # Shapes
    /// - `x`: `[batch, new, d_model]`
    /// - returns `[batch, new, d_model]`
    ///
    /// ```
    /// use briquette::{CacheShape, KvCache, Policy, nn::CachedAttention};
    /// use burn::{
    ///     nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask},
    ///     tensor::{Distribution, Tensor},
    /// };
    ///
    /// # fn main() -> briquette::Result<()> {
    /// let device = briquette::device::open("flex")?;
    /// let attention = MultiHeadAttentionConfig::new(64, 4).init(&device);
    /// let x = Tensor::<3>::random([2, 12, 64], Distribution::Default, &device);
    /// let mask = generate_autoregressive_mask(2, 12, &device);
    /// let whole = attention.forward(MhaInput::self_attn(x.clone()).mask_attn(mask)).context;
    ///
    /// let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 4, head_dim: 16 };
    /// let mut cache = KvCache::new(shape, Policy::full(), &device)?;
    /// // A prompt of ten tokens, and two that are decoded.
    /// for (start, new) in [(0, 10), (10, 1), (11, 1)] {
    ///     let x = x.clone().narrow(1, start, new);
    ///     let out = attention.forward_with(x, cache.layer(0)?)?;
    ///     let off = (out - whole.clone().narrow(1, start, new)).abs().max();
    ///     assert!(off.try_into_scalar::<f32>()? < 1e-5);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TensorShape`] for tokens of another width, [`Error::InvalidParameter`] for quiet
    /// softmax and for heads that do not divide the width; otherwise those of
    /// [`attend`](crate::KvCache::attend). The cache is then as it was before.
    fn forward_with(&self, x: Tensor<3>, cache: CacheLayer<'_>) -> Result<Tensor<3>>;
}

impl CachedAttention for MultiHeadAttention {
    fn forward_with(&self, x: Tensor<3>, mut cache: CacheLayer<'_>) -> Result<Tensor<3>> {
        check_input(self, &x)?;
        let [batch, new, d_model] = x.dims();
        let split = |x: Tensor<3>| x.reshape([batch, new, self.n_heads, self.d_k]).swap_dims(1, 2);
        let queries = split(self.query.forward(x.clone()));
        let keys = split(self.key.forward(x.clone()));
        let values = split(self.value.forward(x));
        let attended = cache.attend(queries, keys, values, &NoPositionEncoding)?;
        Ok(self.output.forward(attended.swap_dims(1, 2).reshape([batch, new, d_model])))
    }
}

/// Refuses what a cache computes otherwise than the module, and tokens that the module does not
/// take.
pub(super) fn check_input(attention: &MultiHeadAttention, x: &Tensor<3>) -> Result<()> {
    let &MultiHeadAttention { d_model, n_heads, d_k, quiet_softmax, .. } = attention;
    if quiet_softmax {
        return check::refuse("quiet_softmax", true, "false: a cache computes the usual softmax");
    }
    if n_heads * d_k != d_model {
        return check::refuse("n_heads", n_heads, format!("a divisor of d_model, {d_model}"));
    }
    let [batch, new, width] = x.dims();
    if width != d_model {
        return Err(Error::TensorShape {
            tensor: "x",
            expected: format!("[batch, new, {d_model}]"),
            found: x.dims().to_vec(),
        });
    }
    if batch == 0 || new == 0 {
        return Err(Error::EmptyPrompt { row: 0, columns: new, padding: 0 });
    }
    Ok(())
}
