use burn::tensor::{Int, Tensor};

use super::{PositionEncoding, RotatedBy};

/// Encoding of a model that rotates queries and keys itself. The cache takes them as they come, and
/// holds each key at the position it was written at.
///
/// ```
/// use briquette::{CacheShape, Error, KvCache, Policy, position::Rotated};
/// use burn::{nn::RotaryEncodingConfig, tensor::{Distribution, Tensor}};
///
/// # fn main() -> briquette::Result<()> {
/// let device = briquette::device::open("flex")?;
/// let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
/// let rope = RotaryEncodingConfig::new(1024, shape.head_dim).init(&device);
/// let mut cache = KvCache::new(shape, Policy::full(), &device)?;
/// for new in [10, 1, 1] {
///     let random = |heads| Tensor::<4>::random([1, heads, new, 16], Distribution::Default, &device);
///     let seen = cache.columns_seen().first().copied().unwrap_or(0);
///     let (q, k) = (rope.apply(random(4), seen), rope.apply(random(2), seen));
///     cache.attend(0, q, k, random(2), &Rotated)?;
/// }
/// assert_eq!(cache.tokens_seen(), [12]);
/// # Ok(())
/// # }
/// ```
///
/// A model may count from anywhere, as long as it counts on for all tokens of a row, whatever has
/// been evicted since. A model that rotates all rows from one start begins at
/// [`columns_seen`](crate::KvCache::columns_seen), padding included; one that gives each row
/// positions of its own may begin at [`tokens_seen`](crate::KvCache::tokens_seen).
///
/// Some policies need queries or keys before their rotation
/// ([`Policy::needs_unrotated`](crate::Policy::needs_unrotated)). With [`Rotated::by`] the cache
/// turns them back for these. Without it they are refused with
/// [`Error::RotatedKeys`](crate::Error::RotatedKeys) in the first call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotated;

impl PositionEncoding for Rotated {
    fn encode(&self, x: Tensor<4>, _positions: Tensor<3, Int>) -> Tensor<4> {
        x
    }

    fn max_positions(&self) -> Option<usize> {
        None
    }

    fn comes_rotated(&self) -> bool {
        true
    }
}

impl Rotated {
    /// Says how the model has rotated queries and keys: each token at its
    /// [position](crate::KvCache::tokens_seen) in its row, padding not counted.
    ///
    /// Where the policy needs them before their rotation, the cache turns them back with the same
    /// tables and encodes positions itself. That costs a launch for the queries and one for the
    /// keys of each call, and the rounding of one more rotation. Elsewhere it changes nothing.
    ///
    /// ```
    /// use briquette::{Budget, CacheShape, KvCache, Policy, position::Rotated};
    /// use burn::{nn::RotaryEncodingConfig, tensor::{Distribution, Tensor}};
    ///
    /// # fn main() -> briquette::Result<()> {
    /// let device = briquette::device::open("flex")?;
    /// let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// let rope = RotaryEncodingConfig::new(1024, shape.head_dim).init(&device);
    /// let mut cache = KvCache::new(shape, Policy::streaming_llm(Budget::Tokens(24)), &device)?;
    /// for new in [40, 1, 1] {
    ///     let random = |heads| Tensor::<4>::random([1, heads, new, 16], Distribution::Default, &device);
    ///     let seen = cache.tokens_seen().first().copied().unwrap_or(0);
    ///     let (q, k) = (rope.apply(random(4), seen), rope.apply(random(2), seen));
    ///     cache.attend(0, q, k, random(2), &Rotated::by(&rope))?;
    /// }
    /// assert_eq!(cache.tokens_kept(0)?, [24]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by(encoding: &dyn PositionEncoding) -> RotatedBy<'_> {
        RotatedBy { encoding, over_columns: false }
    }
}
