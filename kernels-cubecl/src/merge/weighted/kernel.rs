use cubecl::prelude::*;

use crate::common::line::StridedSlice;

/// Units of a cube. As many rows are looked at a time.
pub(super) const UNITS: usize = 64;
/// Channels that a unit adds up, at most.
pub(super) const MOST_OWN: usize = 16;

/// The sum of `value` over the units of the cube. `shared` holds a number a unit.
#[cube]
fn cube_sum(shared: &mut Shared<[f32]>, value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let distance = comptime!(UNITS >> (step + 1));
        if unit < distance {
            let other = shared[unit + distance];
            shared[unit] += other;
        }
        sync_cube();
    }
    let sum = shared[0];
    sync_cube();
    sum
}

/// 1 over a length, 0 of none.
#[cube]
fn over_length(squares: f32) -> f32 {
    let mut factor = f32::new(0.0);
    if squares > f32::new(0.0) {
        factor = f32::new(1.0) / squares.sqrt();
    }
    factor
}

/// See [`super::merge`]. A cube a row that is merged into: along x those of a head, along y heads.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn merge<K: Float, V: Float, I: Int>(
    keys: &Tensor<K>,
    values: &Tensor<V>,
    own: &Tensor<f32>,
    other_keys: &Tensor<K>,
    other_values: &Tensor<V>,
    weights: &Tensor<f32>,
    slots: &Tensor<I>,
    merged_keys: &mut Tensor<K>,
    merged_values: &mut Tensor<V>,
    channels: usize,
    #[comptime] per_unit: usize,
    #[comptime] directions: bool,
    #[define(K, V, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let slot = CUBE_POS_X as usize;
    let heads = keys.shape(1);
    let batch = CUBE_POS_Y as usize / heads;
    let head = CUBE_POS_Y as usize % heads;
    let others = weights.shape(2);
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    // Of the rows looked at: the slot each goes to, its weight, and the same for its key.
    let mut goes_to = Shared::<[u32]>::new_slice(UNITS);
    let mut weight_of = Shared::<[f32]>::new_slice(UNITS);
    let mut key_weight_of = Shared::<[f32]>::new_slice(UNITS);

    let key = StridedSlice {
        start: batch * keys.stride(0) + head * keys.stride(1) + slot * keys.stride(2),
        stride: keys.stride(3),
    };
    let value = StridedSlice {
        start: batch * values.stride(0) + head * values.stride(1) + slot * values.stride(2),
        stride: values.stride(3),
    };
    let mut total = own[batch * own.stride(0) + head * own.stride(1) + slot * own.stride(2)];
    let mut key_sums = Array::<f32>::new(per_unit);
    let mut value_sums = Array::<f32>::new(per_unit);
    let mut squares = f32::new(0.0);
    #[unroll]
    for part in 0..per_unit {
        let channel = comptime!(part * UNITS) + unit;
        key_sums[part] = f32::new(0.0);
        value_sums[part] = f32::new(0.0);
        if channel < channels {
            key_sums[part] = f32::cast_from(keys[key.at(channel)]);
            value_sums[part] = f32::cast_from(values[value.at(channel)]) * total;
        }
        squares += key_sums[part] * key_sums[part];
    }
    let mut key_weight = total;
    if comptime!(directions) {
        key_weight *= over_length(cube_sum(&mut shared, squares));
    }
    #[unroll]
    for part in 0..per_unit {
        key_sums[part] *= key_weight;
    }

    let of_keys = batch * other_keys.stride(0) + head * other_keys.stride(1);
    let of_values = batch * other_values.stride(0) + head * other_values.stride(1);
    let weight_line = StridedSlice {
        start: batch * weights.stride(0) + head * weights.stride(1),
        stride: weights.stride(2),
    };
    let slot_line = StridedSlice {
        start: batch * slots.stride(0) + head * slots.stride(1),
        stride: slots.stride(2),
    };
    let mut base = 0;
    while base < others {
        // No slot is as high.
        let mut to = 0xffff_ffffu32;
        let row = base + unit;
        if row < others {
            let weight = weights[weight_line.at(row)];
            if weight != f32::new(0.0) {
                to = u32::cast_from(slots[slot_line.at(row)]);
            }
            let mut key_weight = weight;
            if comptime!(directions) && to == slot as u32 {
                let line = StridedSlice {
                    start: of_keys + row * other_keys.stride(2),
                    stride: other_keys.stride(3),
                };
                let mut squares = f32::new(0.0);
                for channel in 0..channels {
                    let x = f32::cast_from(other_keys[line.at(channel)]);
                    squares += x * x;
                }
                key_weight *= over_length(squares);
            }
            weight_of[unit] = weight;
            key_weight_of[unit] = key_weight;
        }
        goes_to[unit] = to;
        sync_cube();
        let count = (others - base).min(UNITS);
        for row in 0..count {
            if goes_to[row] == slot as u32 {
                let weight = weight_of[row];
                let key_weight = key_weight_of[row];
                total += weight;
                let key = StridedSlice {
                    start: of_keys + (base + row) * other_keys.stride(2),
                    stride: other_keys.stride(3),
                };
                let value = StridedSlice {
                    start: of_values + (base + row) * other_values.stride(2),
                    stride: other_values.stride(3),
                };
                #[unroll]
                for part in 0..per_unit {
                    let channel = comptime!(part * UNITS) + unit;
                    if channel < channels {
                        key_sums[part] += f32::cast_from(other_keys[key.at(channel)]) * key_weight;
                        value_sums[part] +=
                            f32::cast_from(other_values[value.at(channel)]) * weight;
                    }
                }
            }
        }
        sync_cube();
        base += UNITS;
    }

    let mut value_factor = f32::new(0.0);
    if total > f32::new(0.0) {
        value_factor = f32::new(1.0) / total;
    }
    let mut key_factor = value_factor;
    if comptime!(directions) {
        let mut squares = f32::new(0.0);
        #[unroll]
        for part in 0..per_unit {
            squares += key_sums[part] * key_sums[part];
        }
        key_factor = over_length(cube_sum(&mut shared, squares));
    }
    let key = StridedSlice {
        start: batch * merged_keys.stride(0)
            + head * merged_keys.stride(1)
            + slot * merged_keys.stride(2),
        stride: merged_keys.stride(3),
    };
    let value = StridedSlice {
        start: batch * merged_values.stride(0)
            + head * merged_values.stride(1)
            + slot * merged_values.stride(2),
        stride: merged_values.stride(3),
    };
    #[unroll]
    for part in 0..per_unit {
        let channel = comptime!(part * UNITS) + unit;
        if channel < channels {
            merged_keys[key.at(channel)] = K::cast_from(key_sums[part] * key_factor);
            merged_values[value.at(channel)] = V::cast_from(value_sums[part] * value_factor);
        }
    }
}
