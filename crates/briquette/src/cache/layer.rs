//! One layer of a cache: append, attend, observe, compress; and nothing changed if any of it fails.

use burn::tensor::{Int, Tensor};

use super::{
    Entries, Prompt,
    append::{Step, append},
    attend::{attend, key_encoding},
    compress::{Compressed, Due, Findings, Snapshot, compress},
    context::Context,
    observe::{count, count_chunks, encoded, window},
    outcome::{Outcome, StoreChange},
    place::Placed,
    progress::{Phase, Progress},
    query_log::QueryLog,
    query_window::QueryWindow,
    room::Room,
};
use crate::{
    LayerView, Result,
    device::{Rows, buffer_bytes},
    observes::Observes,
    ops::AttentionOutput,
    store::Store,
};

/// A layer compressed again, until nothing can fail any more.
pub(super) struct Replacement {
    store: Option<Box<dyn Store>>,
    counts: Vec<usize>,
    state: Option<Tensor<2>>,
    scores: Option<Tensor<3>>,
}

#[derive(Clone, Debug)]
pub(super) struct LayerCache {
    pub(super) progress: Progress,
    pub(super) store: Option<Box<dyn Store>>,
    pub(super) window: QueryWindow,
    pub(super) log: QueryLog,
    /// Tokens held, one number a batch row and kv head, rows first, padding not counted.
    pub(super) held: Vec<usize>,
    /// The allocator's measure at the last prompt, one number a batch row.
    pub(super) measure: Option<Vec<f64>>,
    /// The state of the reducer.
    pub(super) state: Option<Box<Tensor<2>>>,
    /// Decoded queries in the local window so far.
    pub(super) local_queries: usize,
    /// The scores and counts needed to compress again as later layers of a prompt arrive.
    pub(super) snapshot: Option<Box<Snapshot>>,
}

impl LayerCache {
    pub(super) fn new(observes: Observes) -> Self {
        Self {
            progress: Progress::default(),
            store: None,
            window: QueryWindow::new(observes.window.max(observes.local)),
            log: QueryLog::default(),
            held: Vec::new(),
            measure: None,
            state: None,
            local_queries: 0,
            snapshot: None,
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn begin(&mut self, prompt: Prompt) {
        self.progress.begin(prompt);
    }

    pub(super) fn held(&self) -> &[usize] {
        &self.held
    }

    pub(super) fn measure(&self) -> Option<&Vec<f64>> {
        self.measure.as_ref()
    }

    pub(super) fn state(&self) -> Option<&Tensor<2>> {
        self.state.as_deref()
    }

    pub(super) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_deref()
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let snapshot = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes(rows));
        let state = self.state.as_ref().map_or(0, |state| buffer_bytes(state, rows));
        self.store.as_ref().map_or(0, |store| store.bytes())
            + self.window.bytes(rows)
            + self.log.bytes(rows)
            + snapshot
            + state
    }

    /// Those of [`bytes`](Self::bytes) that are free.
    pub(super) fn spare_bytes(&self) -> usize {
        self.store.as_ref().map_or(0, |store| store.spare_bytes())
    }

    /// Tokens to keep, one number a batch row; `None` keeps everything, and before the first token.
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

    /// The positions of what it holds, `[batch, kv_heads, columns]`, −1 at fillers.
    pub(super) fn positions(&self) -> Option<Tensor<3, Int>> {
        self.store.as_ref().filter(|store| store.columns() > 0).map(|store| store.positions())
    }

    /// Takes the store out for a call. It comes back with [`commit`](Self::commit) or [`abort`](Self::abort).
    pub(super) fn step(&mut self, context: Context<'_>, batch: usize) -> Step {
        Step::new(self.store.take(), context, batch)
    }

    /// Undoes a call that failed.
    pub(super) fn abort(&mut self, step: Step) {
        self.store = step.undone();
    }

    /// The layer as it was before a call that has computed its outcome. What has made way for padding cannot be cut off
    /// again, and room that stayed would count where there is a ceiling.
    pub(super) fn before(&self, context: Context<'_>, placed: &Placed, step: &Step) -> Self {
        let outgrown = placed.arrival.padded || context.config.memory_ceiling.is_some();
        Self { store: step.before(outgrown), ..self.clone() }
    }

