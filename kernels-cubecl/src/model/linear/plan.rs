use cubecl::prelude::Client;

use super::{
    k_major::{self, LinearKMajorBlueprint},
    planes::LinearPlanesBlueprint,
    step::STEP,
    tiles::{BESIDE, LinearTilesBlueprint},
};
use crate::common::{processors::processors, tile::mma::CHUNK};

/// Rows of `x` that [`linear`](super::linear) takes at most where it does not run on tensor cores.
pub const MOST_LINEAR_ROWS: usize = 256;
/// Rows from which weights are worth their way through shared memory.
pub(super) const FEWEST_ROWS_OF_TILES: usize = 33;
/// The share of cubes at work from which on ranges gain less than putting parts together costs.
const BUSY: f64 = 0.85;
/// Bounds of the outputs of a tile, and of the cubes per multiprocessor.
const NARROWEST: usize = 64;
const WIDEST: usize = 128;
const MOST_OF_PROCESSOR: usize = 3;

/// Geometry of a product: the steps of all tiles one after another, in even ranges per cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinearPlan {
    /// Outputs of a tile.
    pub(super) tile: usize,
    /// Tiles side by side.
    tiles: usize,
    /// Steps of a tile.
    pub(super) steps: usize,
    /// Steps of a cube.
    pub(super) share: usize,
    /// Cubes.
    pub(super) cubes: usize,
}

impl LinearPlan {
    /// Plans about `of_processor` cubes per multiprocessor.
    pub(super) fn new(
        client: &Client,
        inputs: usize,
        outputs: usize,
        tile: usize,
        of_processor: usize,
    ) -> Self {
        let (tiles, steps) = (outputs.div_ceil(tile), inputs.div_ceil(STEP));
        let all = tiles * steps;
        let share = all.div_ceil(processors(client) * of_processor);
        Self { tile, tiles, steps, share, cubes: all.div_ceil(share) }
    }

    /// Plans for [`LinearTilesBlueprint`]: one tile per cube where those keep the device busy to
    /// the end, or are many; else ranges as above.
    pub(super) fn in_tiles(
        client: &Client,
        [rows, inputs, outputs]: [usize; 3],
        tiles: &LinearTilesBlueprint,
        of_processor: usize,
    ) -> Self {
        let steps = inputs / tiles.step;
        let row_tiles = rows.div_ceil(tiles.rows());
        let count = row_tiles * outputs.div_ceil(tiles.outputs());
        let at_once = processors(client) * of_processor;
        let waves = count.div_ceil(at_once);
        let busy = count as f64 / (waves * at_once) as f64;
        let whole = row_tiles > BESIDE || busy >= BUSY;
        let share = if whole { steps } else { (count * steps).div_ceil(at_once) };
        let cubes = (count * steps).div_ceil(share);
        Self { tile: tiles.outputs(), tiles: count, steps, share, cubes }
    }

    /// Whether each cube has whole tiles.
    pub(super) fn is_whole(&self) -> bool {
        self.share.is_multiple_of(self.steps)
    }

    /// Upper bound of all plans that a product of these sizes may get.
    pub(super) fn largest(client: &Client, inputs: usize, outputs: usize) -> Self {
        let narrow = Self::new(client, inputs, outputs, NARROWEST, MOST_OF_PROCESSOR);
        Self { tile: WIDEST, ..narrow }
    }

    /// Number of parts of sums, with those that stay empty: the part of a cube and a tile is at the
    /// sum of their numbers.
    pub(super) fn parts(&self) -> usize {
        self.cubes + self.tiles
    }
}

/// Blueprint of [`super::planes`] for so many rows of `x`, and cubes per multiprocessor.
pub(super) fn planes(rows: usize) -> (LinearPlanesBlueprint, usize) {
    // Found on an H200: with fewer planes on a multiprocessor loads are not hidden, and these are
    // what their registers leave room for.
    let (across, along, cubes) = match rows {
        0..=8 => (2, 4, 2),
        9..=16 => (1, 4, 3),
        _ => (2, 4, 1),
    };
    (LinearPlanesBlueprint { across, along, groups: rows.div_ceil(8) }, cubes)
}

/// Blueprint of [`super::k_major`] for so many rows of `x`.
pub(super) fn k_major(client: &Client, rows: usize, outputs: usize) -> LinearKMajorBlueprint {
    let of_processor = outputs.div_ceil(k_major::TALL) as f64 / processors(client) as f64;
    // Found on an H200: few tiles need many loads on their way at once, of many there are enough.
    let (across, along, ahead) = match of_processor {
        0.0..=2.0 if rows <= 16 => (1, 8, 4),
        0.0..=4.0 => (1, 8, 2),
        _ => (2, 2, 2),
    };
    LinearKMajorBlueprint { across, along, groups: rows.div_ceil(8), ahead }
}

/// Blueprint of [`super::tiles`] for so many rows of `x`, and cubes per multiprocessor.
pub(super) fn tiles(rows: usize, inputs: usize, k_major: bool) -> (LinearTilesBlueprint, usize) {
    let long = if inputs.is_multiple_of(2 * STEP) { 2 * STEP } else { STEP };
    // Found on an H200, see `docs/lab/kernels.md`. A plane's 64 × 64 sums are half of its
    // registers. Rows of weights that are K-major are the longer the steps are.
    let (down, across, tall, wide, step, cubes) = match (rows <= 64, k_major) {
        (true, false) => (1, 4, 4, 2, STEP, 3),
        (true, true) => (2, 4, 2, 2, long, 2),
        (false, _) => (2, 2, 4, 4, long, 2),
    };
    (LinearTilesBlueprint { down, across, tall, wide, step, k_major }, cubes)
}

/// Upper bound of the cubes of whole tiles for so many rows, more than [`MOST_LINEAR_ROWS`].
pub(super) fn most_tiles(rows: usize, outputs: usize) -> usize {
    let (tiles, _) = tiles(rows, STEP, false);
    rows.div_ceil(tiles.rows()) * outputs.div_ceil(tiles.outputs())
}

/// Whether tiles divide a matrix of this size.
pub(super) fn divides(inputs: usize, outputs: usize) -> bool {
    inputs.is_multiple_of(STEP) && outputs.is_multiple_of(CHUNK)
}
