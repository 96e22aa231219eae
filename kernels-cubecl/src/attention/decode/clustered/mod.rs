mod launch;
mod mma;

use briquette_ops::{ClusteredKv, DecodeInput, DecodeOutput, Result, RotaryTables};
use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use self::launch::ClusteredAttentionBackend;
use crate::{
    attention::{
        decode::split::{
            self, Heads,
            operands::{Clusters, Rotary, TailTensors},
        },
        rotary::check_tables,
        scoring::Scores,
    },
    common::check::Check,
};

/// Decode attention over entries that tokens share (EMS): the key of a token is its own norm times
/// the direction of its entry, turned to its own position, its value that of its entry. Tokens are
/// never laid out.
///
/// Where the device multiplies tiles of 16-bit numbers, head_dim is 64 or 128 and everything has
/// the type of the queries, a plane takes 16 tokens at a time for up to 8 query heads of one kv
/// head. Directions and values go from memory to the registers of the instruction, for each token
/// anew: those of one entry are beside each other and read together, so that an entry comes from
/// memory once. Norms multiply the products. Turned keys are rounded to the type of the queries, as
/// keys of a cache that holds them turned. Where one cube has all of a head, it writes the output
/// itself.
///
/// Elsewhere, and for f32, cubes have 64 units and up to 4 query heads of one kv head. A cube takes
/// them in tiles of 64, in the order of their entries. 8 units share a token (as many as keep the
/// queries in registers): each turns its part of the direction and multiplies it with all queries
/// of the cube; direction and value of an entry come from memory once, and once more where its
/// tokens go on in the next tile. Weights of the tokens of one entry are added before its value is,
/// once. Maxima and sums are those of an online softmax, in f32; a second kernel puts splits
/// together in a fixed order.
///
/// With `d` channels, `b` bytes per number, `E` entries, `T` tokens and `t` rows of the tail, a kv
/// head reads (E + t) · 2 · d · b bytes, and of each token 16 bytes besides (member, entry, norm,
/// position) and, where keys are encoded, d cosines and sines, which all heads share and caches
/// hold. Each split of a query head writes and reads 4 · d + 8 bytes, and each weight is written
/// twice and read once. Operations, for `g` query heads per kv head: 3 · d · (T + t) to turn keys,
/// 2 · d · g · (T + t) for scores, 2 · d · g · (E + t) for values.
///
/// A score that is NaN makes the output of its head NaN. A head that sees nothing has an output of
/// zeros.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there are no entries or no room for a
/// tail, or the device has no kernels or cannot launch so much.
pub(crate) fn clustered(input: &DecodeInput, kv: &ClusteredKv) -> Result<DecodeOutput> {
    check(input, kv)?;
    let (wanted, kv) = (input.weights, kv.clone());
    let dtype = kv.directions.dtype();
    let ints = kv.padding_columns.dtype();
    let rotary = match kv.rotary {
        None => Rotary::Nothing,
        Some(RotaryTables { cosines, sines, positions }) => Rotary::Tables {
            sines: sines.cast(cosines.dtype()).into_dispatch(),
            cosines: cosines.into_dispatch(),
            positions: positions.cast(ints).into_dispatch(),
        },
    };
    let clusters = Clusters {
        directions: kv.directions.into_dispatch(),
        values: kv.values.cast(dtype).into_dispatch(),
        tokens_by_cluster: kv.tokens_by_cluster.cast(ints).into_dispatch(),
        cluster_of_token: kv.cluster_of_token.cast(ints).into_dispatch(),
        norms: kv.norms.cast(DType::F32).into_dispatch(),
        offsets: kv.offsets.cast(ints).into_dispatch(),
    };
    let tail = TailTensors {
        keys: kv.tail.keys.cast(dtype).into_dispatch(),
        values: kv.tail.values.cast(dtype).into_dispatch(),
        entries: kv.tail.entries,
    };
    let (output, weights) = Dispatch::clustered_attention(
        input.queries.clone().into_dispatch(),
        clusters,
        kv.padding_columns.into_dispatch(),
        rotary,
        tail,
        Scores::from(input.scoring.clone()),
        wanted,
    );
    Ok(DecodeOutput {
        output: Tensor::from_dispatch(output),
        weights: wanted.then(|| Tensor::<3>::from_dispatch(weights).unsqueeze_dim(2)),
    })
}

fn check(input: &DecodeInput, kv: &ClusteredKv) -> Result<()> {
    let check = Check::new("clustered_attention", &input.queries.device())?;
    let [batch, query_heads, _, head_dim] = input.queries.dims();
    let [_, kv_heads, capacity, _] = kv.tail.keys.dims();
    let heads = Heads { batch, query_heads, kv_heads, head_dim };
    let entries = kv.directions.dims()[0];
    let width = kv.tokens_by_cluster.dims()[2];
    check.shape("queries", input.queries.dims(), [batch, query_heads, 1, head_dim])?;
    check.shape("directions", kv.directions.dims(), [entries, head_dim])?;
    check.shape("values", kv.values.dims(), [entries, head_dim])?;
    check.shape("tokens_by_cluster", kv.tokens_by_cluster.dims(), [batch, kv_heads, width])?;
    check.shape("cluster_of_token", kv.cluster_of_token.dims(), [batch, kv_heads, width])?;
    check.shape("norms", kv.norms.dims(), [batch, kv_heads, width])?;
    check.shape("padding_columns", kv.padding_columns.dims(), [batch * kv_heads])?;
    check.shape("offsets", kv.offsets.dims(), [batch * kv_heads + 1])?;
    let tail = [batch, kv_heads, capacity, head_dim];
    check.shape("tail_keys", kv.tail.keys.dims(), tail)?;
    check.shape("tail_values", kv.tail.values.dims(), tail)?;
    let columns = batch * kv_heads * width;
    check.value("entries", entries, (1..=columns).contains(&entries), "1 to a column")?;
    check.value("capacity", capacity, capacity > 0, "at least 1")?;
    check.value(
        "tail",
        kv.tail.entries,
        kv.tail.entries <= capacity,
        format!("at most {capacity}"),
    )?;
    heads.check(&check)?;
    let columns = width + kv.tail.entries;
    if let Some(rotary) = &kv.rotary {
        check_tables(rotary, &check, heads, columns)?;
    }
    check.scoring(&input.scoring, query_heads)?;
    check.no_positions(&input.scoring)?;
    check.countable("directions", &kv.directions.dims())?;
    check.countable("tokens_by_cluster", &kv.tokens_by_cluster.dims())?;
    check.countable("tail_keys", &kv.tail.keys.dims())?;
    if input.weights {
        split::check_columns(&check, heads, columns)?;
    }
    Ok(())
}
