use cubecl::prelude::*;

/// Units of a cube, and keys of a block.
pub(super) const BLOCK: usize = 64;

/// See [`super::ragged_attention`]. Tensors lie as their strides say: allocations may pad rows.
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
    weights: &mut Tensor<f32>,
    tail_weights: &mut Tensor<f32>,
    query_heads: usize,
    tail: usize,
    scale: f32,
    #[comptime] head_dim: usize,
    #[comptime] wanted: bool,
    #[define(Q, K, I)] _types: [ElemType; 3],
) {
    let unit = UNIT_POS as usize;
    let head = CUBE_POS;
    let batch = head / query_heads;
    let query_head = head % query_heads;
    let kv_heads = tail_keys.shape(1);
    let group = query_heads / kv_heads;
    let of_row = query_head / group;
    let kv_head = batch * kv_heads + of_row;
    let start = usize::cast_from(offsets[kv_head]);
    let body = usize::cast_from(offsets[kv_head + 1]) - start;
    let total = body + tail;
    let query_start = batch * queries.stride(0) + query_head * queries.stride(1);
    let output_start = batch * output.stride(0) + query_head * output.stride(1);
    let tail_key_start = batch * tail_keys.stride(0) + of_row * tail_keys.stride(1);
    let tail_value_start = batch * tail_values.stride(0) + of_row * tail_values.stride(1);

    let mut query = Shared::<[f32]>::new_slice(head_dim);
    let mut scores = Shared::<[f32]>::new_slice(BLOCK);
    let mut channel = unit;
    while channel < head_dim {
        query[channel] = f32::cast_from(queries[query_start + channel * queries.stride(3)]) * scale;
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
                let row = (start + entry) * keys.stride(0);
                for channel in 0..head_dim {
                    let place = row + channel * keys.stride(1);
                    score += query[channel] * f32::cast_from(keys[place]);
                }
            } else {
                let row = tail_key_start + (entry - body) * tail_keys.stride(2);
                for channel in 0..head_dim {
                    let place = row + channel * tail_keys.stride(3);
                    score += query[channel] * f32::cast_from(tail_keys[place]);
                }
            }
        }
        scores[unit] = score;
        if wanted && entry < total {
            // Scores, until the highest and the sum are known; this unit comes back for them.
            if entry < body {
                let place =
                    (start + entry) * weights.stride(0) + (query_head % group) * weights.stride(1);
                weights[place] = score;
            } else {
                let row = batch * tail_weights.stride(0) + query_head * tail_weights.stride(1);
                let place = row + (entry - body) * tail_weights.stride(2);
                tail_weights[place] = score;
            }
        }
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
                        let row = (start + entry) * values.stride(0);
                        let place = row + channel * values.stride(1);
                        sums[slot] += part * f32::cast_from(values[place]);
                    } else {
                        let row = tail_value_start + (entry - body) * tail_values.stride(2);
                        let place = row + channel * tail_values.stride(3);
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
            let place = output_start + channel * output.stride(3);
            output[place] = Q::cast_from(sums[slot] / weight);
        }
    }
    if wanted {
        let mut entry = unit;
        while entry < total {
            if entry < body {
                let place =
                    (start + entry) * weights.stride(0) + (query_head % group) * weights.stride(1);
                weights[place] = (weights[place] - highest).exp() / weight;
            } else {
                let row = batch * tail_weights.stride(0) + query_head * tail_weights.stride(1);
                let place = row + (entry - body) * tail_weights.stride(2);
                tail_weights[place] = (tail_weights[place] - highest).exp() / weight;
            }
            entry += BLOCK;
        }
    }
}
