use cubecl::prelude::*;

use crate::{
    attention::decode::split::operands::{KeyValues, KeyValuesLaunch},
    common::line::at,
};

/// Which entries there are, and what is written of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryKinds {
    /// Whether the first entries of each head are in a list of all heads.
    pub(crate) listed: bool,
    /// Whether the device knows how many entries a head has, or how many follow its list.
    pub(crate) counted: bool,
    /// Whether positions say which entries a query sees, of a list which are entries.
    pub(crate) by_position: bool,
    /// Whether scores are written for weights.
    pub(crate) weights: bool,
}

/// Entries in a kernel. What a call lacks is never looked at.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Entries<K: CubePrimitive, I: CubePrimitive> {
    pub(crate) list: KeyValues<K>,
    pub(crate) offsets: OwnedTensor<I>,
    /// Those of no list.
    pub(crate) rows: KeyValues<K>,
    pub(crate) query_positions: OwnedTensor<I>,
    pub(crate) entry_positions: OwnedTensor<I>,
    pub(crate) counts: OwnedTensor<I>,
}

/// [`Entries`] of tensors in their order.
pub(crate) fn entries_of<K: CubePrimitive, I: CubePrimitive>(
    tensors: [TensorArg; 8],
) -> EntriesLaunch<K, I> {
    let [list_keys, list_values, offsets, keys, values, of_queries, of_entries, counts] = tensors;
    EntriesLaunch::new(
        KeyValuesLaunch::new(list_keys, list_values),
        offsets,
        KeyValuesLaunch::new(keys, values),
        of_queries,
        of_entries,
        counts,
    )
}

/// Where the entries of a head are, and which of them the cube has. A list and what follows it are
/// cut into tiles by themselves.
#[derive(CubeType)]
pub(crate) struct HeadEntries {
    /// First row of the list, how many it has, and their tiles.
    pub(crate) list_start: usize,
    pub(crate) held: usize,
    pub(crate) list_tiles: usize,
    /// Columns of the weights of a list: they come first, behind as many padding columns as its
    /// head has less than the widest.
    pub(crate) list_columns: usize,
    /// How many entries there are behind the list.
    pub(crate) tail: usize,
    /// The first tile of the cube, and the first that another cube has.
    pub(crate) first: usize,
    pub(crate) end: usize,
}

/// Entries of a head, of all heads of all batch rows. `share` tiles are a cube's.
#[cube]
pub(crate) fn head_entries<K: CubePrimitive, I: Int>(
    of: &Entries<K, I>,
    weights: &Tensor<f32>,
    head: usize,
    entries: usize,
    share: usize,
    #[comptime] tile: usize,
    #[comptime] planes: usize,
    #[comptime] kinds: EntryKinds,
) -> HeadEntries {
    let mut list_start = 0usize.runtime();
    let mut held = 0usize.runtime();
    if comptime!(kinds.listed) {
        list_start = usize::cast_from(of.offsets[head * of.offsets.stride(0)]);
        held = usize::cast_from(of.offsets[(head + 1) * of.offsets.stride(0)]) - list_start;
    }
    let mut tail = entries;
    if comptime!(kinds.counted) {
        tail = usize::cast_from(of.counts[head * of.counts.stride(0)]).min(entries);
    }
    let mut list_columns = 0usize.runtime();
    if comptime!(kinds.listed && kinds.weights) {
        list_columns = weights.shape(3) - entries;
    }
    let list_tiles = held.div_ceil(tile);
    let tiles = list_tiles + tail.div_ceil(tile);
    let mut share = share;
    if comptime!(kinds.counted) {
        // There may be far fewer than there is room for, and all cubes are to have some.
        share = tiles.div_ceil(planes * CUBE_COUNT_X as usize) * planes;
    }
    let part = CUBE_POS_X as usize;
    HeadEntries {
        list_start,
        held,
        list_tiles,
        list_columns,
        tail,
        first: part * share,
        end: ((part + 1) * share).min(tiles),
    }
}

/// Whether a slot of a list is free, counted from the end of its head, whose last is 1.
#[cube]
pub(crate) fn is_free<I: Int>(
    positions: &Tensor<I>,
    batch: usize,
    kv_head: usize,
    from_end: usize,
) -> bool {
    let column = positions.shape(2) - from_end.max(1);
    positions[at::<I>(positions, batch, kv_head, column)] < I::new(0)
}
