//! The entry of a head that goes.

use cubecl::prelude::*;

use super::head::{Head, is_entry, position};
use crate::common::{line::at, order::order};

/// Units of a cube.
pub(crate) const UNITS: usize = 256;

/// The largest of the units' values, or with `sums` their sum.
#[cube]
pub(crate) fn of_cube(shared: &mut Shared<[u32]>, value: u32, #[comptime] sums: bool) -> u32 {
    let unit = UNIT_POS as usize;
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let distance = comptime!(UNITS >> (step + 1));
        if unit < distance {
            let (own, other) = (shared[unit], shared[unit + distance]);
            if comptime!(sums) {
                shared[unit] = own + other;
            } else {
                shared[unit] = own.max(other);
            }
        }
        sync_cube();
    }
    let all = shared[0];
    sync_cube();
    all
}

/// The first and the last tokens of a head, which stay whatever their scores.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Protected {
    sinks: usize,
    recent: usize,
    /// The position behind the newest token's: none is above it.
    end: usize,
    /// How many tokens come before the newest.
    older: usize,
    /// Whether there are gaps among them, so that positions do not tell them.
    has_gaps: bool,
}

#[cube]
impl Protected {
    /// Whether a token is among the first or, with `last`, among the last.
    pub(crate) fn has<I: Int>(
        &self,
        positions: &Tensor<I>,
        new_positions: &Tensor<I>,
        head: &Head,
        own: usize,
        #[comptime] last: bool,
    ) -> bool {
        let mut has = own < self.sinks;
        if comptime!(last) {
            has = own + self.recent >= self.end;
        }
        if self.has_gaps {
            let mut before = 0usize.runtime();
            for other in head.first..head.newest + 1 {
                if position::<I>(positions, new_positions, head, other) < own {
                    before += 1;
                }
            }
            has = before < self.sinks;
            if comptime!(last) {
                has = before + self.recent > self.older;
            }
        }
        has
    }
}

/// The first `sinks` and the last `recent` tokens of a head; fewer if there is no other to go.
#[cube]
pub(crate) fn protected<I: Int>(
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    head: &Head,
    sinks: usize,
    recent: usize,
    shared: &mut Shared<[u32]>,
) -> Protected {
    let (first, newest) = (head.first, head.newest);
    let mut older = newest - first;
    let mut sinks = sinks;
    let mut recent = recent;
    if comptime!(head.has_free_slots) {
        let mut free_slots = 0u32;
        let mut column = first + UNIT_POS as usize;
        while column < newest {
            if !is_entry::<I>(positions, head, column) {
                free_slots += 1;
            }
            column += UNITS;
        }
        older -= of_cube(shared, free_slots, true) as usize;
        sinks = sinks.min(older);
        recent = recent.min(older - sinks);
    }

    // No position is above the new token's.
    let end = position::<I>(positions, new_positions, head, newest) + 1;
    let mut first_tokens = 0u32;
    let mut last_tokens = 0u32;
    let mut column = first + UNIT_POS as usize;
    while column <= newest {
        if is_entry::<I>(positions, head, column) {
            let position = position::<I>(positions, new_positions, head, column);
            if position < sinks {
                first_tokens += 1;
            }
            if position + recent >= end {
                last_tokens += 1;
            }
        }
        column += UNITS;
    }
    let first_tokens = of_cube(shared, first_tokens, true) as usize;
    let last_tokens = of_cube(shared, last_tokens, true) as usize;
    let has_gaps = first_tokens != sinks || last_tokens != recent;
    Protected { sinks, recent, end, older, has_gaps }
}

/// The column of the entry with the lowest score, NaN below all, and of equal scores of the newest,
/// of those that may go.
#[cube]
pub(crate) fn weakest<I: Int>(
    positions: &Tensor<I>,
    new_positions: &Tensor<I>,
    scores: &Tensor<f32>,
    head: &Head,
    protected: &Protected,
    shared: &mut Shared<[u32]>,
) -> usize {
    let unit = UNIT_POS as usize;
    let mut found = Shared::<[u32]>::new_slice(1usize);
    let (first, newest) = (head.first, head.newest);

    // The highest order goes, and of equal ones the newest. No score has the order zero.
    let mut worst = 0u32;
    let mut latest = 0u32;
    let mut goes = 0u32;
    let mut column = first + unit;
    while column <= newest {
        let own = position::<I>(positions, new_positions, head, column);
        let is_first = protected.has::<I>(positions, new_positions, head, own, false);
        let is_last = protected.has::<I>(positions, new_positions, head, own, true);
        let may_go = is_entry::<I>(positions, head, column);
        if may_go && !is_first && !is_last {
            let score = scores[at::<f32>(scores, head.batch, head.head, column)];
            let key = order(u32::reinterpret(score));
            let place = u32::cast_from(own) + 1;
            if key > worst || (key == worst && place > latest) {
                worst = key;
                latest = place;
                goes = u32::cast_from(column);
            }
        }
        column += UNITS;
    }
    let highest = of_cube(shared, worst, false);
    let candidate = select(worst == highest, latest, 0u32);
    let last = of_cube(shared, candidate, false);
    if candidate > 0 && candidate == last {
        found[0] = goes;
    }
    sync_cube();
    found[0] as usize
}
