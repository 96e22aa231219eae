use cubecl::prelude::Client;

use super::{planes::Planes, units};
use crate::{processors::processors, tile::mma::CHUNK};

/// Numbers along the contraction that are multiplied between two looks at where a share ends.
pub(super) const STEP: usize = 32;
/// Rows that one plane has at most: its sums then fill half of its registers.
const MOST_ROWS_OF_PLANE: usize = 64;

/// How a product is shared out: the steps of all tiles one after another, in even ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blueprint {
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

impl Blueprint {
    /// Of about so many cubes a multiprocessor.
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

    /// The largest of all that a product of these sizes may get.
    pub(super) fn largest(client: &Client, inputs: usize, outputs: usize) -> Self {
        let tile = units::UNITS * units::MOST_VECTOR;
        let narrow = Self::new(client, inputs, outputs, units::UNITS, units::CUBES_A_PROCESSOR);
        Self { tile, ..narrow }
    }

    /// Parts of sums, with those that stay empty: a cube's part of a tile is at the sum of their numbers.
    pub(super) fn parts(&self) -> usize {
        self.cubes + self.tiles
    }
}

/// How the planes of a cube share tiles of so many rows, and how many cubes a multiprocessor gets.
pub(super) fn planes(rows: usize) -> (Planes, usize) {
    let deep = rows.div_ceil(MOST_ROWS_OF_PLANE);
    let groups = rows.div_ceil(deep * 8);
    // Found on an H200: with fewer planes on a multiprocessor loads are not hidden, and these are what their registers
    // leave room for.
    let (across, along, cubes) = match rows {
        0..=8 => (2, 4, 2),
        9..=16 => (1, 4, 3),
        17..=64 => (2, 4, 1),
        65..=128 => (2, 2, 1),
        _ => (2, 1, 1),
    };
    (Planes { across, deep, along, groups }, cubes)
}

/// Whether tiles divide a matrix of this size.
pub(super) fn divides(inputs: usize, outputs: usize) -> bool {
    inputs.is_multiple_of(STEP) && outputs.is_multiple_of(CHUNK)
}
