use crate::common::tile::product::{SIDE, sides};

/// Cubes that keep a large device busy: `to` is split until there are as many.
const CUBES: usize = 1024;

/// How the work is shared out.
pub(super) struct Plan {
    /// Rows of `from` and of `to` that a unit has of a tile.
    pub(super) tile: [usize; 2],
    pub(super) row_tiles: usize,
    pub(super) tiles_of_split: usize,
    pub(super) splits: usize,
}

impl Plan {
    pub(super) fn new(lists: usize, from: usize, to: usize, pairs: usize) -> Self {
        let [of_from, of_to] = sides(lists, from, to);
        // The products of both pairs are in registers at once.
        let tile = [of_from, if pairs == 1 { of_to } else { of_to / 2 }];
        let row_tiles = from.div_ceil(tile[0] * SIDE);
        let tiles = to.div_ceil(tile[1] * SIDE);
        let tiles_of_split = tiles.div_ceil(CUBES.div_ceil(row_tiles * lists));
        Self { tile, row_tiles, tiles_of_split, splits: tiles.div_ceil(tiles_of_split) }
    }
}
