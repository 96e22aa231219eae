use cubecl::prelude::*;

/// Units of a cube, and keys of a block.
pub(super) const BLOCK: usize = 64;

/// See [`super::ragged_attention`]. Every tensor is contiguous.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn ragged_attention<Q: Float, K: Float, I: Int>(
    queries: &Tensor<Q>,
    keys: &Tensor<K>,
    values: &Tensor<K>,
    offsets: &Tensor<I>,
    tail_keys: &Tensor<K>,
    tail_values: &Tensor<K>,
    output: &mut Tensor<Q>,
    group: usize,
    capacity: usize,
    tail: usize,
    scale: f32,
    #[comptime] head_dim: usize,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let head = CUBE_POS as usize;
    let kv_head = head / group;
    let start = usize::cast_from(offsets[kv_head]);
    let body = usize::cast_from(offsets[kv_head + 1]) - start;
    let total = body + tail;
    // Where a row of the tail would lie if the rows before it were the body's.
    let tail_start = kv_head * capacity;

    let mut query = Shared::<[f32]>::new_slice(head_dim);
    let mut scores = Shared::<[f32]>::new_slice(BLOCK);
    let mut channel = unit;
    while channel < head_dim {
        query[channel] = f32::cast_from(queries[head * head_dim + channel]) * scale;
        channel += BLOCK;
    }
    sync_cube();

    let channels = comptime!(head_dim.div_ceil(BLOCK));
    let mut sums = Array::<f32>::new(channels);
    for index in 0..channels {
        sums[index] = 0.0;
    }
    let mut highest = f32::new(-1e30);
    let mut weight = f32::new(0.0);

    let mut base = 0;
    while base < total {
        let entry = base + unit;
        let mut score = f32::new(-1e30);
        if entry < total {
            score = 0.0;
            if entry < body {
                let row = (start + entry) * head_dim;
                for channel in 0..head_dim {
                    score += query[channel] * f32::cast_from(keys[row + channel]);
                }
            } else {
                let row = (tail_start + entry - body) * head_dim;
                for channel in 0..head_dim {
                    score += query[channel] * f32::cast_from(tail_keys[row + channel]);
                }
            }
        }
        scores[unit] = score;
        sync_cube();

        let count = (total - base).min(BLOCK);
        let mut new_highest = highest;
        for index in 0..count {
            new_highest = new_highest.max(scores[index]);
        }
        let kept = (highest - new_highest).exp();
        highest = new_highest;
        weight *= kept;
        for index in 0..channels {
            sums[index] *= kept;
        }
        for index in 0..count {
            let part = (scores[index] - highest).exp();
            weight += part;
            let entry = base + index;
            for slot in 0..channels {
                let channel = unit + slot * BLOCK;
                if channel < head_dim {
                    if entry < body {
                        let place = (start + entry) * head_dim + channel;
                        sums[slot] += part * f32::cast_from(values[place]);
                    } else {
                        let place = (tail_start + entry - body) * head_dim + channel;
                        sums[slot] += part * f32::cast_from(tail_values[place]);
                    }
                }
            }
        }
        sync_cube();
        base += BLOCK;
    }
    for slot in 0..channels {
        let channel = unit + slot * BLOCK;
        if channel < head_dim {
            output[head * head_dim + channel] = Q::cast_from(sums[slot] / weight);
        }
    }
}
