use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 128;
/// Parts on their way at a time.
const IN_FLIGHT: usize = 4;

/// Adds up the parts of sums in their order, and what is added to them: a unit has `N` outputs of a
/// row.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn linear_merge<E: Float, N: Size>(
    parts: &Tensor<Vector<f32, N>>,
    bias: &Tensor<E>,
    output: &mut Tensor<Vector<E, N>>,
    steps: usize,
    share: usize,
    tile: usize,
    tile_rows: usize,
    #[comptime] whole_are_there: bool,
    #[comptime] biased: bool,
    #[define(E)] _type: ElemType,
) {
    let width = parts.vector_size();
    let column = (CUBE_POS_X as usize * UNITS + UNIT_POS as usize) * width;
    let row = CUBE_POS_Y as usize;
    let row_tiles = output.shape(0).div_ceil(tile_rows);
    let number = column / tile * row_tiles + row / tile_rows;
    let mut cube = number * steps / share;
    let last = ((number + 1) * steps - 1) / share;
    let missing = !whole_are_there || cube < last;
    if column < output.shape(1) && missing {
        let mut sum = Vector::<f32, N>::new(0.0);
        while cube <= last {
            let mut loaded = Array::<Vector<f32, N>>::new(IN_FLIGHT);
            #[unroll]
            for ahead in 0..IN_FLIGHT {
                // Behind the last part it is loaded again, and not added.
                let part = (cube + ahead).min(last) + number;
                let own = part * tile_rows + row % tile_rows;
                loaded[ahead] = parts[(own * tile + column % tile) / width];
            }
            #[unroll]
            for ahead in 0..IN_FLIGHT {
                if cube + ahead <= last {
                    sum += loaded[ahead];
                }
            }
            cube += IN_FLIGHT;
        }
        if comptime!(biased) {
            #[unroll]
            for index in 0..width {
                let own =
                    sum.extract(index) + f32::cast_from(bias[(column + index) * bias.stride(0)]);
                sum.insert(index, own);
            }
        }
        let place = (row * output.stride(0) + column * output.stride(1)) / width;
        output[place] = Vector::cast_from(sum);
    }
}
