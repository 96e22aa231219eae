//! Calls that are undone together if one of them fails.

use super::{KvCache, layer::LayerCache, rollback::Rollback};
use crate::Result;

impl KvCache {
    /// Runs several calls, and undoes all of them if `calls` returns an error. A transaction inside
    /// of another is undone with it.
    ///
    /// These are, for example, the calls of all layers for one token or one chunk of a prompt.
    /// After a failure the cache is as it was before the first, also in the layers before the one
    /// that failed.
    ///
    /// ```
    /// # use briquette::{CacheShape, KvCache, Policy, position::NoPositionEncoding};
    /// # use burn::tensor::Tensor;
    /// # fn main() -> briquette::Result<()> {
    /// # let device = briquette::device::open("flex")?;
    /// # let shape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// # let mut cache = KvCache::new(shape, Policy::full(), &device)?;
    /// # let x = |heads, new| Tensor::<4>::zeros([1, heads, new, 16], &device);
    /// cache.transaction(|cache| {
    ///     for layer in 0..3 {
    ///         cache.attend(layer, x(4, 5), x(2, 5), x(2, 5), &NoPositionEncoding)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A model needs no transaction if an error ends the generation or [`reset`](Self::reset)
    /// follows: each call of [`attend`](Self::attend) undoes itself. It needs one if the same cache
    /// continues after an error, because the layers before the one that failed hold the tokens
    /// already.
    ///
    /// The remembered layers share their buffers with the cache until the transaction ends. A call
    /// that only appends costs nothing more: prompts, and decoded tokens where the policy does not
    /// compress in decoding. A call that compresses copies what its layer held, and the copy stays
    /// until the transaction ends. A layer that is called twice is copied too. Room that was made
    /// for the tokens of a failed transaction may stay.
    ///
    /// # Errors
    /// The error of `calls`. Where that is of another type, see
    /// [`try_transaction`](Self::try_transaction).
    pub fn transaction<T>(&mut self, calls: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.try_transaction(calls)
    }

    /// Whether a [`transaction`](Self::transaction) of the next decoded token may copy what its
    /// layers hold. It may if the policy compresses in decoding, or if the token makes a store
    /// pack others into room made by [device
    /// indexing](crate::state::Replay::begin_device_indexing).
    pub fn transaction_copies(&mut self) -> bool {
        self.has_windows()
            || self.policy.schedule().decode_every.is_some()
            || self.layers.iter_mut().any(LayerCache::packs_in_place)
    }

    /// Runs several calls as [`transaction`](Self::transaction) does, if they fail with another
    /// type of error.
    ///
    /// # Errors
    /// The error of `calls`.
    pub fn try_transaction<T, E>(
        &mut self,
        calls: impl FnOnce(&mut Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let (recurrent, measures) = (self.recurrent.clone(), self.measures.clone());
        let rollback = Rollback::new(&self.layers, recurrent, measures, self.batch);
        let outer = self.active_transaction.begin(rollback);
        let result = calls(self);
        if let Some(rollback) = self.active_transaction.end(outer) {
            match (&result, self.active_transaction.rollback()) {
                (Err(_), _) => {
                    (self.recurrent, self.measures, self.batch) =
                        rollback.restore(&mut self.layers);
                }
                (Ok(_), Some(outer)) => outer.absorb(*rollback),
                (Ok(_), None) => {}
            }
        }
        result
    }
}
