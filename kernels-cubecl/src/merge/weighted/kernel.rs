use cubecl::prelude::*;

use crate::common::{
    copy_rows::{self, lanes},
    line::{at, row_of},
    scan::sum_of_cube,
};

/// Units of a cube that merges. As many rows are looked at a time.
pub(super) const UNITS: usize = 64;
/// Channels that a unit adds up, at most.
pub(super) const MOST_OWN: usize = 16;

/// 1 over a length, 0 of none.
#[cube]
fn over_length(squares: f32) -> f32 {
    let mut factor = f32::new(0.0);
    if squares > f32::new(0.0) {
        factor = f32::new(1.0) / squares.sqrt();
    }
    factor
}

/// Scales rows to unit length in place; a zero row stays zero. Rows of `x` are `vectors` long and
/// lie in order, padded or not. Cubes along x share the rows of a head, along y heads.
#[cube(launch)]
pub(super) fn unit_rows<K: Float, N: Size>(
    x: &mut Tensor<Vector<K, N>>,
    rows: usize,
    #[comptime] vectors: usize,
    #[comptime] rows_of_cube: usize,
    #[define(K)] _type: ElemType,
) {
    let unit = UNIT_POS as usize;
    let side_by_side = comptime!(lanes(vectors));
    let (place, lane) = (unit / side_by_side, unit % side_by_side);
    let row = CUBE_POS_X as usize * rows_of_cube + place;
    let works = place < rows_of_cube && row < rows;
    let width = x.vector_size();
    let start = (CUBE_POS_Y as usize * rows + row) * (x.stride(2) / width);

    let mut shared = Shared::<[f32]>::new_slice(copy_rows::UNITS);
    let mut squares = f32::new(0.0);
    if works {
        let mut vector = lane;
        while vector < vectors {
            let wide = Vector::<f32, N>::cast_from(x[start + vector]);
            #[unroll]
            for index in 0..width {
                let number = wide.extract(index);
                squares += number * number;
            }
            vector += side_by_side;
        }
    }
    shared[unit] = squares;
    sync_cube();
    if works {
        let mut all = f32::new(0.0);
        for other in 0..side_by_side {
            all += shared[place * side_by_side + other];
        }
        let factor = Vector::<f32, N>::new(over_length(all));
        let mut vector = lane;
        while vector < vectors {
            let wide = Vector::<f32, N>::cast_from(x[start + vector]);
            x[start + vector] = Vector::cast_from(wide * factor);
            vector += side_by_side;
        }
    }
}

/// See [`super::merge`]. Keys and values are changed in place; with `directions` keys have unit
/// length. A cube a row that is merged: along x those of a head, along y heads. The first of those
/// that go to one slot merges them all.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn merge<K: Float, V: Float, I: Int>(
    keys: &mut Tensor<K>,
    values: &mut Tensor<V>,
    own: &Tensor<f32>,
    other_keys: &Tensor<K>,
    other_values: &Tensor<V>,
    weights: &Tensor<f32>,
    slots: &Tensor<I>,
    channels: usize,
    #[comptime] per_unit: usize,
    #[comptime] directions: bool,
    #[define(K, V, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let first = CUBE_POS_X as usize;
    let (heads, rows) = (keys.shape(1), keys.shape(2));
    let batch = CUBE_POS_Y as usize / heads;
    let head = CUBE_POS_Y as usize % heads;
    let others = weights.shape(2);
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    // Of the rows looked at: the slot each goes to, and its weight.
    let mut goes_to = Shared::<[u32]>::new_slice(UNITS);
    let mut weight_of = Shared::<[f32]>::new_slice(UNITS);

    let slot = usize::cast_from(slots[at::<I>(slots, batch, head, first)]);
    // One that goes to the same slot before this one.
    let mut earlier = f32::new(0.0);
    let mut row = unit;
    while row < first {
        if usize::cast_from(slots[at::<I>(slots, batch, head, row)]) == slot
            && weights[at::<f32>(weights, batch, head, row)] != f32::new(0.0)
        {
            earlier = f32::new(1.0);
        }
        row += UNITS;
    }
    let merges = sum_of_cube(&mut shared, earlier, UNITS) == f32::new(0.0)
        && weights[at::<f32>(weights, batch, head, first)] != f32::new(0.0)
        && slot < rows;

    if merges {
        let key = row_of::<K>(&*keys, batch, head, slot);
        let value = row_of::<V>(&*values, batch, head, slot);
        let mut total = own[at::<f32>(own, batch, head, slot)];
        let mut key_sums = Array::<f32>::new(per_unit);
        let mut value_sums = Array::<f32>::new(per_unit);
        let mut other_key = Array::<f32>::new(per_unit);
        #[unroll]
        for part in 0..per_unit {
            let channel = comptime!(part * UNITS) + unit;
            key_sums[part] = f32::new(0.0);
            value_sums[part] = f32::new(0.0);
            if channel < channels {
                key_sums[part] = f32::cast_from(keys[key.at(channel)]) * total;
                value_sums[part] = f32::cast_from(values[value.at(channel)]) * total;
            }
        }

        let mut base = first;
        while base < others {
            // No slot is as high.
            let mut to = 0xffff_ffffu32;
            let row = base + unit;
            if row < others {
                let weight = weights[at::<f32>(weights, batch, head, row)];
                if weight != f32::new(0.0) {
                    to = u32::cast_from(slots[at::<I>(slots, batch, head, row)]);
                }
                weight_of[unit] = weight;
            }
            goes_to[unit] = to;
            sync_cube();
            let count = (others - base).min(UNITS);
            for row in 0..count {
                if goes_to[row] == slot as u32 {
                    let weight = weight_of[row];
                    total += weight;
                    let other = row_of::<K>(other_keys, batch, head, base + row);
                    let of_value = row_of::<V>(other_values, batch, head, base + row);
                    let mut squares = f32::new(0.0);
                    #[unroll]
                    for part in 0..per_unit {
                        let channel = comptime!(part * UNITS) + unit;
                        other_key[part] = f32::new(0.0);
                        if channel < channels {
                            other_key[part] = f32::cast_from(other_keys[other.at(channel)]);
                            value_sums[part] +=
                                f32::cast_from(other_values[of_value.at(channel)]) * weight;
                        }
                        squares += other_key[part] * other_key[part];
                    }
                    let mut key_weight = weight;
                    if comptime!(directions) {
                        key_weight *= over_length(sum_of_cube(&mut shared, squares, UNITS));
                    }
                    #[unroll]
                    for part in 0..per_unit {
                        key_sums[part] += other_key[part] * key_weight;
                    }
                }
            }
            sync_cube();
            base += UNITS;
        }

        let value_factor = f32::new(1.0) / total;
        let mut key_factor = value_factor;
        if comptime!(directions) {
            let mut squares = f32::new(0.0);
            #[unroll]
            for part in 0..per_unit {
                squares += key_sums[part] * key_sums[part];
            }
            key_factor = over_length(sum_of_cube(&mut shared, squares, UNITS));
        }
        #[unroll]
        for part in 0..per_unit {
            let channel = comptime!(part * UNITS) + unit;
            if channel < channels {
                keys[key.at(channel)] = K::cast_from(key_sums[part] * key_factor);
                values[value.at(channel)] = V::cast_from(value_sums[part] * value_factor);
            }
        }
    }
}
