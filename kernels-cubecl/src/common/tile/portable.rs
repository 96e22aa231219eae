//! Tiles of 32 × 32 products on any device, in f32.
//!
//! A cube of [`UNITS`] units: unit `u` has rows `2 · (u / 8)` and the next, and columns
//! `u % 8 + 8 · j`. Operands pass through shared memory a slice of [`SLICE`] channels at a time, so
//! head_dim is not bounded by it.

use cubecl::prelude::*;

/// Units of a cube.
pub(crate) const UNITS: usize = 128;
/// Rows, and columns, of a tile.
pub(crate) const SIDE: usize = 32;
/// Channels of a slice.
pub(crate) const SLICE: usize = 16;
/// Numbers from one row of a slice to the next: one more than it has, so that rows lie in different
/// banks.
pub(crate) const PITCH: usize = SLICE + 1;
/// Products a unit has: two rows of four columns.
pub(crate) const OWN: usize = 8;

/// The two slices.
#[derive(CubeType)]
pub(crate) struct Slices {
    left: Shared<[f32]>,
    right: Shared<[f32]>,
}

#[cube]
pub(crate) fn slices() -> Slices {
    Slices {
        left: Shared::<[f32]>::new_slice(comptime!(SIDE * PITCH)),
        right: Shared::<[f32]>::new_slice(comptime!(SIDE * PITCH)),
    }
}

/// Rows of one head of a `[batch, heads, rows, head_dim]` tensor.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct StridedRows {
    /// Start of the first row.
    pub(crate) start: usize,
    /// Distance from one row to the next.
    pub(crate) row: usize,
    /// Distance from one channel to the next.
    pub(crate) channel: usize,
    /// The last row there is; rows behind it read it again.
    pub(crate) last: usize,
}

#[cube]
pub(crate) fn rows_of<E: Float>(x: &Tensor<E>, batch: usize, head: usize) -> StridedRows {
    StridedRows {
        start: batch * x.stride(0) + head * x.stride(1),
        row: x.stride(2),
        channel: x.stride(3),
        last: x.shape(2) - 1,
    }
}

/// The products of 32 rows of `left` with 32 rows of `right`: unit's own [`OWN`].
#[cube]
pub(crate) fn products<L: Float, R: Float>(
    left: &Tensor<L>,
    left_rows: StridedRows,
    left_first: usize,
    right: &Tensor<R>,
    right_rows: StridedRows,
    right_first: usize,
    slices: &mut Slices,
    #[comptime] head_dim: usize,
) -> Array<f32> {
    let unit = UNIT_POS as usize;
    let mut sums = Array::<f32>::new(OWN);
    #[unroll]
    for own in 0..OWN {
        sums[own] = 0.0;
    }
    for slice in 0..comptime!(head_dim.div_ceil(SLICE)) {
        sync_cube();
        #[unroll]
        for pass in 0..comptime!(SIDE * SLICE / UNITS) {
            let index = unit + pass * UNITS;
            let row = index / SLICE;
            let channel = slice * SLICE + index % SLICE;
            let mut a = f32::new(0.0);
            let mut b = f32::new(0.0);
            if channel < head_dim {
                let place =
                    left_rows.start + (left_first + row).min(left_rows.last) * left_rows.row;
                a = f32::cast_from(left[place + channel * left_rows.channel]);
                let place =
                    right_rows.start + (right_first + row).min(right_rows.last) * right_rows.row;
                b = f32::cast_from(right[place + channel * right_rows.channel]);
            }
            slices.left[row * PITCH + index % SLICE] = a;
            slices.right[row * PITCH + index % SLICE] = b;
        }
        sync_cube();
        #[unroll]
        for channel in 0..SLICE {
            let upper = slices.left[unit / 8 * 2 * PITCH + channel];
            let lower = slices.left[(unit / 8 * 2 + 1) * PITCH + channel];
            #[unroll]
            for column in 0..comptime!(OWN / 2) {
                let right = slices.right[(unit % 8 + 8 * column) * PITCH + channel];
                sums[column] += upper * right;
                sums[column + 4] += lower * right;
            }
        }
    }
    sums
}
