//! Tile of the products of two sets of rows: similarities and scores are such products.

use cubecl::prelude::*;

/// Units along either side of a tile. Each has every sixteenth row of either set.
pub(crate) const SIDE: usize = 16;
/// Units of a cube.
pub(crate) const UNITS: usize = SIDE * SIDE;
/// Four numbers that are loaded and kept together.
pub(crate) type Quad = Vector<f32, Const<4>>;
/// Quads of a row that are multiplied between two loads.
const DEPTH: usize = 4;
/// Quads from one row to the next in shared memory: one more, so that rows begin in different
/// banks.
const PITCH: usize = DEPTH + 1;

/// The rows of one side of a tile.
#[derive(CubeType)]
pub(crate) struct Rows {
    /// Start of each row in its tensor.
    pub(crate) starts: Shared<[u32]>,
    /// Channels of a step, of each row.
    loaded: Shared<[Quad]>,
    #[cube(comptime)]
    pub(crate) count: usize,
}

/// Tiles of 128 by 128 that keep a large device busy: with fewer, smaller ones do.
const MANY: usize = 256;

/// Rows of a unit along either side of a tile, for `lists` products of so many rows: at most 8 by
/// 8.
pub(crate) fn sides(lists: usize, rows: usize, columns: usize) -> [usize; 2] {
    let many = rows.div_ceil(8 * SIDE) * columns.div_ceil(8 * SIDE) * lists >= MANY;
    let most = if many { 8 } else { 2 };
    let of_unit = |rows: usize| rows.div_ceil(SIDE).next_power_of_two().min(most);
    [of_unit(rows), most]
}

/// Bytes of shared memory of the rows of one side.
pub(crate) const fn shared_bytes(of_unit: usize) -> usize {
    of_unit * SIDE * (4 + PITCH * 16)
}

#[cube]
impl Rows {
    /// Sixteen rows for each row of a unit.
    pub(crate) fn new(#[comptime] of_unit: usize) -> Self {
        let count = comptime!(of_unit * SIDE);
        Rows {
            starts: Shared::<[u32]>::new_slice(count),
            loaded: Shared::<[Quad]>::new_slice(comptime!(count * PITCH)),
            count,
        }
    }

    /// The quads of this step that the unit carries.
    fn fetch<X: Float, N: Size>(
        &self,
        x: &Tensor<Vector<X, N>>,
        fetched: &mut Array<Quad>,
        step: usize,
        #[comptime] channels: usize,
    ) {
        let unit = UNIT_POS as usize;
        #[unroll]
        for index in 0..comptime!((self.count * DEPTH).div_ceil(UNITS)) {
            let place = index * UNITS + unit;
            if place < comptime!(self.count * DEPTH) {
                let row = place / DEPTH;
                let channel = (step * DEPTH + place % DEPTH) * 4;
                let start = self.starts[row] as usize;
                fetched[index] = quad::<X, N>(x, start, channel, channels);
            }
        }
    }

    fn store(&mut self, fetched: &Array<Quad>) {
        let unit = UNIT_POS as usize;
        #[unroll]
        for index in 0..comptime!((self.count * DEPTH).div_ceil(UNITS)) {
            let place = index * UNITS + unit;
            if place < comptime!(self.count * DEPTH) {
                self.loaded[place / DEPTH * PITCH + place % DEPTH] = fetched[index];
            }
        }
    }
}

/// Four channels of a row, zeros behind the last.
#[cube]
pub(crate) fn quad<X: Float, N: Size>(
    x: &Tensor<Vector<X, N>>,
    start: usize,
    channel: usize,
    #[comptime] channels: usize,
) -> Quad {
    let mut numbers = Quad::new(0.0);
    let vector = x.vector_size();
    if comptime!(vector == 4) {
        if channel < channels {
            numbers = Vector::cast_from(x[(start + channel) / 4]);
        }
    } else {
        #[unroll]
        for index in 0..4 {
            if channel + index < channels {
                let number = x[start + (channel + index) * x.stride(3)];
                numbers.insert(index, f32::cast_from(number.extract(0_usize)));
            }
        }
    }
    numbers
}

/// The products of the rows of `left` in `a` with those of `right` in `b`, f32. What rows are to be
/// multiplied by the caller multiplies products by, so that rows of half precision go in as they
/// are.
///
/// `sums[i · n + j]` of a unit is that of row `unit / 16 + 16 · i` and row `unit % 16 + 16 · j`.
/// Each number is the same whatever the tile: channels are added in their order. The cube has
/// written where rows start; here it waits for all of its units first and last.
///
/// A step loads 16 channels of every row into shared memory, the next ones on their way while these
/// are multiplied. A unit reads (m + n) quads for 4 · m · n multiplications.
#[cube]
pub(crate) fn product<A: Float, NA: Size, B: Float, NB: Size>(
    a: &Tensor<Vector<A, NA>>,
    left: &mut Rows,
    b: &Tensor<Vector<B, NB>>,
    right: &mut Rows,
    sums: &mut Array<f32>,
    #[comptime] channels: usize,
) {
    let (across, down) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);
    let (m, n) = comptime!((left.count / SIDE, right.count / SIDE));
    let steps = comptime!(channels.div_ceil(4 * DEPTH));
    #[unroll]
    for index in 0..comptime!(m * n) {
        sums[index] = 0.0;
    }
    let mut of_left = Array::<Quad>::new(comptime!((left.count * DEPTH).div_ceil(UNITS)));
    let mut of_right = Array::<Quad>::new(comptime!((right.count * DEPTH).div_ceil(UNITS)));
    sync_cube();
    left.fetch::<A, NA>(a, &mut of_left, 0, channels);
    right.fetch::<B, NB>(b, &mut of_right, 0, channels);
    for step in 0..steps {
        left.store(&of_left);
        right.store(&of_right);
        sync_cube();
        if step + 1 < steps {
            left.fetch::<A, NA>(a, &mut of_left, step + 1, channels);
            right.fetch::<B, NB>(b, &mut of_right, step + 1, channels);
        }
        for depth in 0..DEPTH {
            let mut rows = Array::<Quad>::new(m);
            #[unroll]
            for i in 0..m {
                rows[i] = left.loaded[(down + i * SIDE) * PITCH + depth];
            }
            #[unroll]
            for j in 0..n {
                let column = right.loaded[(across + j * SIDE) * PITCH + depth];
                #[unroll]
                for channel in 0..4_usize {
                    #[unroll]
                    for i in 0..m {
                        sums[i * n + j] =
                            fma(rows[i].extract(channel), column.extract(channel), sums[i * n + j]);
                    }
                }
            }
        }
        sync_cube();
    }
}
