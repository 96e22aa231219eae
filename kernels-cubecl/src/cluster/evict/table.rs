use cubecl::prelude::*;

use super::head::{Bounds, ClusteredHead, head_of};
use crate::common::{
    eviction::weakest::{UNITS, of_cube},
    line::{at, write},
    order::order,
    scan::{inclusive_sum, sum_of_cube},
};

/// The place of a token that goes.
const NONE: u32 = u32::MAX;
/// Bits of one of two numbers in a word: there are fewer columns than they count.
const HALF: u32 = 16;
/// The most columns of tokens: as many words of shared memory.
pub(super) const MOST_COLUMNS: usize = 8192;

/// Columns of a unit, one of few numbers.
pub(super) fn share(columns: usize) -> usize {
    columns.div_ceil(UNITS).next_power_of_two()
}

/// Merges the cluster that goes, or drops it, gives its row to the new token, and moves all tokens
/// to their new columns. A cube a head; a unit has `share` columns beside each other.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn replace<E: Float, I: Int>(
    directions: &mut Tensor<E>,
    values: &mut Tensor<E>,
    positions: &mut Tensor<I>,
    clusters: &mut Tensor<I>,
    norms: &mut Tensor<f32>,
    representatives: &mut Tensor<I>,
    tokens_by_cluster: &mut Tensor<I>,
    padding_columns: &mut Tensor<I>,
    statistics: &mut Tensor<f32>,
    counted: &Tensor<f32>,
    scores: &Tensor<f32>,
    offsets: &Tensor<I>,
    new_keys: &Tensor<E>,
    new_values: &Tensor<E>,
    new_positions: &Tensor<I>,
    limits: &Tensor<I>,
    places: &Tensor<I>,
    redundancy: &Tensor<f32>,
    bounds: &Bounds,
    threshold: f32,
    least_weight: f32,
    most_weight: f32,
    #[comptime] share: usize,
    #[comptime] is_tracked: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let list = CUBE_POS;
    let (heads, columns) = (positions.shape(1), positions.shape(2));
    if list >= positions.shape(0) * heads {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let height = representatives.shape(2);
    let own = head_of::<I>(offsets, limits, new_positions, list, heads, height, columns, bounds);
    let gone = u32::cast_from(places[at::<I>(places, own.batch, own.head, 0)]);
    let target = u32::cast_from(places[at::<I>(places, own.batch, own.head, 1)]);
    let like = redundancy[at::<f32>(redundancy, own.batch, own.head, 0)];
    let merges = own.most > own.count && own.recent < own.count && like > threshold;
    let of_padding = own.batch * padding_columns.stride(0) + own.head * padding_columns.stride(1);
    let old_padding = usize::cast_from(padding_columns[of_padding]);

    let mut shared = Shared::<[u32]>::new_slice(UNITS);
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let mut scan = Shared::<[u32]>::new_slice(comptime!(2 * UNITS));
    let mut new_place = Shared::<[u32]>::new_slice(comptime!(share * UNITS));
    let last_sum = comptime!(UNITS.ilog2() as usize % 2 * UNITS + UNITS - 1);

    // The tokens that stay, and the one of them with the lowest score that represents no cluster.
    let mut cluster_of = Array::<u32>::new(share);
    let mut position_of = Array::<I>::new(share);
    let mut norm_of = Array::<f32>::new(share);
    let mut member = Array::<u32>::new(share);
    let mut cluster_of_member = Array::<u32>::new(share);
    let mut stays = Array::<u32>::new(share);
    let mut stay = 0u32;
    let mut worst = 0u32;
    let mut latest = 0u32;
    let mut gone_weight = f32::new(0.0);
    let mut target_weight = f32::new(0.0);
    #[unroll]
    for one in 0..share {
        let column = unit * share + one;
        cluster_of[one] = NONE;
        position_of[one] = I::new(-1);
        norm_of[one] = f32::new(0.0);
        member[one] = NONE;
        cluster_of_member[one] = NONE;
        stays[one] = 0;
        if column >= old_padding && column < columns {
            let cluster =
                u32::cast_from(clusters[at::<I>(&*clusters, own.batch, own.head, column)]);
            cluster_of[one] = cluster;
            position_of[one] = positions[at::<I>(&*positions, own.batch, own.head, column)];
            norm_of[one] = norms[at::<f32>(&*norms, own.batch, own.head, column)];
            let of_list = u32::cast_from(
                tokens_by_cluster[at::<I>(&*tokens_by_cluster, own.batch, own.head, column)],
            );
            member[one] = of_list;
            cluster_of_member[one] = u32::cast_from(
                clusters[at::<I>(&*clusters, own.batch, own.head, of_list as usize)],
            );
            let score = scores[at::<f32>(scores, own.batch, own.head, column)];
            let weight = score.max(least_weight).min(most_weight);
            if cluster == gone {
                gone_weight += weight;
            }
            if cluster == target {
                target_weight += weight;
            }
            if cluster != gone || merges {
                stays[one] = 1;
                stay += 1;
                let place = own.first_cluster + cluster as usize;
                let represents = usize::cast_from(
                    representatives[at::<I>(&*representatives, own.batch, own.head, place)],
                );
                if cluster == gone || own.first_column + represents != column {
                    let rank = order(u32::reinterpret(score));
                    let age = column as u32 + 1;
                    if rank > worst || (rank == worst && age > latest) {
                        worst = rank;
                        latest = age;
                    }
                }
            }
        }
    }
    let all = of_cube(&mut shared, stay, true);
    let lowest = of_cube(&mut shared, worst, false);
    let candidate = select(worst == lowest, latest, 0u32);
    let forgotten = of_cube(&mut shared, candidate, false);
    if all as usize + 1 > own.most {
        #[unroll]
        for one in 0..share {
            if (unit * share + one) as u32 + 1 == forgotten {
                stays[one] = 0;
                stay -= 1;
            }
        }
    }
    let end = inclusive_sum(&mut scan, stay, UNITS);
    let all = scan[last_sum] as usize;
    sync_cube();
    let padding = columns - all - 1;
    let mut next = padding as u32 + end - stay;
    #[unroll]
    for one in 0..share {
        let mut place = NONE.runtime();
        if stays[one] == 1 {
            place = next;
            next += 1;
        }
        new_place[unit * share + one] = place;
    }
    sync_cube();

    // Tokens by cluster: those of the one that goes behind those of the one it goes to.
    let mut others = 0u32;
    let mut moved = 0u32;
    let mut up_to_target = 0u32;
    let mut below_gone = 0u32;
    #[unroll]
    for one in 0..share {
        let cluster = cluster_of_member[one];
        if cluster != NONE && new_place[member[one] as usize] != NONE {
            if cluster == gone {
                moved += 1;
            } else {
                others += 1;
                if cluster <= target {
                    up_to_target += 1;
                }
                if cluster < gone {
                    below_gone += 1;
                }
            }
        }
    }
    let counts = others | (moved << HALF);
    let ends = inclusive_sum(&mut scan, counts, UNITS) - counts;
    let all_moved = scan[last_sum] >> HALF;
    sync_cube();
    let sum = of_cube(&mut shared, up_to_target | (below_gone << HALF), true);
    let up_to_target = sum & comptime!((1u32 << HALF) - 1);
    let below_gone = sum >> HALF;
    let mut other = padding as u32 + (ends & comptime!((1u32 << HALF) - 1));
    let mut of_moved = padding as u32 + up_to_target + (ends >> HALF);
    if target > gone {
        of_moved += 1;
    }
    // Everything has been read that is written from here on.
    sync_storage();
    #[unroll]
    for one in 0..share {
        let cluster = cluster_of_member[one];
        if cluster != NONE {
            let to = new_place[member[one] as usize];
            if to != NONE {
                let mut place = of_moved;
                if cluster == gone {
                    of_moved += 1;
                } else {
                    place = other;
                    other += 1;
                    if cluster > target {
                        place += all_moved;
                    }
                    if cluster > gone {
                        place += 1;
                    }
                }
                let token = I::cast_from(to);
                write::<I>(tokens_by_cluster, own.batch, own.head, place as usize, token);
            }
        }
        if stays[one] == 1 {
            let place = new_place[unit * share + one] as usize;
            let cluster = select(cluster_of[one] == gone, target, cluster_of[one]);
            write::<I>(clusters, own.batch, own.head, place, I::cast_from(cluster));
            write::<I>(positions, own.batch, own.head, place, position_of[one]);
            write::<f32>(norms, own.batch, own.head, place, norm_of[one]);
        }
    }
    let mut place = unit;
    while place < padding {
        write::<I>(clusters, own.batch, own.head, place, I::new(0));
        write::<I>(positions, own.batch, own.head, place, I::new(-1));
        write::<f32>(norms, own.batch, own.head, place, f32::new(0.0));
        write::<I>(tokens_by_cluster, own.batch, own.head, place, I::cast_from(place));
        place += UNITS;
    }
    let newest = columns - 1;
    let last = own.most - 1;
    let represented = select(own.takes_free, own.count + 1, own.count);
    let mut cluster = unit;
    while cluster < represented {
        let at_cluster = own.first_cluster + cluster;
        let represents = usize::cast_from(
            representatives[at::<I>(&*representatives, own.batch, own.head, at_cluster)],
        );
        let mut to = last;
        if cluster as u32 != gone {
            // Counted from the end, since the number of tokens may differ.
            let place = new_place[own.first_column + represents] as usize;
            to = last - (newest - place);
        }
        write::<I>(representatives, own.batch, own.head, at_cluster, I::cast_from(to));
        cluster += UNITS;
    }
    if comptime!(is_tracked) {
        let batches = positions.shape(0);
        move_statistics(statistics, counted, &new_place, &own, batches, heads, columns, padding);
    }

    let norm = replace_rows::<E>(
        directions,
        values,
        new_keys,
        new_values,
        &own,
        gone as usize,
        target as usize,
        gone_weight,
        target_weight,
        merges,
        &mut sums,
    );
    if unit == 0 {
        let mut moved_before = 0u32;
        if target < gone {
            moved_before = all_moved;
        }
        let place = padding as u32 + below_gone + moved_before;
        write::<I>(tokens_by_cluster, own.batch, own.head, place as usize, I::cast_from(newest));
        let position = new_positions[at::<I>(new_positions, own.batch, own.head, 0)];
        write::<I>(positions, own.batch, own.head, newest, position);
        write::<I>(clusters, own.batch, own.head, newest, I::cast_from(gone));
        write::<f32>(norms, own.batch, own.head, newest, norm);
        padding_columns[of_padding] = I::cast_from(padding);
    }
}

