use cubecl::prelude::*;

use crate::common::masked::MASKED;

/// Units of a cube. One or two planes: synchronising them costs little, and many cubes per
/// multiprocessor keep loads in flight while others wait.
pub(crate) const UNITS: usize = 64;

/// Parts per head in which a maximum is looked for.
const PARTS: usize = 8;

/// Most query heads that one cube serves at once. Their queries and sums stay in registers.
pub(crate) const MOST_HEADS: usize = UNITS / PARTS;

/// Running maximum of the softmax of each head, the same in every unit.
#[derive(CubeType)]
pub(crate) struct Running {
    /// Highest score so far.
    pub(crate) highest: Array<f32>,
    /// Factor of the sums so far, below 1 if a higher score has come.
    pub(crate) kept: Array<f32>,
    parts: Shared<[f32]>,
}

#[cube]
impl Running {
    pub(crate) fn new(#[comptime] heads: usize) -> Running {
        let mut highest = Array::<f32>::new(heads);
        let mut kept = Array::<f32>::new(heads);
        #[unroll]
        for head in 0..heads {
            highest[head] = f32::new(MASKED);
            kept[head] = f32::new(1.0);
        }
        Running { highest, kept, parts: Shared::<[f32]>::new_slice(comptime!(heads * PARTS)) }
    }

    /// Takes the first `count` scores of each head, which all units have written, `[heads, tile]`.
    pub(crate) fn take(
        &mut self,
        scores: &Shared<[f32]>,
        count: usize,
        #[comptime] heads: usize,
        #[comptime] tile: usize,
    ) {
        let unit = UNIT_POS as usize;
        if unit < comptime!(heads * PARTS) {
            let start = (unit / PARTS) * tile;
            let mut highest = f32::new(MASKED);
            let mut row = unit % PARTS;
            while row < count {
                highest = highest.max(scores[start + row]);
                row += PARTS;
            }
            self.parts[unit] = highest;
        }
        sync_cube();
        #[unroll]
        for head in 0..heads {
            let before = self.highest[head];
            let mut highest = before;
            #[unroll]
            for part in 0..PARTS {
                highest = highest.max(self.parts[comptime!(head * PARTS + part)]);
            }
            self.kept[head] = (before - highest).exp();
            self.highest[head] = highest;
        }
    }

    /// Turns the first `count` scores of each head, `[heads, tile]`, into weights, `[tile, heads]`.
    pub(crate) fn weigh(
        &mut self,
        scores: &Shared<[f32]>,
        weights: &mut Shared<[f32]>,
        count: usize,
        #[comptime] heads: usize,
        #[comptime] tile: usize,
    ) {
        self.take(scores, count, heads, tile);
        let mut index = UNIT_POS as usize;
        while index < comptime!(heads * tile) {
            let row = index % tile;
            let head = index / tile;
            if row < count {
                let highest = self.highest_of(head, heads);
                weights[row * heads + head] = (scores[index] - highest).exp();
            }
            index += UNITS;
        }
        sync_cube();
    }

    /// Highest score of a head that is only known at run time: the one at `head` of `heads`.
    pub(crate) fn highest_of(&self, head: usize, #[comptime] heads: usize) -> f32 {
        let mut highest = self.highest[0];
        #[unroll]
        for index in 1..heads {
            highest = select(head == index, self.highest[index], highest);
        }
        highest
    }
}
