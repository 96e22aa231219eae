use cubecl::prelude::*;

use crate::common::masked::MASKED;

/// Units of a cube. One or two planes: synchronising them costs little, and many cubes a multiprocessor keep loads in
/// flight while others wait.
pub(crate) const UNITS: usize = 64;

/// Parts a maximum is looked for in, a head.
const PARTS: usize = 8;

/// Most query heads that one cube serves at once. Their queries and sums stay in registers.
pub(crate) const MOST_HEADS: usize = UNITS / PARTS;

/// The running maximum and sum of the softmax of each head, alike in every unit.
#[derive(CubeType)]
pub(crate) struct Running {
    /// The highest score so far.
    pub(crate) highest: Array<f32>,
    /// What sums so far are multiplied by, because a higher score has come.
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

    /// Takes in the first `count` scores of each head, which all units have written, `[heads, tile]`.
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

    /// Of a head that is not known before: of `heads`, the one at `head`.
    pub(crate) fn highest_of(&self, head: usize, #[comptime] heads: usize) -> f32 {
        let mut highest = self.highest[0];
        #[unroll]
        for index in 1..heads {
            highest = select(head == index, self.highest[index], highest);
        }
        highest
    }
}
