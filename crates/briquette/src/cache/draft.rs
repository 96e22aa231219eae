//! Several decoded tokens in one call: drafts, forced tokens, the output of a tool.

use super::{
    KvCache,
    call::{answer::Answer, input::Projections},
    layer::{Earlier, Mark},
    progress::Draft,
    update_state::NO_WAY_BACK,
};
use crate::{Error, Result, check, position::PositionEncoding};

impl KvCache {
    /// Declares that the next call of each layer brings `columns` tokens per row that count as
    /// decoded, not as a prompt. Those that turn out wrong are taken back by
    /// [`truncate`](Self::truncate).
    ///
    /// Tokens of a draft stay whatever the budget: what is due to be dropped for them is dropped in
    /// the next call of decoded tokens, by its scores. A policy that does not compress decoded
    /// tokens ends as if they had come one by one. One that looks at decoded queries or their
    /// weights attends token by token within the call.
    ///
    /// ```
    /// # use briquette::{Budget, CacheShape, KvCache, Policy, position::NoPositionEncoding};
    /// # use burn::tensor::Tensor;
    /// # fn main() -> briquette::Result<()> {
    /// # let device = briquette::device::open("flex")?;
    /// # let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// # let x = |heads, new| Tensor::<4>::zeros([1, heads, new, 16], &device);
    /// let mut cache = KvCache::new(shape, Policy::snapkv(Budget::Tokens(64)), &device)?;
    /// cache.attend(0, x(4, 100), x(2, 100), x(2, 100), &NoPositionEncoding)?;
    /// cache.begin_decode(5)?;
    /// let out = cache.attend(0, x(4, 5), x(2, 5), x(2, 5), &NoPositionEncoding)?;
    /// # assert_eq!(out.dims(), [1, 4, 5, 16]);
    /// // The model agrees with the first two.
    /// cache.truncate(102)?;
    /// assert_eq!(cache.tokens_kept(0)?, [66]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NothingHeld`] before the first token, [`Error::PromptUnfinished`],
    /// [`Error::InvalidParameter`] for no columns, [`Error::DraftRefused`] under an
    /// [append-only](crate::policy::AppendOnly) schedule, where decoded tokens come to share
    /// entries (EMS), and beside recurrent layers. A call of another number of columns is then
    /// refused with [`Error::DraftColumns`].
    pub fn begin_decode(&mut self, columns: usize) -> Result<()> {
        check::count("columns", columns)?;
        check::columns("columns", columns)?;
        if !self.recurrent.is_empty() {
            let policy = self.policy.name().to_owned();
            return Err(Error::DraftRefused { policy, reason: NO_WAY_BACK });
        }
        if self.policy.schedule().append_only.is_some() {
            let reason = "its append-only schedule keeps the best of each group of new tokens";
            return Err(Error::DraftRefused { policy: self.policy.name().to_owned(), reason });
        }
        let compresses = self.policy.schedule().decode_every.is_some();
        if compresses && self.policy.reducer().makes_clusters() {
            let reason = "tokens that share entries cannot be taken back once they are compressed";
            return Err(Error::DraftRefused { policy: self.policy.name().to_owned(), reason });
        }
        self.check_no_prompt()?;
        for (layer, cache) in self.layers.iter().enumerate() {
            if cache.progress().seen().iter().all(|&seen| seen == 0) {
                return Err(Error::NothingHeld { layer });
            }
        }
        let draft = Draft { columns, goes_on: false };
        for (number, layer) in self.layers.iter_mut().enumerate() {
            // The tokens of the draft before are accepted. A transaction keeps the store from
            // before it packs some; otherwise it packs in place.
            match (&mut layer.store, self.active_transaction.rollback()) {
                (Some(store), None) => store.settle(),
                (Some(store), Some(rollback)) => {
                    let mut settled = store.clone();
                    settled.settle();
                    if settled.packed_columns() != store.packed_columns() {
                        rollback.remember(number, || layer.clone());
                        layer.store = Some(settled);
                    }
                }
                (None, _) => {}
            }
            layer.progress.begin_draft(draft);
        }
        Ok(())
    }

    /// Makes a call of a draft token by token, and remembers the layer before each.
    pub(super) fn token_by_token<A: Answer>(
        &mut self,
        layer: usize,
        new: &Projections,
        encoding: &dyn PositionEncoding,
        draft: Draft,
    ) -> Result<A> {
        let [_, _, columns, _] = new.queries.dims();
        if columns != draft.columns {
            return Err(Error::DraftColumns { layer, declared: draft.columns, new: columns });
        }
        if columns > 1 && !A::JOINS {
            let reason = "it looks at each decoded query, so that a draft has no entries in common: call `attend`, or decode one by one";
            return Err(Error::DraftRefused { policy: self.policy.name().to_owned(), reason });
        }
        let due = self.layers[layer].progress.decoded();
        if self.policy_of(layer).schedule().decode_every.is_some_and(|every| due >= every) {
            // Entries are replaced: the layer as it was takes no copy of them.
            return self.transaction(|cache| {
                let mut before = Vec::new();
                cache.each_token(layer, new, encoding, &mut before)
            });
        }
        let declared = self.layers[layer].progress.clone();
        let mut before = Vec::new();
        let answer = self.each_token(layer, new, encoding, &mut before);
        if answer.is_err() {
            let cache = &mut self.layers[layer];
            if let Some(first) = before.first() {
                *cache = cache.back_to(first, before.len() - 1);
            }
            cache.progress = declared;
        }
        answer
    }

    /// Calls the layer for each token; `before` gets the layer before those that were begun.
    fn each_token<A: Answer>(
        &mut self,
        layer: usize,
        new: &Projections,
        encoding: &dyn PositionEncoding,
        before: &mut Vec<Earlier>,
    ) -> Result<A> {
        let mut answers = Vec::new();
        for token in 0..new.queries.dims()[2] {
            let cache = &mut self.layers[layer];
            let due = cache.progress.decoded();
            cache.progress.withdraw();
            before.extend(cache.earlier());
            cache.progress.begin_draft(Draft { columns: 1, goes_on: token > 0 });
            answers.push(self.call_once(layer, new.token(token), encoding, None)?);
            let cache = &self.layers[layer];
            let compressed = token == 0 && due > 0 && cache.progress.decoded() == 1;
            if let Some(first) = before.first_mut().filter(|_| compressed) {
                *first = cache.before_compressing_token(first);
            }
        }
        self.layers[layer].mark = Some(Mark::Draft { before: std::mem::take(before) });
        A::join(answers)
    }
}
