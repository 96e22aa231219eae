use cubecl::prelude::*;

use crate::{
    attention::{
        decode::split::{
            fill_weights,
            mma::{
                HEADS, PlaneOutputs, TILE, add_plane_values, new_plane_sums, pair, plane_cube,
                plane_queries, plane_scores, plane_weights, weigh_scores, write_planes,
            },
            operands::{ClusterArgs, KeyValues, RotaryArgs},
        },
        scoring::ScoreArgs,
    },
    common::{
        masked::MASKED,
        tile::mma::{CHUNK, Chunk, Pair},
    },
};

/// Compile-time parameters of the decode kernel over clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusteredBlueprint {
    /// Planes of a cube.
    pub(crate) planes: usize,
    /// 64 or 128.
    pub(crate) head_dim: usize,
    /// Whether keys are encoded as they are read.
    pub(crate) encoded: bool,
    /// Whether one cube has all tokens of its heads: it writes their output, and weights in place
    /// of scores.
    pub(crate) whole: bool,
    /// Whether weights are wanted.
    pub(crate) wanted: bool,
}

/// Description of a token, in lane `member` and the one 16 further.
#[derive(CubeType)]
struct Token {
    entry: u32,
    column: u32,
    position: u32,
    norm: f32,
}

/// Place of the descriptions of a head's tokens. Members, entries and norms are laid out alike:
/// registers decide how many cubes a multiprocessor takes, and three places would be one cube less.
#[derive(CubeType, Clone, Copy)]
struct Table {
    /// Start of the columns of the head, padding included.
    start: usize,
    /// Number of columns that are padding: the first.
    padding: usize,
    /// Number of columns that are tokens.
    own: usize,
    /// Row of its first entry.
    first_entry: u32,
    /// Number of rows of the tail.
    tail: usize,
    /// Start of its positions.
    position_start: usize,
}

