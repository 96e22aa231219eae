//! One layer of a cache: append, attend, observe, compress; and nothing changed if any of it fails.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{
    CacheConfig, Entries,
    prompt::{Arrival, Phase, Progress, Prompt},
    query_window::{Queries, QueryWindow},
    store::{Encode, Store, StoreOptions, StoreQuery, dense::attend_entries},
};
use crate::{
    CacheShape, Error, Policy, PrefillCompression, Result,
    allocate::{AllocateInput, Allocation, LazyScores},
    ops::{SelectInput, Selection, Visibility, WindowInput},
    policy::{Footprint, PositionMode},
    position::PositionEncoding,
    reduce::ReduceInput,
    score::{Observes, ScoreInput},
};

/// What the layers of a cache share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) layer: usize,
    pub(super) shape: CacheShape,
    pub(super) policy: &'a Policy,
    pub(super) config: &'a CacheConfig,
    pub(super) device: &'a Device,
    pub(super) encoding: &'a dyn PositionEncoding,
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
    /// Entries held, one number a batch row, padding not counted.
    held: Vec<usize>,
}

/// What a call leaves behind, until nothing can fail any more.
struct Outcome {
    output: Tensor<4>,
    store: StoreChange,
    /// Entries held after it, one number a batch row.
    held: Vec<usize>,
    queries: Queries,
}

enum StoreChange {
    /// The columns were appended; only the weights they received are new.
    Appended { column_sums: Option<Box<Tensor<3>>> },
    /// These entries are all there is, with room for so many columns.
    Replaced { entries: Box<Entries>, capacity: usize },
}

