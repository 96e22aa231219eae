//! Pattern of the weights that a head computes, as a kernel reads it.

use briquette_ops::SparseTiles;
use cubecl::prelude::*;

/// Bits of a word.
const BITS: usize = 32;

/// Lists and bits of [`SparseTiles`].
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Pattern {
    lists: OwnedTensor<i32>,
    bits: OwnedTensor<i32>,
    distances: usize,
    pairs: usize,
    first_block: usize,
    blocks: usize,
}

/// First key of a tile of a list.
#[cube]
pub(super) fn first_key_of(tile: i32) -> usize {
    tile as usize / 2 * SparseTiles::KEYS
}

/// Whether all bits of a tile of a list are set.
#[cube]
pub(super) fn is_whole(tile: i32) -> bool {
    tile % 2 == 1
}

#[cube]
impl Pattern {
    /// Start of the list for the tile of this query.
    pub(super) fn list(&self, batch: usize, head: usize, query: usize) -> usize {
        batch * self.lists.stride(0)
            + head * self.lists.stride(1)
            + query / SparseTiles::QUERIES * self.lists.stride(2)
    }

    /// Number of tiles of keys in a list.
    pub(super) fn count(&self, list: usize) -> usize {
        self.lists[list] as usize
    }

    /// A tile of keys of a list, as [`SparseTiles::lists`] has it.
    pub(super) fn tile(&self, list: usize, number: usize) -> i32 {
        self.lists[list + 1 + number]
    }

    /// Start of the words of a head.
    pub(super) fn words(&self, batch: usize, head: usize) -> usize {
        batch * self.bits.stride(0) + head * self.bits.stride(1)
    }

    /// Whether any of the bits of a column and two positions is set. The entry is not behind the
    /// query, and neither is padding.
    pub(super) fn sees(&self, words: usize, column: usize, query: i32, entry: i32) -> bool {
        let (query, entry) = (query as usize, entry as usize);
        let block = (query / SparseTiles::BLOCK - self.first_block) * self.blocks
            + entry / SparseTiles::BLOCK;
        let of_column = self.bit(words, column);
        let of_distance = self.bit(words + self.distances, query - entry);
        let of_blocks = self.bit(words + self.pairs, block);
        (of_column | of_distance | of_blocks) != 0
    }

    fn bit(&self, words: usize, place: usize) -> u32 {
        let word = u32::cast_from(self.bits[words + place / BITS]);
        (word >> (place % BITS) as u32) & 1
    }
}
