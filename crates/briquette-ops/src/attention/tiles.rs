//! The tiles of a sparse prompt that a kernel computes.

use std::ops::Range;

use super::{estimate::Places, sparsity_mask::SparsityMask};

/// Bits of a word.
const BITS: usize = 32;

/// The weights that attention under the patterns of heads computes: the tiles of keys that each
/// tile of queries meets, and bits that tell whether a weight of such a tile is one of them.
///
/// A query at position p sees the entry of column c, at position e, if 0 ≤ e ≤ p, and the bit of
/// column c, or of distance p − e, or of the blocks of p and e is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseTiles {
    /// The position of each query, `[batch, 1, queries]`; −1 is padding.
    pub queries: Vec<i64>,
    /// The position of each entry, `[batch, kv_heads, entries]`; −1 is padding.
    pub entries: Vec<i64>,
    /// Tiles of [`SparseTiles::KEYS`] keys that each tile of [`SparseTiles::QUERIES`] queries
    /// meets, `[batch, query_heads, query tiles, list]`: their count, then twice the index of each,
    /// plus 1 where every query of the tile sees every key at its own position or before; zeros
    /// fill the list.
    pub lists: Vec<i64>,
    /// The shape of `lists`.
    pub list_dims: [usize; 4],
    /// Words of 32 bits, `[batch, query_heads, words]`: of columns, of distances, of blocks.
    pub bits: Vec<i32>,
    /// The shape of `bits`.
    pub bit_dims: [usize; 3],
    /// Places of distances and blocks in the words of a head.
    pub map: SparseMap,
}

/// The places of bits in the words of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseMap {
    /// Index of the first word of distances.
    pub distances: usize,
    /// Index of the first word of blocks. From there on, bit
    /// `(p / 64 − first_block) · blocks + e / 64` is that of a query at position p and an entry at
    /// position e.
    pub pairs: usize,
    /// Block of the query at the lowest position.
    pub first_block: usize,
    /// Number of blocks of entries.
    pub blocks: usize,
}

impl SparseTiles {
    /// Queries of a tile.
    pub const QUERIES: usize = 128;
    /// Keys of a tile.
    pub const KEYS: usize = 32;
    /// Tokens of a block, by position: the larger blocks of a pattern are several of these.
    pub const BLOCK: usize = 64;

    /// The tiles and bits of `masks`, one per batch row and query head, `[batch · query_heads]`.
    pub(super) fn new(places: &Places, masks: &[SparsityMask]) -> Self {
        let batch = places.queries.len();
        let heads = masks.len() / batch;
        let group = masks.len() / places.entries.len();
        let entries = places.entries[0].len();
        let end = places.end();
        let first_block = places.start() / Self::BLOCK;
        let blocks = end.div_ceil(Self::BLOCK);
        let distances = entries.div_ceil(BITS);
        let pairs = distances + end.div_ceil(BITS);
        let words = pairs + ((blocks - first_block.min(blocks)) * blocks).div_ceil(BITS);
        let mut bits = vec![0; masks.len() * words];
        for (head, (mask, bits)) in masks.iter().zip(bits.chunks_mut(words)).enumerate() {
            let mut set = |place: usize| bits[place / BITS] |= 1_i32 << (place % BITS);
            for place in mask.columns(&places.entries[head / group]) {
                set(place);
            }
            for place in mask.distances(end) {
                set(distances * BITS + place);
            }
            if let SparsityMask::Blocks { size, from, width, visible } = mask {
                for query in first_block..blocks {
                    for entry in 0..=query {
                        let of_head = |block: usize| block * Self::BLOCK / size;
                        if visible[(of_head(query) - from) * width + of_head(entry)] {
                            set(pairs * BITS + (query - first_block) * blocks + entry);
                        }
                    }
                }
            }
        }
        let of_entries: Vec<Vec<Option<Span>>> =
            places.entries.iter().map(|positions| spans(positions, Self::KEYS)).collect();
        let of_queries: Vec<Vec<Option<Span>>> =
            places.queries.iter().map(|positions| spans(positions, Self::QUERIES)).collect();
        let mut lists = Vec::new();
        for (head, mask) in masks.iter().enumerate() {
            let sums = Sums::of(mask, &places.entries[head / group], end);
            let of_entries = &of_entries[head / group];
            lists.extend(of_queries[head / heads].iter().map(|queries| {
                let queries = queries.as_ref()?;
                let of_tile = |(tile, keys): (usize, &Option<Span>)| {
                    let (any, all) = sums.of_tile(queries, keys.as_ref()?);
                    any.then_some(2 * tile as i64 + i64::from(all))
                };
                Some(of_entries.iter().enumerate().filter_map(of_tile).collect::<Vec<i64>>())
            }));
        }
        let lists: Vec<Vec<i64>> = lists.into_iter().map(Option::unwrap_or_default).collect();
        // One at least, so that a kernel can read ahead.
        let width = 1 + lists.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let query_tiles = of_queries[0].len();
        let fixed = lists.into_iter().flat_map(|list| {
            let count = list.len() as i64;
            let rest = width - 1 - list.len();
            std::iter::once(count).chain(list).chain(std::iter::repeat_n(0, rest))
        });
        Self {
            lists: fixed.collect(),
            list_dims: [batch, heads, query_tiles, width],
            bits,
            bit_dims: [batch, heads, words],
            map: SparseMap { distances, pairs, first_block, blocks },
            queries: places.queries.concat(),
            entries: places.entries.concat(),
        }
    }

    /// Number of tiles that are computed, over all heads.
    pub fn computed(&self) -> usize {
        self.lists.chunks(self.list_dims[3]).map(|list| list[0] as usize).sum()
    }
}