    /// Everything that can fail. All it changes is what stands behind the columns held.
    pub(super) fn compute(
        &self,
        context: Context<'_>,
        placed: &Placed,
        arriving: Entries,
        step: &mut Step,
    ) -> Result<Outcome> {
        let room = Room::new(context, placed, step.store.as_ref(), self.window.size())?;
        let mut all = append(context, placed, arriving, &self.held, &room, step)?;
        let store = step.store.as_ref();
        let encode = key_encoding(context, placed, &mut all, store)?;
        let attended = attend(context, placed, &all, encode.clone(), store)?;

        let (seen, phase) = (placed.arrival.seen(), placed.arrival.phase);
        let due = Due::of(context.policy, phase);
        let measures = due.prompt && context.policy.allocator().measures();
        let budget = room.budget.as_ref().filter(|_| due.compress || measures);
        let counts_window = due.prompt && context.observes.local > 0;
        let shows_window = budget.is_some() && context.observes.window > 0;
        let window = (counts_window || shows_window)
            .then(|| window(context, placed, &mut all, encode.clone(), &self.window, store))
            .transpose()?;
        let AttentionOutput { output, column_sums, column_squares } = attended;
        let local_queries = count(
            context,
            &placed.arrival,
            &mut all.tracks,
            (column_sums, column_squares),
            window.as_ref().filter(|_| counts_window),
            self.local_queries,
        )?;

        let mut findings = Findings::default();
        let mut measured_entries = None;
        if let Some(budget) = budget {
            let plain = placed.plain.as_ref();
            let queries = plain.map(|new| self.log.with(new, &placed.arrival.positions));
            if let Some(queries) = queries.as_ref().filter(|_| context.observes.chunk > 0) {
                count_chunks(context, placed, queries, &mut all, store)?;
            }
            let encoded = encoded(context, placed, encode);
            let entries = all.counted(store, &placed.held)?;
            let view = LayerView {
                window: window.as_ref().filter(|_| shows_window),
                window_queries: &self.window.own(&placed.arrived),
                queries: queries.as_ref(),
                encoded: Some(&encoded),
                state: self.state(),
                ..context.view(&entries, &placed.held, seen, budget, phase.is_prompt())
            };
            findings = compress(context.policy, view, &placed.arrived, due)?;
            measured_entries = Some(entries);
        }
        let Findings { reduced, measure, snapshot } = findings;
        let snapshot = snapshot.zip(measured_entries);
        let mut outcome = Outcome {
            output,
            change: all.change(store, &placed.held, &room)?,
            held: placed.held.clone(),
            local_queries,
            state: None,
            measure,
            snapshot: snapshot.map(|(snapshot, entries)| (Box::new(snapshot), Box::new(entries))),
        };
        if let Some(reduced) = reduced {
            outcome.replace_by(reduced, &room, store.capacity());
        }
        Ok(outcome)
    }

    /// Makes the outcome the state of the layer, which is as it was if that fails.
    pub(super) fn commit(
        &mut self,
        context: Context<'_>,
        placed: Placed,
        outcome: Outcome,
        mut step: Step,
    ) -> Result<Tensor<4>> {
        let Context { policy, observes, .. } = context;
        let Placed { arrival, queries, plain, arrived, .. } = placed;
        match outcome.change {
            StoreChange::Replaced { entries, capacity } => {
                if let Err(error) = step.store.replace(*entries, &outcome.held, capacity) {
                    self.abort(step);
                    return Err(error);
                }
            }
            StoreChange::Appended { tracks } => {
                if !tracks.is_empty() {
                    step.store.set_tracks(*tracks);
                }
            }
        }
        let Step { mut store, .. } = step;
        self.held = outcome.held;
        let compressed = Due::of(policy, arrival.phase).compress;
        let complete = !matches!(arrival.phase, Phase::Prompt { missing, .. } if missing > 0);
        if complete || compressed {
            let asked = policy.store().window();
            if asked > 0 && arrival.phase.is_prompt() {
                let last = self.window.with(&queries, &arrival.positions);
                store.observe_queries(last.mean_squares(asked, context.shape.kv_heads), &arrived);
            }
            store.settle();
        }
        self.store = Some(store);
        self.local_queries = outcome.local_queries;
        self.state = outcome.state.or(self.state.take());
        self.measure = outcome.measure.or(self.measure.take());
        self.snapshot = outcome.snapshot.map(|(snapshot, _)| snapshot);
        // Queries matter until the next compression: one that only a prompt brings looks at none of the decoded
        // ones, and sums over a local window are kept entry by entry.
        let in_decoding = policy.schedule().decode_every.is_some() && observes.window > 0;
        if complete && !in_decoding {
            self.window.clear();
        } else {
            self.window.push(queries, &arrival.positions);
        }
        if complete && policy.schedule().decode_every.is_none() {
            self.log.clear();
        } else if let Some(plain) = plain {
            self.log.push(plain, &arrival.positions);
            if compressed {
                self.log.clear_rows(&arrived);
            }
        }
        self.progress = arrival.into_progress(compressed);
        Ok(outcome.output)
    }

    /// The store with what a later layer's arrival has left of this one; the layer itself is unchanged.
    pub(super) fn replacement(
        &self,
        context: Context<'_>,
        compressed: Compressed,
    ) -> Result<Replacement> {
        let Compressed { entries, counts, state, scores } = compressed;
        let capacity = Room::compressed(context.policy, entries.columns());
        let mut store = self.store.clone();
        if let Some(store) = &mut store {
            store.replace(entries, &counts, capacity)?;
            store.settle();
        }
        Ok(Replacement { store, counts, state, scores })
    }

    /// Takes a replacement in.
    pub(super) fn replace(&mut self, replacement: Replacement) {
        let Replacement { store, counts, state, scores } = replacement;
        self.store = store;
        if let (Some(snapshot), Some(scores)) = (&mut self.snapshot, scores) {
            snapshot.scores = scores;
        }
        self.held = counts;
        self.state = state.map(Box::new).or(self.state.take());
    }

    /// Forgets what was needed while layers of a prompt were still to come.
    pub(super) fn forget_snapshot(&mut self) {
        self.snapshot = None;
    }
}
