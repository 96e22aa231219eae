use cubecl::prelude::*;

use crate::common::{
    eviction::weakest::{UNITS, of_cube},
    line::{at, write},
};

/// See [`super::ranks`]. A cube a head.
#[cube(launch)]
pub(super) fn ranks<I: Int>(
    positions: &Tensor<I>,
    ranks: &mut Tensor<I>,
    sinks: u32,
    #[define(I)] _type: ElemType,
) {
    let (heads, columns) = (positions.shape(1), positions.shape(2));
    let list = CUBE_POS;
    if list >= positions.shape(0) * heads {
        terminate!();
    }
    let (batch, head) = (list / heads, list % heads);
    let unit = UNIT_POS as usize;
    let mut shared = Shared::<[u32]>::new_slice(UNITS);

    // Tokens, those of the first that there are, and the end of the last.
    let mut tokens = 0u32;
    let mut first = 0u32;
    let mut end = 0u32;
    let mut column = unit;
    while column < columns {
        let position = positions[at::<I>(positions, batch, head, column)];
        if position >= I::new(0) {
            let position = u32::cast_from(position);
            tokens += 1;
            if position < sinks {
                first += 1;
            }
            end = end.max(position + 1);
        }
        column += UNITS;
    }
    let tokens = of_cube(&mut shared, tokens, true);
    let first = of_cube(&mut shared, first, true);
    let end = of_cube(&mut shared, end, false);
    let last = tokens - first;

    // If all tokens are among the first so many and the last so many, there are no gaps but one.
    let mut known = 0u32;
    let mut column = unit;
    while column < columns {
        let position = positions[at::<I>(positions, batch, head, column)];
        if position >= I::new(0) {
            let position = u32::cast_from(position);
            if position < first || position + last >= end {
                known += 1;
            }
        }
        column += UNITS;
    }
    let has_gaps = of_cube(&mut shared, known, true) != tokens;

    let mut column = unit;
    while column < columns {
        let own = positions[at::<I>(positions, batch, head, column)];
        let mut rank = I::new(-1);
        if own >= I::new(0) {
            let position = u32::cast_from(own);
            let mut before = position;
            if position >= first {
                before = position + tokens - end;
            }
            if has_gaps {
                before = 0u32;
                for other in 0..columns {
                    let other = positions[at::<I>(positions, batch, head, other)];
                    if other >= I::new(0) && other < own {
                        before += 1;
                    }
                }
            }
            rank = I::cast_from(before);
        }
        write::<I>(ranks, batch, head, column, rank);
        column += UNITS;
    }
}
