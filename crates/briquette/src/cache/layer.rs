//! One layer of a cache: it appends, attends, observes and compresses, and changes nothing if any
//! of these fails.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};

use super::{
    call::{
        answer::Answer,
        append::append,
        attend::key_encoding,
        capacity::CapacityPlan,
        compress::{CompressionDue, Findings, Snapshot, compress},
        in_place::{append_in_place, counts_in_place, eviction},
        input::LayerInput,
        statistics::{count, count_chunks, encoded, window},
        store_guard::StoreGuard,
        update::{LayerUpdate, StoreChange},
        working_set::columns_of,
    },
    context::Context,
    growth::Growth,
    progress::{Phase, Progress},
    queries::{log::QueryLog, window::QueryWindow},
};
use crate::{
    Error, LayerView, Result,
    device::{Rows, buffer_bytes},
    ops::{AttentionStatistics, Entries},
    reduce::Reduced,
    stage::AttentionRequest,
    store::Store,
    view::Measure,
};

/// One layer of a cache between calls.
#[derive(Clone, Debug)]
pub(super) struct LayerCache {
    pub(super) progress: Progress,
    pub(super) store: Option<Box<dyn Store>>,
    pub(super) window: QueryWindow,
    pub(super) log: QueryLog,
    /// Tokens held per batch row and kv head, rows first, padding not counted.
    pub(super) held: Vec<usize>,
    /// The allocator's measure at the last prompt, per batch row.
    pub(super) measure: Option<Measure>,
    pub(super) state: Option<Box<Tensor<2>>>,
    /// Entries that each head may keep, per batch row and kv head; `None` before a decoded token
    /// was compressed.
    pub(super) share: Option<Vec<usize>>,
    /// Entries to keep at future tokens, where they are computed ahead.
    pub(super) growth: Option<Arc<Growth>>,
    /// Decoded queries in the local window so far.
    pub(super) local_queries: usize,
    /// The scores and counts needed to compress again as later layers of a prompt arrive.
    pub(super) snapshot: Option<Box<Snapshot>>,
    /// Whether the entries were compressed by a second pass.
    pub(super) second_pass: bool,
    /// Number of first columns of the store that cannot be cut back to, since what lay there was
    /// compressed or moved.
    pub(super) fixed: usize,
    /// The layer as it was before the prompt or the draft that came last, without its entries.
    pub(super) mark: Option<Mark>,
}

/// A layer at an earlier time, without its entries: later ones lie behind those of that time, and
/// are cut off.
#[derive(Clone, Debug)]
pub(super) struct Earlier {
    pub(super) layer: LayerCache,
    pub(super) statistics: AttentionStatistics,
}

/// The layer as it was before the calls that may be taken back.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// Before a prompt behind other tokens; whether the entries from before it are still what they
    /// were.
    Prompt { before: Box<Earlier>, is_reversible: bool },
    /// Before each token of a draft.
    Draft { before: Vec<Earlier> },
}