/// Part of the tokens of [`super::clustered`] that one cube has, on tensor cores.
///
/// Directions and values go from memory to the registers of the instruction, each once for every
/// token: lanes that want the same entry at once read it together. Keys are turned in registers,
/// where both channels of a pair lie in one lane.
#[cube(launch)]
pub(crate) fn shared_planes<E: Float, T: Float, I: Int>(
    queries: &Tensor<E>,
    clusters: &ClusterArgs<Chunk<E>, I>,
    starts: &Tensor<I>,
    rotary: &RotaryArgs<Chunk<T>, I>,
    tail_rows: &KeyValues<Chunk<E>>,
    outputs: &mut PlaneOutputs<E>,
    columns: usize,
    tail: usize,
    share: usize,
    scoring: &ScoreArgs,
    #[comptime] blueprint: ClusteredBlueprint,
    #[define(E, T, I)] _types: [ElemType; 3],
) {
    let ClusteredBlueprint { planes, head_dim, encoded, whole, wanted } = blueprint;
    let spans = comptime!(head_dim / 32);
    let groups = comptime!(head_dim / 64);

    let plane = UNIT_POS as usize / 32;
    let lane = UNIT_POS_PLANE as usize;
    let line = lane / 4;
    let quad = lane % 4;
    let cube = plane_cube::<E>(queries, &outputs.weights, tail_rows.keys.shape(1));
    // Padding columns before those of this head.
    let padding = usize::cast_from(starts[cube.kv * starts.stride(0)]);
    let own = columns - tail - padding;
    let mut position_start = 0usize.runtime();
    if comptime!(encoded) {
        position_start = cube.batch * rotary.positions.stride(0);
        if rotary.positions.shape(1) > 1 {
            position_start += cube.kv_head * rotary.positions.stride(1);
        }
    }
    let table = Table {
        start: cube.kv * (columns - tail),
        padding,
        own,
        first_entry: u32::cast_from(clusters.offsets[cube.kv * clusters.offsets.stride(0)]),
        tail,
        position_start,
    };
    let own_tiles = own.div_ceil(TILE);
    let tiles = own_tiles + tail.div_ceil(TILE);
    let end = ((cube.part + 1) * share).min(tiles);
    if comptime!(wanted) && cube.part == 0 {
        fill_weights(&mut outputs.weights, cube.weight_start, cube.heads_left, padding, HEADS);
    }
    let tail_keys = &tail_rows.keys;
    let tail_values = &tail_rows.values;
    let key_start = cube.batch * tail_keys.stride(0) + cube.kv_head * tail_keys.stride(1);
    let value_start = cube.batch * tail_values.stride(0) + cube.kv_head * tail_values.stride(1);

    let query = plane_queries::<E>(queries, &cube, head_dim, CHUNK);
    let mut sums = new_plane_sums(head_dim);

    // Where a token's entry lies is known only after two loads: they are under way while the tiles
    // before are worked on.
    let mut tile = cube.part * share + plane;
    let now = token_at::<I>(&clusters.tokens_by_cluster, &table, tile);
    let token = describe::<E, T, I>(clusters, rotary, &table, now, tile, encoded);
    let mut entry = token.entry;
    let mut column = token.column;
    let mut position = token.position;
    let mut norm = token.norm;
    let mut next = token_at::<I>(&clusters.tokens_by_cluster, &table, tile + planes);

    while tile < end {
        let mut key = Array::<Chunk<E>>::new(comptime!(2 * spans));
        let mut value = Array::<Chunk<E>>::new(comptime!(4 * groups));
        if tile < own_tiles {
            let directions = &clusters.rows.keys;
            let values = &clusters.rows.values;
            #[unroll]
            for eight in 0..2usize {
                let row = plane_shuffle(entry, (eight * 8 + line) as u32) as usize;
                let place = row * directions.stride(0) / CHUNK + quad;
                #[unroll]
                for span in 0..spans {
                    key[eight * spans + span] = directions[place + span * 4];
                }
            }
            #[unroll]
            for one in 0..4usize {
                let own = quad * 2 + one / 2 * 8 + one % 2;
                let row = plane_shuffle(entry, own as u32) as usize;
                let place = row * values.stride(0) / CHUNK + line;
                #[unroll]
                for span in 0..groups {
                    value[span * 4 + one] = values[place + span * 8];
                }
            }
        } else {
            let base = (tile - own_tiles) * TILE;
            #[unroll]
            for eight in 0..2usize {
                let row = (base + eight * 8 + line).min(tail - 1);
                let place = (key_start + row * tail_keys.stride(2)) / CHUNK + quad;
                #[unroll]
                for span in 0..spans {
                    key[eight * spans + span] = tail_keys[place + span * 4];
                }
            }
            #[unroll]
            for one in 0..4usize {
                let row = (base + quad * 2 + one / 2 * 8 + one % 2).min(tail - 1);
                let place = (value_start + row * tail_values.stride(2)) / CHUNK + line;
                #[unroll]
                for span in 0..groups {
                    value[span * 4 + one] = tail_values[place + span * 8];
                }
            }
        }
        let later = describe::<E, T, I>(clusters, rotary, &table, next, tile + planes, encoded);
        next = token_at::<I>(&clusters.tokens_by_cluster, &table, tile + 2 * planes);

        let mut keys = Array::<Pair<E>>::new(comptime!(head_dim / 4));
        #[unroll]
        for eight in 0..2usize {
            if comptime!(encoded) {
                let at = plane_shuffle(position, (eight * 8 + line) as u32) as usize;
                #[unroll]
                for span in 0..comptime!(spans / 2) {
                    let chunk = span * 4 + quad;
                    let cosine = rotary.cosines[at * rotary.cosines.stride(0) / CHUNK + chunk];
                    let sine = rotary.sines[at * rotary.sines.stride(0) / CHUNK + chunk];
                    let low = key[eight * spans + span];
                    let high = key[eight * spans + span + spans / 2];
                    #[unroll]
                    for register in 0..4usize {
                        let mut turned_low = Pair::<f32>::empty();
                        let mut turned_high = Pair::<f32>::empty();
                        #[unroll]
                        for side in 0..2usize {
                            let channel = comptime!(register * 2 + side);
                            let cosine = f32::cast_from(cosine.extract(channel));
                            let sine = f32::cast_from(sine.extract(channel));
                            let low = f32::cast_from(low.extract(channel));
                            let high = f32::cast_from(high.extract(channel));
                            turned_low.insert(side, low * cosine - high * sine);
                            turned_high.insert(side, high * cosine + low * sine);
                        }
                        let place = comptime!((eight * spans + span) * 4 + register);
                        keys[place] = Pair::<E>::cast_from(turned_low);
                        keys[comptime!(place + spans * 2)] = Pair::<E>::cast_from(turned_high);
                    }
                }
            } else {
                #[unroll]
                for register in 0..comptime!(spans * 4) {
                    let chunk = key[eight * spans + register / 4];
                    let channel = comptime!(register % 4 * 2);
                    keys[eight * spans * 4 + register] =
                        pair::<E>(chunk.extract(channel), chunk.extract(channel + 1));
                }
            }
        }
        let mut scores = Array::<Pair<f32>>::new(2usize);
        let in_tail = tile >= own_tiles;
        let base = select(in_tail, tile - own_tiles, tile) * TILE;
        let count = select(in_tail, tail, own);
        #[unroll]
        for eight in 0..2usize {
            let score = plane_scores::<E>(&query, &keys, comptime!(eight * head_dim / 8), head_dim);
            let mut two = score[0];
            #[unroll]
            for side in 0..2usize {
                let place = eight * 8 + quad * 2 + side;
                let factor = plane_shuffle(norm, place as u32) * scoring.scale;
                let one = scoring.capped(two.extract(side) * factor);
                let hidden = base + place >= count;
                if comptime!(wanted) {
                    let column = plane_shuffle(column, place as u32) as usize;
                    if !hidden && line < cube.heads_left {
                        let weights = &mut outputs.weights;
                        let row = cube.weight_start + line * weights.stride(1);
                        let place = row + column * weights.stride(2);
                        weights[place] = one;
                    }
                }
                two.insert(side, select(hidden, MASKED, one));
            }
            scores[eight] = two;
        }
        let weight = plane_weights::<E>(&scores, &mut sums, head_dim);
        add_plane_values::<E>(&value, &weight, &mut sums, head_dim);

        entry = later.entry;
        column = later.column;
        position = later.position;
        norm = later.norm;
        tile += planes;
    }
    if comptime!(whole && wanted) {
        weigh_scores(&mut outputs.weights, &cube, &sums, columns, planes);
    }
    write_planes::<E>(outputs, &sums, &cube, head_dim, CHUNK, planes, whole);
}

