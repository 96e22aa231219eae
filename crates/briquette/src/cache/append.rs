//! New entries go behind those held.

use burn::tensor::{Int, Tensor};

use super::{
    Entries, Tracks, context::Context, outcome::StoreChange, place::Placed, progress::Arrival,
    room::Room,
};
use crate::{
    Result,
    ops::{Selection, Table, gather_positions, gather_rows, gather_scalars, select_entries},
    store::{Store, StoreOptions},
    tracks,
};

/// The store of a layer during a call.
pub(super) struct Step {
    pub(super) store: Box<dyn Store>,
    /// The store before it grew.
    outgrown: Option<Box<dyn Store>>,
    /// Columns it held before.
    columns: usize,
    /// Whether it was made for this call.
    new: bool,
}

impl Step {
    /// Takes the store of a layer, or makes one.
    pub(super) fn new(store: Option<Box<dyn Store>>, context: Context<'_>, batch: usize) -> Self {
        let Context { layer, shape, policy, config, observes, device, rows, .. } = context;
        let build = || {
            policy.store().build(StoreOptions {
                layer,
                shape,
                batch,
                dtype: config.dtype,
                observes,
                device: device.clone(),
                rows,
                ops: config.ops.clone(),
            })
        };
        let new = store.is_none();
        let store = store.unwrap_or_else(build);
        Self { columns: store.columns(), store, outgrown: None, new }
    }

    /// The store as it was before the call, if there was one.
    pub(super) fn undone(self) -> Option<Box<dyn Store>> {
        let Self { mut store, outgrown, columns, new } = self;
        store.truncate(columns);
        (!new).then(|| outgrown.unwrap_or(store))
    }

    /// A copy of the store as it was before the call, if there was one. If it has grown since, it is the one that was outgrown
    /// where that is asked for, and else shares the new room.
    pub(super) fn before(&self, outgrown: bool) -> Option<Box<dyn Store>> {
        if self.new {
            return None;
        }
        match &self.outgrown {
            Some(store) if outgrown => Some(store.clone()),
            _ => {
                let mut store = self.store.clone();
                store.truncate(self.columns);
                Some(store)
            }
        }
    }
}

/// The entries held and those that have arrived.
pub(super) struct Appended {
    /// Whether all of it is beside the store: it is taken in at the end of the call, or what a compression leaves of it.
    pub(super) beside_store: bool,
    /// The entries, if they are beside the store or have been taken out of it.
    entries: Option<Entries>,
    /// The position of each, `[batch, kv_heads, columns]`.
    pub(super) positions: Tensor<3, Int>,
    /// The counts kept of them.
    pub(super) tracks: Tracks,
    /// Columns.
    pub(super) columns: usize,
    /// Whether some columns may hold nothing.
    pub(super) padded: bool,
}

impl Appended {
    /// The entries. Those of a store are taken out of it when someone first looks at them.
    pub(super) fn entries(&mut self, store: &dyn Store, held: &[usize]) -> Result<&Entries> {
        let entries = match self.entries.take() {
            Some(entries) => entries,
            None => store.entries_at(self.positions.clone())?.with_lengths(held),
        };
        Ok(self.entries.insert(entries))
    }

    /// The entries, if they are beside the store.
    pub(super) fn loose(&self) -> Option<&Entries> {
        self.entries.as_ref().filter(|_| self.beside_store)
    }

    /// The change the store is to take in if nothing is dropped.
    pub(super) fn change(
        mut self,
        store: &dyn Store,
        held: &[usize],
        room: &Room,
    ) -> Result<StoreChange> {
        if !self.beside_store {
            return Ok(StoreChange::Appended { tracks: Box::new(self.tracks) });
        }
        let capacity = room.grown(self.columns);
        Ok(StoreChange::Replaced { entries: Box::new(self.counted(store, held)?), capacity })
    }

    /// The entries with what is counted of them now.
    pub(super) fn counted(&mut self, store: &dyn Store, held: &[usize]) -> Result<Entries> {
        let tracks = self.tracks.clone();
        Ok(Entries { tracks, ..self.entries(store, held)?.clone() })
    }
}

/// Appends what is `arriving` to the store, or to what is taken out of it. All it changes is what stands behind the
/// columns held, by heads; a store that grows is first copied into the step, where it shares its buffers.
pub(super) fn append(
    context: Context<'_>,
    placed: &Placed,
    arriving: Entries,
    held: &[usize],
    room: &Room,
    step: &mut Step,
) -> Result<Appended> {
    let Context { shape, observes, device, .. } = context;
    let Placed { arrival, .. } = placed;
    let [batch, _, columns] = arriving.positions.dims();
    let store = &mut step.store;
    let loose = if store.columns() == 0 {
        // Attended as it came: if it is compressed, the whole of it is never stored.
        let tracks = tracks::zeros(observes, shape, batch, columns, device);
        Some(Entries { tracks, ..arriving })
    } else if !store.moves_padding() && padding_inside(shape.kv_heads, held, arrival, columns) {
        let before = store.entries()?.with_lengths(held);
        Some(padding_first(context, placed, held, before, arriving)?)
    } else {
        let needed = store.columns() + columns;
        if needed > store.capacity() || arrival.padded {
            step.outgrown = Some(store.clone());
            store.reserve(room.grown(needed));
        }
        store.append(arriving, &placed.arrived_by_head);
        None
    };
    let (positions, tracks, columns) = match &loose {
        Some(loose) => (loose.positions.clone(), loose.tracks.clone(), loose.columns()),
        None => {
            let (positions, tracks) = store.scalars();
            (positions, tracks, store.columns())
        }
    };
    // Where tokens share, the host does not know how many of them are left.
    let padded = store.shares_entries() || placed.held.iter().any(|&held| held != columns);
    let beside_store = loose.is_some();
    Ok(Appended { beside_store, entries: loose, positions, tracks, columns, padded })
}

/// Whether new columns begin with padding behind entries that are held. Padding must stand before a
/// row's first entry: scorers pool over neighbours, and a row in a batch has those it has alone.
fn padding_inside(heads: usize, held: &[usize], arrival: &Arrival, columns: usize) -> bool {
    let held = held.chunks(heads);
    let mut rows = arrival.positions.chunks(columns).zip(held);
    arrival.padded && rows.any(|(new, held)| held.iter().any(|&held| held > 0) && new[0] < 0)
}

/// What was held `before`, so much by heads, and what is `arriving` behind it, with all padding before both.
fn padding_first(
    context: Context<'_>,
    placed: &Placed,
    held_before: &[usize],
    before: Entries,
    arriving: Entries,
) -> Result<Entries> {
    let Context { shape, config, device, .. } = context;
    let Placed { arrival, held, .. } = placed;
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
        // A call whose queries are all padding has no fewer entries than queries either.
        Selection::of_heads(&lists, heads, device).widened(columns)
    };
    let tokens = selection(held_before, before.columns());
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
    let entries = entries.with_lengths(held);
    let table = Table::of(&entries, ops)?;
    let sharing = table.map(|table| table.sharing(&entries.positions, held, ops)).transpose()?;
    Ok(Entries { sharing, ..entries })
}