/// The columns of a tile, and the lowest and highest of their positions, padding excepted.
struct Span {
    columns: Range<usize>,
    least: usize,
    most: usize,
}

/// The span of each tile of `size` columns; `None` where all of them are padding.
fn spans(positions: &[i64], size: usize) -> Vec<Option<Span>> {
    let of_tile = |(tile, positions): (usize, &[i64])| {
        let there = || positions.iter().filter(|&&position| position >= 0);
        let columns = tile * size..tile * size + positions.len();
        let (least, most) = (*there().min()?, *there().max()?);
        Some(Span { columns, least: least as usize, most: most as usize })
    };
    positions.chunks(size).enumerate().map(of_tile).collect()
}

/// Running sums of a head's columns and distances: their number in any range is a difference of
/// two.
struct Sums<'a> {
    mask: &'a SparsityMask,
    columns: Vec<usize>,
    distances: Vec<usize>,
}

impl<'a> Sums<'a> {
    fn of(mask: &'a SparsityMask, entries: &[i64], end: usize) -> Self {
        let sums = |places: &mut dyn Iterator<Item = usize>, length: usize| {
            let mut sums = vec![0; length + 1];
            places.for_each(|place| sums[place + 1] = 1);
            (0..length).for_each(|place| sums[place + 1] += sums[place]);
            sums
        };
        Self {
            mask,
            columns: sums(&mut mask.columns(entries), entries.len()),
            distances: sums(&mut mask.distances(end), end),
        }
    }

    /// Whether a query of `queries` may see a key of `keys`, and whether every query surely sees
    /// every key at its own position or before.
    fn of_tile(&self, queries: &Span, keys: &Span) -> (bool, bool) {
        if keys.least > queries.most {
            return (false, false);
        }
        let count = |sums: &[usize], range: &Range<usize>| sums[range.end] - sums[range.start];
        let distances = queries.least.saturating_sub(keys.most)..queries.most - keys.least + 1;
        let of_columns = count(&self.columns, &keys.columns);
        let of_distances = count(&self.distances, &distances);
        let mut any = of_columns > 0 || of_distances > 0;
        let mut all = of_columns == keys.columns.len() || of_distances == distances.len();
        if let SparsityMask::Blocks { size, from, width, visible } = self.mask {
            let rows = queries.least / size..=queries.most / size;
            let pairs = || {
                rows.clone().flat_map(|row| {
                    // Blocks behind the query are never seen, picked or not.
                    let columns = keys.least / size..=(keys.most / size).min(row);
                    columns.map(move |column| visible[(row - from) * width + column])
                })
            };
            any |= pairs().any(|visible| visible);
            all |= pairs().all(|visible| visible);
        }
        (any, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERIES: usize = SparseTiles::QUERIES;
    const KEYS: usize = SparseTiles::KEYS;
    const BLOCK: usize = SparseTiles::BLOCK;

    /// Whether a kernel that reads the lists and the bits lets the query see the entry of the
    /// column.
    fn sees(tiles: &SparseTiles, head: usize, query: usize, column: usize) -> bool {
        let (p, e) = (tiles.queries[query], tiles.entries[column]);
        let [_, _, query_tiles, width] = tiles.list_dims;
        let list = &tiles.lists[(head * query_tiles + query / QUERIES) * width..][..width];
        let of_list = &list[1..][..list[0] as usize];
        let Some(tile) = of_list.iter().find(|&&tile| tile as usize / 2 == column / KEYS) else {
            return false;
        };
        if e < 0 || e > p {
            return false;
        }
        let words = tiles.bit_dims[2];
        let bits = &tiles.bits[head * words..][..words];
        let bit = |place: usize| bits[place / BITS] >> (place % BITS) & 1 == 1;
        let (p, e) = (p as usize, e as usize);
        let block = (p / BLOCK - tiles.map.first_block) * tiles.map.blocks + e / BLOCK;
        let by_bits = bit(column)
            || bit(tiles.map.distances * BITS + p - e)
            || bit(tiles.map.pairs * BITS + block);
        assert!(tile % 2 == 0 || by_bits, "query {query}, column {column}");
        by_bits
    }

    #[test]
    fn lists_and_bits_say_what_heads_see() {
        // 300 queries behind 40 tokens of padding and some that were evicted.
        let mut positions: Vec<i64> = vec![-1; 40];
        positions.extend((0..500).filter(|position| position % 7 != 3));
        let queries = positions[positions.len() - 300..].to_vec();
        let places = Places { queries: vec![queries.clone()], entries: vec![positions.clone()] };
        let from = queries[0] as usize;
        let picked = |count: usize, step: usize| (0..count).map(|x| x % step == 0).collect();
        let masks = [
            SparsityMask::All,
            SparsityMask::Ends { first: 9, recent: 33 },
            SparsityMask::Lines {
                columns: picked(positions.len(), 90),
                distances: picked(500, 120),
            },
            SparsityMask::Blocks { size: 64, from: from / 64, width: 8, visible: picked(8 * 8, 3) },
            SparsityMask::Blocks {
                size: 128,
                from: from / 128,
                width: 4,
                visible: picked(4 * 4, 2),
            },
        ];
        let tiles = SparseTiles::new(&places, &masks);
        for (head, mask) in masks.iter().enumerate() {
            for (query, &p) in queries.iter().enumerate() {
                for (column, &e) in positions.iter().enumerate() {
                    let found = sees(&tiles, head, query, column);
                    assert_eq!(found, mask.sees(p, column, e), "{mask:?}, {query}, {column}");
                }
            }
        }
        let [_, heads, query_tiles, _] = tiles.list_dims;
        let all = heads * query_tiles * positions.len().div_ceil(KEYS);
        assert!(tiles.computed() < all * 3 / 4, "{} of {all}", tiles.computed());
    }
}
