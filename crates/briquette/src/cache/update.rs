//! The second door: a model that computes attention itself gives its keys and values, and takes all
//! entries back.

use burn::tensor::Tensor;

use super::{
    KvCache,
    call::{answer::VisibleEntries, input::Projections},
};
use crate::{
    CacheShape, Error, Policy, Result,
    position::{PositionEncoding, Rotated},
};

impl KvCache {
    /// Appends new keys and values, returns all entries that the model's own attention sees, and
    /// then compresses the layer if the policy says so.
    ///
    /// This is what a cache of `(keys, values) -> (keys, values)` does. Keys come as they are
    /// attended to: rotated, if the model rotates them.
    ///
    /// # Shapes
    /// - `keys`, `values`: `[batch, kv_heads, new, head_dim]`
    /// - returns [`VisibleEntries`], whose rectangles hold `[batch, kv_heads, columns, head_dim]`
    ///
    /// ```
    /// use briquette::{Budget, CacheShape, KvCache, Policy};
    /// use burn::tensor::{Distribution, Tensor, module::attention, ops::AttentionModuleOptions};
    ///
    /// # fn main() -> briquette::Result<()> {
    /// let device = briquette::device::open("flex")?;
    /// let shape = CacheShape { layers: 1, query_heads: 2, kv_heads: 2, head_dim: 16 };
    /// let mut cache = KvCache::new(shape, Policy::knorm(Budget::Tokens(24)), &device)?;
    /// for (new, columns) in [(40, 40), (1, 25), (1, 26)] {
    ///     let x = || Tensor::<4>::random([1, 2, new, 16], Distribution::Default, &device);
    ///     let held = cache.update(0, x(), x())?;
    ///     assert_eq!(held.keys.dims(), [1, 2, columns, 16]);
    ///     let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
    ///     let out = attention(x(), held.keys, held.values, held.mask, None, options);
    ///     assert_eq!(out.dims(), [1, 2, new, 16]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::QueriesMissing`] for a policy that looks at queries or their weights
    /// ([`Policy::needs_queries`]); otherwise those of [`attend`](Self::attend).
    pub fn update(
        &mut self,
        layer: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Result<VisibleEntries> {
        if let Some(needs) = self.policy.needs_queries() {
            let policy = self.policy.name().to_owned();
            return Err(Error::QueriesMissing { policy, needs });
        }
        let [batch, _, new, _] = keys.dims();
        let CacheShape { query_heads, head_dim, .. } = self.shape_of(layer);
        // Takes the place of queries that no stage of the policy reads.
        let zero = Tensor::<4>::zeros([1, 1, 1, 1], (&keys.device(), keys.dtype()));
        let queries: Tensor<4> = zero.expand([batch, query_heads, new, head_dim]);
        let held = self.update_with(layer, queries, keys, values, &Rotated)?;
        Ok(VisibleEntries { queries: None, ..held })
    }

    /// Updates as [`update`](Self::update) does, with the queries that the policy looks at, and
    /// with positions that `encoding` encodes. The model then attends with the queries that are
    /// returned.
    ///
    /// Where the policy needs sums of attention weights, or those of the last queries, the cache
    /// computes them beside the model's own attention. That is one more pass over the entries for
    /// sums, and one over the last queries for a window.
    ///
    /// # Shapes
    /// - `queries`: `[batch, query_heads, new, head_dim]`
    /// - `keys`, `values`: `[batch, kv_heads, new, head_dim]`
    ///
    /// # Errors
    /// [`Error::AttentionOwned`] for a policy with sparse attention over prompts, which must
    /// compute the attention itself; otherwise those of [`attend`](Self::attend).
    pub fn update_with(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<VisibleEntries> {
        if self.policy.sparse_prefill().is_some() {
            return Err(Error::AttentionOwned { policy: self.policy.name().to_owned() });
        }
        let new = Projections::of(&self.config, queries, keys, Some(values))?;
        self.call(layer, new, encoding, None)
    }
}

impl Policy {
    /// Returns why it needs queries, which [`KvCache::update`] does not give it; `None` if keys and
    /// values are enough.
    pub fn needs_queries(&self) -> Option<&'static str> {
        let observes = self.observes();
        if observes.counts_queries() {
            return Some("sums the attention weights of entries");
        }
        if observes.window > 0 {
            return Some("looks at the last queries");
        }
        if observes.holds_queries() {
            return Some("looks at queries between compressions");
        }
        self.sparse_prefill().map(|_| "computes a part of the attention over prompts")
    }
}