impl LayerCache {
    pub(super) fn new(observes: Observes) -> Self {
        Self {
            progress: Progress::default(),
            store: None,
            window: QueryWindow::new(observes.window),
            held: Vec::new(),
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

    pub(super) fn bytes(&self) -> usize {
        self.store.as_ref().map_or(0, |store| store.bytes()) + self.window.bytes()
    }

    pub(super) fn entries(&self) -> Option<Entries> {
        self.store.as_ref().filter(|store| store.columns() > 0).map(|store| store.entries())
    }

    /// See [`KvCache::attend`](super::KvCache::attend). `positions` are the arrival's, `[batch, 1, new]`.
    pub(super) fn attend(
        &mut self,
        context: Context<'_>,
        arrival: Arrival,
        new: Projections,
        positions: Tensor<3, Int>,
    ) -> Result<Tensor<4>> {
        let options = StoreOptions {
            shape: context.shape,
            batch: new.queries.dims()[0],
            dtype: context.config.dtype,
            column_sums: context.policy.scorer().observes().column_sums,
            device: context.device.clone(),
        };
        let mut store = match self.store.take() {
            Some(store) => store,
            None => context.policy.store().build(options),
        };
        let columns = store.columns();
        let mut outgrown = None;
        match self.compute(context, &arrival, new, positions, &mut store, &mut outgrown) {
            Ok(outcome) => {
                let output = self.commit(context, arrival, outcome, store.as_mut());
                self.store = Some(store);
                Ok(output)
            }
            Err(error) => {
                store.truncate(columns);
                self.store = Some(outgrown.unwrap_or(store));
                Err(error)
            }
        }
    }

    /// Everything that can fail. All it changes is what stands behind the columns held; a store that grows is
    /// first copied into `outgrown`, which shares its buffers.
    fn compute(
        &self,
        context: Context<'_>,
        arrival: &Arrival,
        new: Projections,
        positions: Tensor<3, Int>,
        store: &mut Box<dyn Store>,
        outgrown: &mut Option<Box<dyn Store>>,
    ) -> Result<Outcome> {
        let Context { shape, policy, config, device, encoding, .. } = context;
        let [batch, _, columns, head_dim] = new.queries.dims();
        let scale = config.softmax_scale.unwrap_or(1.0 / (head_dim as f64).sqrt());
        let observes = policy.scorer().observes();
        let in_cache = policy.positions() == PositionMode::InCache;

        let seen = arrival.seen().iter().zip(&arrival.seen_before);
        let arrived: Vec<usize> = seen.map(|(after, before)| after - before).collect();
        let held: Vec<usize> =
            (0..batch).map(|row| self.held.get(row).copied().unwrap_or(0) + arrived[row]).collect();
        check_positions(context, arrival, &held)?;

        let query_bytes = new.queries.dtype().size();
        let (keys, window_queries) = if in_cache {
            (new.keys, new.queries)
        } else {
            let keys = encoding.encode(new.keys, positions.clone());
            (keys, encoding.encode(new.queries, positions.clone()))
        };
        let arriving = Entries {
            keys: keys.cast(config.dtype),
            values: new.values.cast(config.dtype),
            positions: positions.clone().expand([batch, shape.kv_heads, columns]),
            column_sums: None,
        };

        let room = self.room(context, arrival, store.as_ref(), query_bytes)?;

        let mut loose = true;
        let mut entries = if store.columns() == 0 {
            // Attended as it came: if it is compressed, the whole of it is never stored.
            arriving
        } else if self.padding_inside(arrival, columns) {
            let selection = self.padding_first(context, arrival, store.columns());
            store.entries().followed_by(arriving).select(&selection, config.ops.as_ref())
        } else {
            let needed = store.columns() + columns;
            if needed > store.capacity() {
                *outgrown = Some(store.clone());
                store.reserve(room.grown(needed));
            }
            store.append(arriving);
            loose = false;
            store.entries()
        };
        let total = entries.columns();
        let padded = held.iter().any(|&held| held != total);
        let ranks = Ranks { held: &held, padded, device };

        let encode = in_cache.then(|| Encode { encoding, positions: ranks.of_entries(&entries) });
        let queries = if in_cache {
            let ranks = ranks.of_new(&arrival.positions, &arrived);
            encoding.encode(window_queries.clone(), ranks)
        } else {
            window_queries.clone()
        };
        let query = StoreQuery {
            queries,
            visibility: Visibility {
                queries: positions.clone(),
                entries: entries.positions.clone(),
                // A query that is padding sees nothing, whatever its column.
                by_position: padded || arrival.padded,
            },
            encode: encode.clone(),
            scale,
            column_sums: observes.column_sums,
            ops: config.ops.as_ref(),
        };
        let attended =
            if loose { attend_entries(entries.clone(), query) } else { store.attend(query) };

        let column_sums = attended.column_sums.map(|sums| match entries.column_sums.take() {
            None => sums,
            Some(before) => before + sums,
        });
        entries.column_sums = column_sums.clone();
        let queries = Queries { queries: window_queries, positions };

        let compressed = match (compression_is_due(policy, arrival.phase), &room.budget) {
            (true, Some(budget)) => {
                let window = (observes.window > 0).then(|| {
                    let last = self.window.with(&queries, &arrival.positions, config.ops.as_ref());
                    let size = last.positions.dims()[2];
                    let encoded = if in_cache {
                        encoding.encode(last.queries, ranks.of_last(size))
                    } else {
                        last.queries
                    };
                    config.ops.window_weights(WindowInput {
                        queries: encoded,
                        keys: Encode::keys(encode.as_ref(), entries.keys.clone()),
                        visibility: Visibility {
                            queries: last.positions,
                            entries: entries.positions.clone(),
                            // Entries between the window's own may have been evicted since.
                            by_position: padded || size > 1,
                        },
                        scale,
                    })
                });
                let held = Held { entries: &entries, rows: &held, arrived: &arrived, padded };
                compress(context, arrival.seen(), held, budget, window)?
            }
            _ => None,
        };
        let (change, held) = match compressed {
            Some((entries, held)) => {
                let capacity = room.compressed(entries.columns());
                (StoreChange::Replaced { entries: Box::new(entries), capacity }, held)
            }
            None if loose => {
                let capacity = room.grown(total);
                (StoreChange::Replaced { entries: Box::new(entries), capacity }, held)
            }
            None => (StoreChange::Appended { column_sums: column_sums.map(Box::new) }, held),
        };
        Ok(Outcome { output: attended.output, store: change, held, queries })
    }

    /// Whether new columns begin with padding behind entries that are held. Padding must stand before a
    /// row's first entry: scorers pool over neighbours, and a row in a batch has those it has alone.
    fn padding_inside(&self, arrival: &Arrival, columns: usize) -> bool {
        let rows = arrival.positions.chunks(columns).zip(&self.held);
        arrival.padded && rows.into_iter().any(|(new, &held)| held > 0 && new[0] < 0)
    }

    /// The selection that keeps every entry of the columns held and of new ones, all padding before it.
    fn padding_first(&self, context: Context<'_>, arrival: &Arrival, before: usize) -> Selection {
        let columns = arrival.positions.len() / self.held.len();
        let rows: Vec<Vec<usize>> = arrival
            .positions
            .chunks(columns)
            .zip(&self.held)
            .map(|(new, held)| {
                let new = (0..columns).filter(|&column| new[column] >= 0);
                (before - held..before).chain(new.map(|column| before + column)).collect()
            })
            .collect();
        Selection::of_rows(&rows, context.shape.kv_heads, context.device)
    }

    /// Makes the outcome the state of the layer. Nothing fails here.
    fn commit(
        &mut self,
        context: Context<'_>,
        arrival: Arrival,
        outcome: Outcome,
        store: &mut dyn Store,
    ) -> Tensor<4> {
        let Context { policy, config, .. } = context;
        match outcome.store {
            StoreChange::Replaced { entries, capacity } => store.replace(*entries, capacity),
            StoreChange::Appended { column_sums } => {
                if let Some(sums) = column_sums {
                    store.set_column_sums(*sums);
                }
            }
        }
        self.held = outcome.held;
        match (arrival.phase, policy.schedule().decode_every) {
            // Queries matter until the next compression: one that only a prompt brings looks at none of
            // the decoded ones.
            (Phase::Prompt { missing: 0 } | Phase::Decode { .. }, None) => self.window.clear(),
            _ => self.window.push(outcome.queries, &arrival.positions, config.ops.as_ref()),
        }
        let compressed = compression_is_due(policy, arrival.phase);
        self.progress = arrival.into_progress(compressed);
        outcome.output
    }

    /// The budget of this call, and the room it needs.
    fn room(
        &self,
        context: Context<'_>,
        arrival: &Arrival,
        store: &dyn Store,
        query_bytes: usize,
    ) -> Result<Room> {
        let Context { shape, policy, config, .. } = context;
        let rows = arrival.seen().len();
        // A policy that compresses prompts only holds no window between them.
        let queries = policy.schedule().decode_every.map_or(0, |_| self.window.size());
        let position_bytes = DType::from(context.device.settings().int_dtype).size();
        let query = shape.query_heads * shape.head_dim * query_bytes + position_bytes;
        let fixed = rows * queries * query;
        let footprint = Footprint { fixed, column: store.bytes_per_column() };
        let budget = policy.resolve(shape, arrival.seen(), footprint)?;
        Ok(Room {
            limit: budget
                .as_ref()
                .filter(|_| policy.schedule().decode_every.is_some())
                .and_then(|budget| budget.iter().copied().max()),
            slack: policy.slack(),
            hint: config.capacity.filter(|_| budget.is_none()),
            to_come: match arrival.phase {
                Phase::Prompt { missing }
                    if policy.schedule().prefill != PrefillCompression::EveryChunk =>
                {
                    missing
                }
                _ => 0,
            },
            budget,
        })
    }
}

/// The room a layer needs: enough that decoding does not reallocate, not more than its budget implies.
struct Room {
    /// Tokens to keep, one number a batch row; `None` keeps everything.
    budget: Option<Vec<usize>>,
    /// Columns decoding never exceeds by more than the slack.
    limit: Option<usize>,
    slack: usize,
    hint: Option<usize>,
    /// Columns of a prompt that will arrive before anything is dropped.
    to_come: usize,
}

impl Room {
    /// The most columns made room for ahead of their need.
    const AHEAD: usize = 256;

    /// Columns to make room for when `columns` must fit and nothing was dropped.
    fn grown(&self, columns: usize) -> usize {
        match self.hint {
            Some(hint) if hint >= columns => return hint,
            _ if self.to_come > 0 => return columns + self.to_come,
            _ => {}
        }
        // Growing by an eighth keeps copies rare and waste small.
        let ahead = if self.limit.is_some() { Self::AHEAD } else { self.slack.min(Self::AHEAD) };
        let grown = columns + ahead.max(columns / 8);
        match self.limit.map(|limit| limit.saturating_add(self.slack)) {
            Some(most) if columns <= most => grown.min(most),
            _ => grown,
        }
    }

    /// Columns to make room for when entries were dropped and `columns` are left.
    fn compressed(&self, columns: usize) -> usize {
        columns + self.slack.min(Self::AHEAD)
    }
}

/// Entries of one layer, with what is known of them on the host.
#[derive(Clone, Copy)]
struct Held<'a> {
    entries: &'a Entries,
    /// One number a batch row, padding not counted.
    rows: &'a [usize],
    /// How many of them are new.
    arrived: &'a [usize],
    padded: bool,
}

/// Score, allocate, select, reduce. `None` if every row is within its budget.
fn compress(
    context: Context<'_>,
    seen: &[usize],
    held: Held<'_>,
    budget: &[usize],
    window: Option<Tensor<4>>,
) -> Result<Option<(Entries, Vec<usize>)>> {
    let Context { layer, shape, policy, config, .. } = context;
    let Held { entries, rows, arrived, padded } = held;
    let ops = config.ops.as_ref();

    let scorer = policy.scorer();
    let compute = || {
        let scores = scorer.score(&ScoreInput {
            layer,
            shape,
            seen,
            keys: &entries.keys,
            values: &entries.values,
            positions: &entries.positions,
            column_sums: entries.column_sums.as_ref(),
            window: window.as_ref(),
        })?;
        let expected = [rows.len(), shape.kv_heads, entries.columns()];
        if scores.dims() != expected {
            let reason = format!("returned {:?}, expected {expected:?}", scores.dims());
            return Err(Error::Stage { stage: "scorer", name: scorer.name().to_owned(), reason });
        }
        Ok(scores.cast(DType::F32))
    };
    let scores = LazyScores::new(&compute);

    let allocator = policy.allocator();
    let input = AllocateInput::new(layer, shape, budget, rows, &scores);
    let Allocation::Rows(mut keep) = allocator.allocate(&input)?;
    if keep.len() != rows.len() || keep.contains(&0) {
        let reason =
            format!("returned {keep:?}, expected at least 1 for each of {} rows", rows.len());
        return Err(Error::Stage { stage: "allocator", name: allocator.name().to_owned(), reason });
    }
    for (row, keep) in keep.iter_mut().enumerate() {
        // A row that only received padding waits for its own tokens, as it would alone.
        if arrived[row] == 0 {
            *keep = rows[row].max(*keep);
        }
    }
    if rows.iter().zip(&keep).all(|(held, keep)| held <= keep) {
        return Ok(None);
    }

    let protect = policy.protect();
    let recent: Vec<usize> = keep.iter().map(|&keep| protect.recent.tokens(keep)).collect();
    let scores = scores.get()?;
    let selection = ops.select(SelectInput {
        layer,
        scores,
        positions: padded.then_some(&entries.positions),
        keep: &keep,
        sinks: protect.sinks,
        recent: &recent,
    })?;

    let reducer = policy.reducer();
    let reduced = reducer.reduce(ReduceInput {
        layer,
        entries: entries.clone(),
        selection: &selection,
        scores,
        ops,
    })?;
    if reduced.columns() != selection.width() {
        let reason =
            format!("returned {} columns, expected {}", reduced.columns(), selection.width());
        return Err(Error::Stage { stage: "reducer", name: reducer.name().to_owned(), reason });
    }
    Ok(Some((reduced, selection.counts)))
}

fn compression_is_due(policy: &Policy, phase: Phase) -> bool {
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
        PositionMode::Written => arrival.seen(),
        PositionMode::InCache => held,
    };
    let position = counted.iter().copied().max().unwrap_or(0).saturating_sub(1);
    match context.encoding.max_positions() {
        Some(max) if position >= max => Err(Error::PositionOverflow { position, max }),
        _ => Ok(()),
    }
}

