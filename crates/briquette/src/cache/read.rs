//! Attention over what is held, without new entries.

use burn::tensor::Tensor;

use super::{
    KvCache,
    call::{
        attend::representative_positions,
        cache_positions::CachePositions,
        input::{check_encoding, check_queries},
        turn_back::TurnBack,
    },
    context::Context,
};
use crate::{
    Error, Result,
    ops::{Visibility, constant_ints},
    policy::PositionMode,
    position::{Encode, PositionEncoding, behind, encode_queries},
    store::{SlotStore, StoreQuery, attend_entries, sees_all},
};

impl KvCache {
    /// Computes the attention of queries over the entries that a layer holds. Nothing is appended
    /// and nothing changes.
    ///
    /// This is cross-attention over the output of an encoder that was prefilled once, or a probe.
    /// Every query sees every entry, or those in the layer's window. Where `encoding` encodes
    /// positions, the queries have those of the tokens that would come next.
    ///
    /// # Shapes
    /// - `queries`: `[batch, query_heads, new, head_dim]`
    /// - returns `[batch, query_heads, new, head_dim]`
    ///
    /// # Errors
    /// [`Error::NothingHeld`] before the first token; otherwise those of
    /// [`attend`](Self::attend).
    pub fn read(
        &self,
        layer: usize,
        queries: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        behind(self.channels_before(), encoding, |encoding| {
            self.read_encoded(layer, queries, encoding)
        })
    }

    fn read_encoded(
        &self,
        layer: usize,
        queries: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let (policy, shape) = (self.policy_of(layer), self.shape_of(layer));
        let device = self.device_of(layer);
        check_queries(layer, &queries, shape, device, self.batch)?;
        check_encoding(encoding, policy, shape, device)?;
        let cache = &self.layers[layer];
        let held = cache.store.clone().filter(|store| store.columns() > 0);
        let Some(mut store) = held else {
            return Err(Error::NothingHeld { layer });
        };
        // Entries that were decoded in place lie in any order, with free slots among them.
        let lies_in_order =
            |slots: &mut dyn SlotStore| !slots.is_unordered() && slots.slots_with_free().is_none();
        let laid_out = match store.in_place().is_none_or(lies_in_order) {
            true => None,
            false => cache.entries()?,
        };
        let [batch, _, new, _] = queries.dims();
        let end = cache.progress().seen().iter().copied().max().unwrap_or(0) + new;
        let next = |&seen: &usize| (seen..seen + new).map(|position| position as i64);
        let next = cache.progress().seen().iter().flat_map(next).collect();
        let next = constant_ints("positions", next, [batch, 1, new], device);
        let written = next.clone();
        let (mode, ops) = (policy.positions(), self.config.ops.as_ref());
        let turned = TurnBack::of(encoding, policy, (&next, end), cache.progress())?;
        let (queries, encoding) = match turned {
            Some(turned) => (turned.apply(queries, ops)?, turned.encoding),
            None => (queries, encoding),
        };
        if let Some(max) = encoding.max_positions().filter(|&max| end > max) {
            return Err(Error::PositionOverflow { position: end - 1, max });
        }

        let context = Context { encoding, ..self.context_between_calls(layer) };
        let of_entries = match &laid_out {
            Some(entries) => entries.positions.clone(),
            None => store.positions(),
        };
        let ranks = CachePositions::of_held(context, cache.held());
        let next = match mode {
            PositionMode::InCache => ranks.of_next(new),
            PositionMode::Written | PositionMode::Deferred => next,
        };
        let positions = match mode {
            PositionMode::Written => None,
            PositionMode::InCache => Some(ranks.of_entries(&of_entries)?),
            PositionMode::Deferred if policy.reducer().encodes_at_representative() => {
                let clustered = laid_out.clone().map_or_else(|| store.entries(), Ok)?;
                Some(representative_positions(&clustered.with_lengths(cache.held()), ops)?)
            }
            PositionMode::Deferred => Some(of_entries.clone()),
        };
        let queries = encode_queries(encoding, queries, next, end, ops)?;
        let is_full = cache.held().iter().all(|&held| held == of_entries.dims()[2]);
        let scoring = context.scoring();
        let visibility = match scoring.reads_positions() {
            true => Visibility::Positions { queries: written, entries: of_entries },
            false if new == 1 && is_full && !store.is_clustered() => Visibility::Causal,
            false => sees_all(new, of_entries),
        };
        let query = StoreQuery {
            queries,
            visibility,
            encode: positions.map(|positions| Encode { encoding, positions, end }),
            patterns: None,
            scoring,
            column_sums: false,
            column_squares: false,
            ops,
        };
        let attended = match laid_out {
            Some(entries) => attend_entries(entries, query)?,
            None => store.attend(query)?,
        };
        Ok(attended.output)
    }
}