impl LayerCache {
    pub(super) fn new(observes: AttentionRequest) -> Self {
        Self {
            progress: Progress::default(),
            store: None,
            window: QueryWindow::new(observes.window.max(observes.local)),
            log: QueryLog::default(),
            held: Vec::new(),
            measure: None,
            state: None,
            share: None,
            growth: None,
            local_queries: 0,
            snapshot: None,
            second_pass: false,
            fixed: 0,
            mark: None,
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn held(&self) -> &[usize] {
        &self.held
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let snapshot = self.snapshot.as_ref().map_or(0, |it| buffer_bytes(&it.scores, rows));
        let state = self.state.as_ref().map_or(0, |state| buffer_bytes(state, rows));
        self.store.as_ref().map_or(0, |store| store.bytes())
            + self.window.bytes(rows)
            + self.log.bytes(rows)
            + snapshot
            + state
    }

    /// Free bytes among [`bytes`](Self::bytes).
    pub(super) fn spare_bytes(&self) -> usize {
        let store = self.store.as_ref();
        store.map_or(0, |store| store.spare_bytes() + store.free_slot_bytes(&self.held))
    }

    /// Number of tokens to keep per batch row; `None` if everything is kept, and before the first
    /// token.
    pub(super) fn budget(&self, context: Context<'_>) -> Result<Option<Vec<usize>>> {
        let Some(store) = &self.store else { return Ok(None) };
        let bytes_of = |entries, columns| store.bytes_of(entries, columns);
        context.policy.resolve(context.shape, self.progress.seen(), &bytes_of)
    }

    pub(super) fn entries(&self) -> Result<Option<Entries>> {
        match self.store.as_ref().filter(|store| store.columns() > 0) {
            None => Ok(None),
            Some(store) => Ok(Some(store.entries()?.with_lengths(&self.held))),
        }
    }

    /// Number of entries per batch row and kv head; fewer than tokens where tokens share entries.
    pub(super) fn entry_counts(&self) -> Vec<usize> {
        let mut store = self.store.clone();
        let slots = store.as_mut().and_then(|store| store.in_place());
        slots.map_or_else(|| self.held.clone(), |slots| slots.entry_counts(&self.held))
    }

    /// Returns the entries in storage order, with arbitrary keys and values; by position in a store
    /// without slots.
    pub(super) fn entries_as_they_lie(&self) -> Result<Option<Entries>> {
        let mut store = self.store.clone();
        match store.as_mut().and_then(|store| store.in_place()) {
            Some(slots) => Ok(Some(slots.slots(false)?.with_lengths(&self.held))),
            None => self.entries(),
        }
    }

    /// The positions of its entries, `[batch, kv_heads, columns]`, −1 at padding.
    pub(super) fn positions(&self) -> Option<Tensor<3, Int>> {
        self.store.as_ref().filter(|store| store.columns() > 0).map(|store| store.positions())
    }

    pub(super) fn abort(&mut self, guard: StoreGuard) {
        self.store = guard.undone();
    }

    /// Returns the layer as it was before a call whose update has been computed. It takes back the
    /// store from before it grew in two cases: entries were moved for padding, which cutting
    /// columns off cannot undo, or new room would count against a ceiling.
    pub(super) fn before_call(
        &self,
        context: Context<'_>,
        input: &LayerInput,
        guard: &StoreGuard,
    ) -> Self {
        let outgrown = input.span.padded || context.config.memory_ceiling.is_some();
        Self { store: guard.before(outgrown), ..self.clone() }
    }

    /// Computes the output of a call and the update of the layer, without applying it. Writes only
    /// to columns of the store behind those held.
    pub(super) fn compute<A: Answer>(
        &self,
        context: Context<'_>,
        input: &LayerInput,
        arriving: Entries,
        guard: &mut StoreGuard,
    ) -> Result<(A, LayerUpdate)> {
        let decodes = !input.span.phase.is_prompt();
        if decodes && !self.second_pass && context.policy.waits_for_second_pass() {
            return Err(Error::SecondPassMissing { policy: context.policy.name().to_owned() });
        }
        let plan = CapacityPlan::new(context, input, guard.store.as_ref(), self.window.size())?;
        if let Some(decoded) = self.decode_in_place(context, input, &arriving, &plan, guard)? {
            return Ok(decoded);
        }
        guard.order(&self.held)?;
        let mut all = append(context, input, arriving, &self.held, &plan, guard)?;
        let store = guard.store.as_ref();
        let encode = key_encoding(context, input, &mut all, store)?;
        let (answer, (column_sums, column_squares)) =
            A::of(context, input, &mut all, encode.clone(), store)?;

        let (seen, phase) = (input.span.seen(), input.span.phase);
        let due = CompressionDue::of(context.policy, phase);
        let measures = due.prompt && context.policy.allocator().measures();
        let budget = plan.budget.as_ref().filter(|_| due.compress || measures);
        let counts_window = due.prompt && context.observes.local > 0;
        let shows_window = budget.is_some() && context.observes.window > 0;
        let window = (counts_window || shows_window)
            .then(|| {
                let (keys, sums) = (encode.clone(), column_sums.as_ref());
                window(context, input, &mut all, keys, &self.window, sums, store)
            })
            .transpose()?;
        let local_queries = count(
            context,
            input,
            &mut all.statistics,
            (column_sums, column_squares),
            window.as_ref().filter(|_| counts_window),
            self.local_queries,
        )?;

        let mut findings = Findings::default();
        let mut measured_entries = None;
        if let Some(budget) = budget {
            let plain = input.plain.as_ref();
            let queries = plain.map(|new| self.log.with(new, &input.span.positions));
            if let Some(queries) = queries.as_ref().filter(|_| context.observes.chunk > 0) {
                count_chunks(context, input, queries, &mut all, store)?;
            }
            let encoded = encoded(context, input, encode);
            let entries = all.counted(store, &input.held)?;
            let view = LayerView {
                window: window.as_ref().filter(|_| shows_window),
                window_queries: &self.window.own(&input.arrived),
                queries: queries.as_ref(),
                encoded: Some(&encoded),
                state: self.state.as_deref(),
                ..context.view(&entries, &input.held, seen, budget, phase.is_prompt())
            };
            findings = compress(context.policy, view, &input.arrived, due)?;
            measured_entries = Some(entries);
        }
        let Findings { reduced, share, measure, snapshot } = findings;
        let snapshot = snapshot.zip(measured_entries);
        let mut update = LayerUpdate {
            change: all.change(store, &input.held, &plan)?,
            held: input.held.clone(),
            share: share.filter(|_| !phase.is_prompt()),
            local_queries,
            state: None,
            measure,
            snapshot: snapshot.map(|(snapshot, entries)| (Box::new(snapshot), Box::new(entries))),
        };
        if let Some(reduced) = reduced {
            let capacity = plan.after_compression(reduced.entries.columns(), store.capacity());
            update.compress(reduced, capacity);
        }
        Ok((answer, update))
    }

    /// Decodes a token that takes the place of an entry, which is evicted, or a free slot. `None`,
    /// and nothing has changed, if it must be appended to entries by position.
    fn decode_in_place<A: Answer>(
        &self,
        context: Context<'_>,
        input: &LayerInput,
        token: &Entries,
        plan: &CapacityPlan,
        guard: &mut StoreGuard,
    ) -> Result<Option<(A, LayerUpdate)>> {
        let before = (&self.held[..], self.growth.as_deref());
        let counts = counts_in_place(context, input, token, before, plan, guard.store.as_mut())?;
        let (Some(counts), Some(budget)) = (counts, &plan.budget) else { return Ok(None) };
        let mut all = append_in_place::<A>(context, input, token.clone(), plan, guard)?;
        let store = guard.store.as_ref();
        let encode = key_encoding(context, input, &mut all, store)?;
        let (answer, sums) = A::of(context, input, &mut all, encode.clone(), store)?;
        let window = (context.observes.window > 0)
            .then(|| {
                let (keys, sums) = (encode.clone(), sums.0.as_ref());
                window(context, input, &mut all, keys, &self.window, sums, store)
            })
            .transpose()?;
        let statistics = &mut all.statistics;
        let local_queries = count(context, input, statistics, sums, None, self.local_queries)?;
        let entries = all.counted(store, &input.held)?;
        let view = LayerView {
            window: window.as_ref(),
            window_queries: &self.window.own(&input.arrived),
            encoded: Some(&encoded(context, input, encode)),
            state: self.state.as_deref(),
            ..context.view(&entries, &input.held, input.span.seen(), budget, false)
        };
        let eviction = Box::new(eviction(context.policy, &view, &counts)?);
        let change = StoreChange::Evicted { eviction, statistics: Box::new(all.statistics) };
        let (held, share) = (counts.held, Some(counts.kept));
        let (state, measure, snapshot) = (None, None, None);
        let update = LayerUpdate { change, held, share, local_queries, state, measure, snapshot };
        Ok(Some((answer, update)))
    }

    /// Applies the update of a call. The layer does not change if that fails.
    pub(super) fn commit(
        &mut self,
        context: Context<'_>,
        input: LayerInput,
        mut update: LayerUpdate,
        mut guard: StoreGuard,
    ) -> Result<()> {
        let Context { policy, observes, .. } = context;
        let LayerInput { span, queries, plain, arrived, .. } = input;
        let compressed = CompressionDue::of(policy, span.phase).compress;
        let moved = matches!(update.change, StoreChange::Replaced { .. }) || span.padded;
        let held_before = guard.columns > 0;
        let drafted = CompressionDue::of(policy, span.phase).stays;
        match update.change {
            StoreChange::Replaced { entries, capacity } => {
                let replaced = match drafted {
                    0 => guard.store.replace(*entries, &update.held, capacity),
                    _ => replace_and_append(&mut guard, *entries, &update.held, drafted, capacity),
                };
                if let Err(error) = replaced {
                    self.abort(guard);
                    return Err(error);
                }
            }
            StoreChange::Appended { statistics } => {
                if !statistics.is_empty() && (observes.counts_queries() || compressed) {
                    guard.store.set_statistics(*statistics);
                }
            }
            StoreChange::Evicted { eviction, statistics } => {
                let slots = guard.store.in_place();
                match slots.map(|slots| slots.evict(&eviction, *statistics)).transpose() {
                    Ok(threshold) => update.state = threshold.flatten().map(Box::new),
                    Err(error) => {
                        self.abort(guard);
                        return Err(error);
                    }
                }
            }
        }
        let StoreGuard { mut store, .. } = guard;
        self.fixed = if compressed || moved && held_before {
            store.columns().saturating_sub(drafted)
        } else {
            // Free slots among them are gone.
            let new = arrived.iter().copied().max().unwrap_or(0);
            self.fixed.min(store.columns().saturating_sub(new))
        };
        (self.held, self.share) = (update.held, update.share);
        let complete = !matches!(span.phase, Phase::Prompt { missing, .. } if missing > 0);
        match &mut self.mark {
            Some(Mark::Prompt { is_reversible, .. }) => *is_reversible &= !moved && !complete,
            Some(Mark::Draft { .. }) => self.mark = None,
            None => {}
        }
        if complete || compressed {
            let asked = policy.store().window();
            if asked > 0 && span.phase.is_prompt() {
                let last = self.window.with(&queries, &span.positions);
                store.observe_queries(last.mean_squares(asked, context.shape.kv_heads), &arrived);
            }
            // Tokens of a draft settle when they are accepted.
            if !matches!(span.phase, Phase::Draft { .. }) {
                store.settle();
            }
        }
        self.store = Some(store);
        self.local_queries = update.local_queries;
        self.state = update.state.or(self.state.take());
        self.measure = update.measure.or(self.measure.take());
        self.snapshot = update.snapshot.map(|(snapshot, _)| snapshot);
        // Queries matter until the next compression: one that only a prompt brings looks at none of
        // the decoded ones, and sums over a local window are kept entry by entry.
        let in_decoding = policy.schedule().decode_every.is_some() && observes.window > 0;
        if complete && !in_decoding {
            self.window.clear();
        } else {
            self.window.push(queries, &span.positions);
        }
        if complete && policy.schedule().decode_every.is_none() {
            self.log.clear();
        } else if let Some(plain) = plain {
            self.log.push(plain, &span.positions);
            if compressed {
                self.log.clear_rows(&arrived);
            }
        }
        self.progress = span.into_progress(compressed);
        Ok(())
    }

    /// Returns this layer with the entries that a compression of several layers has kept; does not
    /// modify the layer.
    pub(super) fn rebuild(&self, context: Context<'_>, reduced: Reduced) -> Result<Self> {
        let Reduced { entries, counts, state } = reduced;
        let capacity = CapacityPlan::after_prompt(context.policy, entries.columns());
        let mut layer = self.clone();
        if let Some(store) = &mut layer.store {
            store.replace(entries, &counts, capacity)?;
            store.settle();
        }
        layer.held = counts;
        layer.fixed = layer.store.as_ref().map_or(0, |store| store.columns());
        if let Some(Mark::Prompt { is_reversible, .. }) = &mut layer.mark {
            *is_reversible = false;
        }
        layer.state = state.map(Box::new).or(layer.state);
        Ok(layer)
    }
}

/// Replaces all entries of a store, of which each head has `held`. The last `drafted` columns are
/// appended to the others, so that they can be cut off. The store does not change if that fails.
fn replace_and_append(
    guard: &mut StoreGuard,
    entries: Entries,
    held: &[usize],
    drafted: usize,
    capacity: usize,
) -> Result<()> {
    let mut store = guard.store.clone();
    let columns = entries.columns() - drafted;
    let first: Vec<usize> = held.iter().map(|held| held.saturating_sub(drafted)).collect();
    store.replace(columns_of(entries.clone(), 0, columns), &first, capacity)?;
    let last: Vec<usize> = held.iter().zip(&first).map(|(held, first)| held - first).collect();
    store.append(columns_of(entries, columns, drafted), &last)?;
    guard.store = store;
    Ok(())
}
