use crate::common::tile::product::{SIDE, sides};

/// Number of cubes that keeps a large device busy: entries are split until there are as many.
const CUBES: usize = 1024;

/// Geometry of a launch of the portable kernels.
pub(super) struct WindowPlan {
    /// Query rows and entries of a unit of a tile.
    pub(super) tile: [usize; 2],
    /// Tiles of the rows of a kv head; the parts of a head count as one.
    pub(super) blocks: usize,
    /// Tiles that the rows of a head are divided into.
    pub(super) parts: usize,
    pub(super) tiles: usize,
    pub(super) tiles_of_split: usize,
    pub(super) splits: usize,
}

impl WindowPlan {
    pub(super) fn new([lists, group, queries]: [usize; 3], entries: usize) -> Self {
        let tile = sides(lists, group * queries, entries);
        // As the kernel does.
        let rows = tile[0] * SIDE;
        let blocks = group.div_ceil((rows / queries).clamp(1, group));
        let parts = queries.div_ceil(rows);
        let tiles = entries.div_ceil(tile[1] * SIDE);
        let tiles_of_split = tiles.div_ceil(CUBES.div_ceil(blocks * parts * lists));
        let splits = tiles.div_ceil(tiles_of_split);
        Self { tile, blocks, parts, tiles, tiles_of_split, splits }
    }
}
