//! One layer of a cache: append, attend, observe, compress; and nothing changed if any of it fails.

use std::cell::OnceCell;

use burn::tensor::{Device, Int, Tensor};

use super::{
    CacheConfig, Entries, LastQueries, Track, Tracks,
    compress::{Compressed, Due, Snapshot, View, compress},
    prompt::{Arrival, Phase, Progress, Prompt},
    query_window::{Queries, QueryWindow},
    ranks::Ranks,
    room::Room,
    store::{Encode, Store, StoreOptions, StoreQuery, dense::attend_entries},
};
use crate::{
    CacheShape, Error, Policy, PrefillCompression, Result,
    device::{Rows, buffer_bytes},
    ops::{
        Ops, Selection, Table, Visibility, WindowInput, gather_positions, gather_rows, gather_scalars,
        group_mean, laid_out, select_entries,
    },
    policy::PositionMode,
    position::{self, PositionEncoding},
    score::{ObservedHeads, Observes, Wanted},
};

/// What the layers of a cache share in one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) layer: usize,
    pub(super) shape: CacheShape,
    pub(super) policy: &'a Policy,
    pub(super) config: &'a CacheConfig,
    pub(super) device: &'a Device,
    /// How rows lie there.
    pub(super) rows: Rows,
    pub(super) encoding: &'a dyn PositionEncoding,
    /// What scorer and allocator want to know.
    pub(super) observes: Observes,
    /// What was measured of each layer at the last prompt.
    pub(super) measures: &'a [Option<Vec<f64>>],
}

/// Queries, keys and values of one call: checked, padding zeroed, positions not yet encoded.
#[derive(Clone, Debug)]
pub(super) struct Projections {
    pub(super) queries: Tensor<4>,
    pub(super) keys: Tensor<4>,
    pub(super) values: Tensor<4>,
}

#[derive(Clone, Debug)]
pub(super) struct LayerCache {
    progress: Progress,
    store: Option<Box<dyn Store>>,
    window: QueryWindow,
    /// Tokens held, one number a batch row and kv head, rows first, padding not counted.
    held: Vec<usize>,
    /// What the allocator measured at the last prompt, one number a batch row.
    measure: Option<Vec<f64>>,
    /// What the reducer remembers.
    state: Option<Box<Tensor<2>>>,
    /// Decoded queries in the local window so far.
    local_queries: usize,
    /// What is needed to compress again as later layers of a prompt arrive.
    snapshot: Option<Box<Snapshot>>,
}

/// A call that has been computed but not taken in.
pub(super) struct Step {
    store: Box<dyn Store>,
    /// The store before it grew.
    outgrown: Option<Box<dyn Store>>,
    /// Columns it held before.
    columns: usize,
}

/// What a call leaves behind, until nothing can fail any more.
pub(super) struct Outcome {
    pub(super) output: Tensor<4>,
    change: StoreChange,
    /// Tokens held after it, one number a batch row and kv head.
    held: Vec<usize>,
    queries: Queries,
    local_queries: usize,
    state: Option<Box<Tensor<2>>>,
    pub(super) measure: Option<Vec<f64>>,
    /// The entries as they are now, if they are to be compressed together with those of other layers.
    pub(super) snapshot: Option<(Box<Snapshot>, Box<Entries>)>,
}

/// A layer compressed again, until nothing can fail any more.
pub(super) struct Replacement {
    store: Option<Box<dyn Store>>,
    counts: Vec<usize>,
    state: Option<Tensor<2>>,
    scores: Option<Tensor<3>>,
}

enum StoreChange {
    /// The columns were appended; only what is counted of them is new.
    Appended { tracks: Tracks },
    /// These entries are all there is, with room for so many columns.
    Replaced { entries: Box<Entries>, capacity: usize },
}