/// Moves the new statistics of each token to its column.
#[cube]
#[allow(clippy::too_many_arguments)]
fn move_statistics(
    statistics: &mut Tensor<f32>,
    counted: &Tensor<f32>,
    new_place: &Shared<[u32]>,
    own: &ClusteredHead,
    batches: usize,
    heads: usize,
    columns: usize,
    padding: usize,
) {
    let group = counted.shape(1) / heads;
    let numbers = counted.shape(0) / batches * group;
    for number in 0..numbers {
        let row = number / group * batches + own.batch;
        let head = own.head * group + number % group;
        let mut column = UNIT_POS as usize;
        while column <= columns {
            let mut place = u32::cast_from(columns - 1);
            if column < columns {
                place = new_place[column];
                if column < padding {
                    write::<f32>(statistics, row, head, column, f32::new(0.0));
                }
            }
            if place != NONE {
                let statistic = counted[at::<f32>(counted, row, head, column)];
                write::<f32>(statistics, row, head, place as usize, statistic);
            }
            column += UNITS;
        }
    }
}

/// Merges the row of the cluster that goes into that of the target, and writes the new token's in
/// its place. Returns the length of the new key. Weights are the units' parts of those of both.
#[cube]
#[allow(clippy::too_many_arguments)]
fn replace_rows<E: Float>(
    directions: &mut Tensor<E>,
    values: &mut Tensor<E>,
    new_keys: &Tensor<E>,
    new_values: &Tensor<E>,
    own: &ClusteredHead,
    gone: usize,
    target: usize,
    gone_weight: f32,
    target_weight: f32,
    merges: bool,
    sums: &mut Shared<[f32]>,
) -> f32 {
    let channels = directions.shape(1);
    let gone = Row {
        key: (own.start + gone) * directions.stride(0),
        value: (own.start + gone) * values.stride(0),
    };
    let target = Row {
        key: (own.start + target) * directions.stride(0),
        value: (own.start + target) * values.stride(0),
    };
    let new = Row {
        key: at::<E>(new_keys, own.batch, own.head, 0),
        value: at::<E>(new_values, own.batch, own.head, 0),
    };
    let (key_step, value_step) = (directions.stride(1), values.stride(1));
    let gone_weight = sum_of_cube(sums, gone_weight, UNITS);
    let target_weight = sum_of_cube(sums, target_weight, UNITS);
    let all = gone_weight + target_weight;
    let (gone_weight, target_weight) = (gone_weight / all, target_weight / all);

    let mut gone_square = f32::new(0.0);
    let mut target_square = f32::new(0.0);
    let mut new_square = f32::new(0.0);
    let mut channel = UNIT_POS as usize;
    while channel < channels {
        let from = f32::cast_from(directions[gone.key + channel * key_step]);
        let to = f32::cast_from(directions[target.key + channel * key_step]);
        let key = f32::cast_from(new_keys[new.key + channel * new_keys.stride(3)]);
        gone_square += from * from;
        target_square += to * to;
        new_square += key * key;
        channel += UNITS;
    }
    let least = f32::new(f32::MIN_POSITIVE);
    let from_length = sum_of_cube(sums, gone_square, UNITS).sqrt().max(least);
    let to_length = sum_of_cube(sums, target_square, UNITS).sqrt().max(least);
    let norm = sum_of_cube(sums, new_square, UNITS).sqrt();
    let new_length = norm.max(least);
    let from_factor = gone_weight / from_length;
    let to_factor = target_weight / to_length;

    let mut square = f32::new(0.0);
    let mut channel = UNIT_POS as usize;
    while channel < channels {
        let from = f32::cast_from(directions[gone.key + channel * key_step]);
        let to = f32::cast_from(directions[target.key + channel * key_step]);
        let merged = to * to_factor + from * from_factor;
        square += merged * merged;
        channel += UNITS;
    }
    let length = sum_of_cube(sums, square, UNITS).sqrt().max(least);
    let mut channel = UNIT_POS as usize;
    while channel < channels {
        let (gone_key, gone_value) =
            (gone.key + channel * key_step, gone.value + channel * value_step);
        if merges {
            let (to_key, to_value) =
                (target.key + channel * key_step, target.value + channel * value_step);
            let key = f32::cast_from(directions[to_key]) * to_factor
                + f32::cast_from(directions[gone_key]) * from_factor;
            let value = f32::cast_from(values[to_value]) * target_weight
                + f32::cast_from(values[gone_value]) * gone_weight;
            directions[to_key] = E::cast_from(key / length);
            values[to_value] = E::cast_from(value);
        }
        let key = f32::cast_from(new_keys[new.key + channel * new_keys.stride(3)]);
        directions[gone_key] = E::cast_from(key / new_length);
        values[gone_value] = new_values[new.value + channel * new_values.stride(3)];
        channel += UNITS;
    }
    norm
}

/// Where a row of keys and one of values begin.
#[derive(CubeType, Clone, Copy)]
struct Row {
    key: usize,
    value: usize,
}