/// Positions re-counted over the entries held.
struct Ranks<'a> {
    /// One number a batch row, the new ones included, padding not counted.
    held: &'a [usize],
    padded: bool,
    device: &'a Device,
}

impl Ranks<'_> {
    /// The rank of each entry, `[batch, kv_heads or 1, entries]`; of padding that of an entry before it.
    fn of_entries(&self, entries: &Entries) -> Tensor<3, Int> {
        let columns = entries.columns();
        if self.padded {
            let held = entries.positions.clone().greater_equal_scalar(0);
            return held.int().cumsum(2) - 1;
        }
        Tensor::<1, Int>::arange(0..columns as i64, self.device).reshape([1, 1, columns]).expand([
            self.held.len(),
            1,
            columns,
        ])
    }

    /// The ranks of the newest entries, `[batch, 1, new]`, −1 where `positions` is.
    fn of_new(&self, positions: &[i64], arrived: &[usize]) -> Tensor<3, Int> {
        let columns = positions.len() / self.held.len();
        let mut ranks = Vec::with_capacity(positions.len());
        for (row, positions) in positions.chunks(columns).enumerate() {
            let mut next = (self.held[row] - arrived[row]) as i64;
            for &position in positions {
                ranks.push(if position < 0 { -1 } else { next });
                next += i64::from(position >= 0);
            }
        }
        self.upload(ranks)
    }

    /// The ranks of the last `size` entries of each row, `[batch, 1, size]`.
    fn of_last(&self, size: usize) -> Tensor<3, Int> {
        let ranks = self
            .held
            .iter()
            .flat_map(|&held| (0..size).map(move |i| (held + i).saturating_sub(size) as i64));
        self.upload(ranks.collect())
    }

    fn upload(&self, ranks: Vec<i64>) -> Tensor<3, Int> {
        let rows = self.held.len();
        let columns = ranks.len() / rows;
        Tensor::from_data(TensorData::new(ranks, [rows, 1, columns]), self.device)
    }
}
