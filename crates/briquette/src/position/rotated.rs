use burn::tensor::{Int, Tensor};

use super::PositionEncoding;

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
///     let seen = cache.tokens_seen().first().copied().unwrap_or(0);
///     let (q, k) = (rope.apply(random(4), seen), rope.apply(random(2), seen));
///     cache.attend(0, q, k, random(2), &Rotated)?;
/// }
/// assert_eq!(cache.tokens_seen(), [12]);
/// # Ok(())
/// # }
/// ```
///
/// The next token of a row has the position [`tokens_seen`](crate::KvCache::tokens_seen), whatever
/// has been evicted since; padding does not count. A model may count from elsewhere, as long as it
/// does so for all tokens of a row. A model that rotates the rows of a padded batch from one start,
/// for example, counts columns, padding included.
///
/// A policy that needs queries or keys before their rotation is refused with
/// [`Error::RotatedKeys`](crate::Error::RotatedKeys) in its first call;
/// [`Policy::needs_unrotated`](crate::Policy::needs_unrotated) says so before. Give such a policy
/// the encoding itself, and take it out of the model.
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