/// Place of the description of the lane's token in a tile of members; 0 in a tile of the tail.
#[cube]
fn token_at<I: Int>(tokens_by_cluster: &Tensor<I>, table: &Table, tile: usize) -> usize {
    let member = tile * TILE + UNIT_POS_PLANE as usize % TILE;
    let mut place = 0usize.runtime();
    if tile * TILE < table.own {
        let first = table.start + table.padding;
        place =
            table.start + usize::cast_from(tokens_by_cluster[first + member.min(table.own - 1)]);
    }
    place
}

/// Loads the description of the token of the lane, or of its row of the tail.
#[cube]
fn describe<E: Float, T: Float, I: Int>(
    clusters: &ClusterArgs<Chunk<E>, I>,
    rotary: &RotaryArgs<Chunk<T>, I>,
    table: &Table,
    place: usize,
    tile: usize,
    #[comptime] encoded: bool,
) -> Token {
    let own_tiles = table.own.div_ceil(TILE);
    let mut entry = 0u32.runtime();
    let mut norm = f32::new(1.0);
    let mut column = place;
    if tile < own_tiles {
        entry = table.first_entry + u32::cast_from(clusters.cluster_of_token[place]);
        norm = clusters.norms[place];
        column -= table.start;
    } else {
        let first = table.padding + table.own;
        let row = (tile - own_tiles) * TILE + UNIT_POS_PLANE as usize % TILE;
        // Behind the last row, that one.
        column = (first + row).min(first + table.tail - 1);
    }
    let mut position = 0u32.runtime();
    if comptime!(encoded) {
        let at = table.position_start + column * rotary.positions.stride(2);
        position = u32::cast_from(rotary.positions[at]);
    }
    Token { entry, column: column as u32, position, norm }
}