impl LayerCache {
    pub(super) fn new(observes: Observes) -> Self {
        Self {
            progress: Progress::default(),
            store: None,
            window: QueryWindow::new(observes.window.max(observes.local)),
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
            + snapshot
            + state
    }

    pub(super) fn entries(&self) -> Result<Option<Entries>> {
        match self.store.as_ref().filter(|store| store.columns() > 0) {
            None => Ok(None),
            Some(store) => Ok(Some(store.entries()?.holding(&self.held))),
        }
    }

    /// The positions of what it holds, `[batch, kv_heads, columns]`, −1 at fillers.
    pub(super) fn positions(&self) -> Option<Tensor<3, Int>> {
        self.store.as_ref().filter(|store| store.columns() > 0).map(|store| store.positions())
    }

    /// Takes the store out for a call. It comes back with [`commit`](Self::commit) or [`abort`](Self::abort).
    pub(super) fn step(&mut self, context: Context<'_>, batch: usize) -> Step {
        let options = StoreOptions {
            shape: context.shape,
            batch,
            dtype: context.config.dtype,
            observes: context.observes,
            device: context.device.clone(),
            rows: context.rows,
            ops: context.config.ops.clone(),
        };
        let store = match self.store.take() {
            Some(store) => store,
            None => context.policy.store().build(options),
        };
        Step { columns: store.columns(), store, outgrown: None }
    }

    /// Undoes a call that failed.
    pub(super) fn abort(&mut self, step: Step) {
        let Step { mut store, outgrown, columns } = step;
        store.truncate(columns);
        self.store = Some(outgrown.unwrap_or(store));
    }

    /// Everything that can fail. All it changes is what stands behind the columns held; a store that grows is
    /// first copied into the step, where it shares its buffers. `positions` are the arrival's, `[batch, 1, new]`.
    pub(super) fn compute(
        &self,
        context: Context<'_>,
        arrival: &Arrival,
        new: Projections,
        positions: Tensor<3, Int>,
        step: &mut Step,
    ) -> Result<Outcome> {
        let Context { shape, policy, config, device, encoding, observes, .. } = context;
        let [batch, _, columns, head_dim] = new.queries.dims();
        let scale = config.softmax_scale.unwrap_or(1.0 / (head_dim as f64).sqrt());
        let mode = policy.positions();

        let seen = arrival.seen().iter().zip(&arrival.seen_before);
        let arrived: Vec<usize> = seen.map(|(after, before)| after - before).collect();
        let arrived_heads: Vec<usize> =
            arrived.iter().flat_map(|&new| std::iter::repeat_n(new, shape.kv_heads)).collect();
        let held: Vec<usize> = (0..batch * shape.kv_heads)
            .map(|head| self.held.get(head).copied().unwrap_or(0) + arrived_heads[head])
            .collect();
        check_positions(context, arrival, &held)?;

        let encode_rows =
            |x, positions| position::encode(encoding, x, positions, config.ops.as_ref());
        let query_bytes = new.queries.dtype().size();
        let queries_at_once = mode != PositionMode::InCache;
        let window_queries =
            if queries_at_once { encode_rows(new.queries, positions.clone())? } else { new.queries };
        let keys = match mode {
            PositionMode::Written => encode_rows(new.keys, positions.clone())?,
            PositionMode::InCache | PositionMode::Deferred => new.keys,
        };
        let arriving = Entries {
            keys: keys.cast(config.dtype),
            values: new.values.cast(config.dtype),
            positions: positions.clone().expand([batch, shape.kv_heads, columns]),
            tracks: Tracks::default(),
            sharing: None,
        };

        let room =
            Room::new(context, arrival, step.store.as_ref(), query_bytes, self.window.size())?;

        let store = &mut step.store;
        let loose = if store.columns() == 0 {
            // Attended as it came: if it is compressed, the whole of it is never stored.
            Some(Entries {
                tracks: super::tracks::zeros(observes, shape, batch, columns, device),
                ..arriving
            })
        } else if !store.moves_padding() && self.padding_inside(context, arrival, columns) {
            let before = store.entries()?.holding(&self.held);
            Some(self.padding_first(context, arrival, before, arriving, &held)?)
        } else {
            let needed = store.columns() + columns;
            if needed > store.capacity() || arrival.padded {
                step.outgrown = Some(store.clone());
                store.reserve(room.grown(needed));
            }
            store.append(arriving, &arrived_heads);
            None
        };
        let store = &*store;
        let (entry_positions, mut tracks, total) = match &loose {
            Some(loose) => (loose.positions.clone(), loose.tracks.clone(), loose.columns()),
            None => {
                let (positions, tracks) = store.scalars();
                (positions, tracks, store.columns())
            }
        };
        // Keys and values of a store are taken out of it only for those who look at them.
        let taken_out = OnceCell::new();
        let entries = || -> Result<&Entries> {
            if let Some(entries) = taken_out.get() {
                return Ok(entries);
            }
            let entries = match &loose {
                Some(loose) => loose.clone(),
                None => store.entries_at(entry_positions.clone())?.holding(&held),
            };
            Ok(taken_out.get_or_init(|| entries))
        };
        // Where tokens share, the host does not know how many of them are left.
        let shared = store.shares_entries();
        let padded = shared || held.iter().any(|&held| held != total);
        let ranks = Ranks { held: &held, shape, padded, device };

        let encode_at = match mode {
            PositionMode::Written => None,
            PositionMode::InCache => Some(ranks.of_entries(&entry_positions)),
            PositionMode::Deferred if policy.reducer().encodes_at_center() => {
                Some(center_positions(entries()?, config.ops.as_ref())?)
            }
            PositionMode::Deferred => Some(entry_positions.clone()),
        };
        let encode = encode_at.map(|positions| Encode { encoding, positions });
        let queries = if queries_at_once {
            window_queries.clone()
        } else {
            let ranks = ranks.of_new(&arrival.positions, &arrived);
            encode_rows(window_queries.clone(), ranks)?
        };
        let query = StoreQuery {
            queries,
            // A query that is padding sees nothing, whatever its column.
            visibility: match padded || arrival.padded {
                false => Visibility::Causal,
                true => Visibility::Positions {
                    queries: positions.clone(),
                    entries: entry_positions.clone(),
                },
            },
            encode: encode.clone(),
            scale,
            column_sums: observes.column_sums || observes.local > 0,
            column_squares: observes.column_squares,
            ops: config.ops.as_ref(),
        };
        let attended = match &loose {
            Some(loose) => attend_entries(loose.clone(), query)?,
            None => store.attend(query)?,
        };

        let queries = Queries { queries: window_queries, positions };
        let own_queries: Vec<usize> = self.window.own(&arrived);
        let last_queries = || -> Result<WindowInput> {
            let last = self.window.with(&queries, &arrival.positions);
            let size = last.positions.dims()[2];
            let encoded = if queries_at_once {
                last.queries
            } else {
                encode_rows(last.queries, ranks.of_last(size))?
            };
            Ok(WindowInput {
                queries: encoded,
                keys: Encode::keys(
                    encode.as_ref(),
                    laid_out(entries()?.clone(), config.ops.as_ref())?.keys,
                    config.ops.as_ref(),
                )?,
                // Entries between the window's own may have been evicted since.
                visibility: match padded || size > 1 {
                    false => Visibility::Causal,
                    true => Visibility::Positions {
                        queries: last.positions,
                        entries: entry_positions.clone(),
                    },
                },
                scale,
            })
        };
        let window = LastQueries::new(&last_queries, config.ops.as_ref());

        let due = compression_is_due(policy, arrival.phase);
        let prompt_event = match arrival.phase {
            Phase::Prompt { missing } => missing == 0 || due,
            Phase::Decode { .. } => false,
        };
        let local_queries = self.count(
            context,
            arrival,
            &mut tracks,
            (attended.column_sums, attended.column_squares),
            prompt_event.then_some(&window),
        )?;

        let mut outcome = Outcome {
            output: attended.output,
            change: StoreChange::Appended { tracks: Tracks::default() },
            held: held.clone(),
            queries: queries.clone(),
            local_queries,
            state: None,
            measure: None,
            snapshot: None,
        };
        let with_tracks = || -> Result<Entries> {
            Ok(Entries { tracks: tracks.clone(), ..entries()?.clone() })
        };
        let measures = prompt_event && policy.allocator().measures();
        if let Some(budget) = room.budget.as_ref().filter(|_| due || measures) {
            let entries = with_tracks()?;
            let view = View {
                entries: &entries,
                held: &outcome.held,
                arrived: &arrived,
                seen: arrival.seen(),
                budget,
                prompt: matches!(arrival.phase, Phase::Prompt { .. }),
                state: self.state(),
            };
            let due = Due { prompt: prompt_event, compress: due };
            let compressed = compress(context, view, &window, &own_queries, due)?;
            outcome.measure = compressed.measure;
            outcome.snapshot =
                compressed.snapshot.map(|snapshot| (Box::new(snapshot), Box::new(entries.clone())));
            if let Some(reduced) = compressed.reduced {
                outcome.replace_by(reduced, &room);
                return Ok(outcome);
            }
        }
        outcome.change = match loose {
            Some(_) => StoreChange::Replaced {
                capacity: room.grown(total),
                entries: Box::new(with_tracks()?),
            },
            None => StoreChange::Appended { tracks },
        };
        Ok(outcome)
    }

    /// Adds what this call's queries gave to each entry. Returns the decoded queries in the local window.
    fn count(
        &self,
        context: Context<'_>,
        arrival: &Arrival,
        tracks: &mut Tracks,
        (sums, squares): (Option<Tensor<3>>, Option<Tensor<3>>),
        window: Option<&LastQueries<'_>>,
    ) -> Result<usize> {
        let Context { shape, observes, .. } = context;
        let of_heads = |x: Tensor<3>| match observes.heads {
            ObservedHeads::Kv => group_mean(x, shape.kv_heads),
            ObservedHeads::Query => x,
        };
        let sums = sums.map(of_heads);
        let add = |tracks: &mut Tracks, track, new: Option<Tensor<3>>| {
            if let (Some(held), Some(new)) = (tracks.get_mut(track), new) {
                held.inplace(|held| held + new);
            }
        };
        add(tracks, Track::Sums, sums.clone());
        add(tracks, Track::Squares, squares);
        if observes.local == 0 {
            return Ok(0);
        }
        let set = |tracks: &mut Tracks, track, new: Tensor<3>| {
            if let Some(held) = tracks.get_mut(track) {
                *held = new;
            }
        };
        if let Some(window) = window {
            let last = window.moments(observes.local, &arrival.of_prompt, Wanted::default())?;
            let past = of_heads(last.sums.sums);
            set(tracks, Track::LocalCurrent, past.zeros_like());
            set(tracks, Track::LocalPast, past);
            return Ok(0);
        }
        if let Phase::Prompt { .. } = arrival.phase {
            return Ok(self.local_queries);
        }
        add(tracks, Track::LocalCurrent, sums);
        let queries = self.local_queries + 1;
        if queries < observes.local {
            return Ok(queries);
        }
        if let Some(current) = tracks.get(Track::LocalCurrent).cloned() {
            set(tracks, Track::LocalCurrent, current.zeros_like());
            set(tracks, Track::LocalPast, current);
        }
        Ok(0)
    }

    /// Whether new columns begin with padding behind entries that are held. Padding must stand before a
    /// row's first entry: scorers pool over neighbours, and a row in a batch has those it has alone.
    fn padding_inside(&self, context: Context<'_>, arrival: &Arrival, columns: usize) -> bool {
        let held = self.held.chunks(context.shape.kv_heads);
        let mut rows = arrival.positions.chunks(columns).zip(held);
        arrival.padded && rows.any(|(new, held)| held.iter().any(|&held| held > 0) && new[0] < 0)
    }

    /// What was held `before` and what is `arriving` behind it, `held` in all by heads, with all padding before it.
    fn padding_first(
        &self,
        context: Context<'_>,
        arrival: &Arrival,
        before: Entries,
        arriving: Entries,
        held: &[usize],
    ) -> Result<Entries> {
        let Context { shape, config, device, .. } = context;
        let (heads, ops) = (shape.kv_heads, config.ops.as_ref());
        let columns = arriving.columns();
        // The last so many of those before, and the new ones.
        let selection = |counts: &[usize], before: usize| {
            let of_head = |(head, &count): (usize, &usize)| -> Vec<usize> {
                let new = &arrival.positions[head / heads * columns..][..columns];
                let new = (0..columns).filter(|&column| new[column] >= 0);
                (before - count..before).chain(new.map(|column| before + column)).collect()
            };
            let lists: Vec<Vec<usize>> = counts.iter().enumerate().map(of_head).collect();
            Selection::of_heads(&lists, heads, device)
        };
        let tokens = selection(&self.held, before.columns());
        let rows = before
            .sharing
            .as_ref()
            .map(|sharing| selection(&sharing.all_entries(), before.keys.dims()[2]));
        let all = before.followed_by(arriving);
        let Some(rows) = rows else { return Ok(select_entries(all, &tokens, ops)?) };
        let tokens = tokens.rounded();
        let entries = Entries {
            keys: gather_rows(all.keys, &rows),
            values: gather_rows(all.values, &rows),
            positions: gather_positions(all.positions, &tokens),
            tracks: all.tracks.map(|track| gather_scalars(track, &tokens)),
            sharing: all.sharing,
        };
        let entries = entries.holding(held);
        let table = Table::of(&entries, ops)?;
        let sharing =
            table.map(|table| table.sharing(&entries.positions, held, ops)).transpose()?;
        Ok(Entries { sharing, ..entries })
    }

    /// Makes the outcome the state of the layer, which is as it was if that fails.
    pub(super) fn commit(
        &mut self,
        context: Context<'_>,
        arrival: Arrival,
        outcome: Outcome,
        mut step: Step,
    ) -> Result<Tensor<4>> {
        let Context { policy, config, observes, .. } = context;
        match outcome.change {
            StoreChange::Replaced { entries, capacity } => {
                if let Err(error) = step.store.replace(*entries, &outcome.held, capacity) {
                    self.abort(step);
                    return Err(error);
                }
            }
            StoreChange::Appended { tracks } => {
                if !tracks.is_empty() {
                    step.store.set_tracks(tracks);
                }
            }
        }
        let Step { mut store, .. } = step;
        self.held = outcome.held;
        let due = compression_is_due(policy, arrival.phase);
        let complete = !matches!(arrival.phase, Phase::Prompt { missing } if missing > 0);
        if complete || due {
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
            self.window.push(outcome.queries, &arrival.positions);
        }
        self.progress = arrival.into_progress(due);
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

impl Outcome {
    /// Compression leaves this.
    pub(super) fn replace_by(&mut self, compressed: Compressed, room: &Room) {
        let capacity = room.after_compression(compressed.entries.columns());
        self.take(compressed, capacity);
    }

    /// The same, decided together with other layers.
    pub(super) fn replace_among_layers(&mut self, compressed: Compressed, policy: &Policy) {
        let capacity = Room::compressed(policy, compressed.entries.columns());
        self.take(compressed, capacity);
    }

    fn take(&mut self, compressed: Compressed, capacity: usize) {
        let Compressed { entries, counts, state, scores } = compressed;
        self.change = StoreChange::Replaced { entries: Box::new(entries), capacity };
        self.held = counts;
        self.state = state.map(Box::new);
        if let (Some((snapshot, _)), Some(scores)) = (&mut self.snapshot, scores) {
            snapshot.scores = scores;
        }
    }

    /// Tokens held, one number a batch row and kv head.
    pub(super) fn held(&self) -> &[usize] {
        &self.held
    }
}

pub(super) fn compression_is_due(policy: &Policy, phase: Phase) -> bool {
    let schedule = policy.schedule();
    match phase {
        Phase::Prompt { missing: 0 } => schedule.prefill != PrefillCompression::Never,
        Phase::Prompt { .. } => schedule.prefill == PrefillCompression::EveryChunk,
        Phase::Decode { decoded } => schedule.decode_every.is_some_and(|every| decoded >= every),
    }
}

/// Refuses positions the encoding has no entry for.
fn check_positions(context: Context<'_>, arrival: &Arrival, held: &[usize]) -> Result<()> {
    let counted = match context.policy.positions() {
        PositionMode::Written | PositionMode::Deferred => arrival.seen(),
        PositionMode::InCache => held,
    };
    let position = counted.iter().copied().max().unwrap_or(0).saturating_sub(1);
    match context.encoding.max_positions() {
        Some(max) if position >= max => Err(Error::PositionOverflow { position, max }),
        _ => Ok(()),
    }
}

/// The position of each token's center, `[batch, kv_heads, columns]`.
fn center_positions(entries: &Entries, ops: &dyn Ops) -> Result<Tensor<3, Int>> {
    let Some(table) = Table::of(entries, ops)? else { return Ok(entries.positions.clone()) };
    Ok(entries.positions.clone().gather(2, table.centers.gather(2, table.rows)))
}
