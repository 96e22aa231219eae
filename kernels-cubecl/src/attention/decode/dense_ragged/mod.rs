mod entries;
mod launch;
mod mma;
mod operands;
mod portable;

use briquette_ops::{DecodeInput, DecodeOutput, DenseKv, RaggedKv, Result, Visibility};
use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use self::{
    launch::DecodeAttentionBackend,
    operands::{DecodeTensors, EntryCounts, KvMask},
};
use crate::{
    attention::{
        decode::{merge, split::operands::TailTensors},
        scoring::Scores,
    },
    common::check::Check,
};

/// Name of the operation in errors.
const OPERATION: &str = "decode_attention";

/// Decode attention: a few queries over all entries of a cache, read where they lie
/// (Flash-Decoding, Dao et al. 2023; the weights are what H2O, TOVA, D2O and EMS add up). Nothing
/// is padded to the longest head, and buffers may have more room than entries.
///
/// The entries of a kv head are split among cubes, as many as keep the device busy. A cube serves
/// the query rows of a kv head together, so that each key and value is loaded once for the group.
/// Each cube has a running maximum and sum (online softmax); a second kernel puts the parts of each
/// query together, always in the same order, and turns scores into weights. All sums are f32, and
/// every run gives the same numbers.
///
/// Where the device multiplies tiles of 16-bit numbers and head_dim is 64 or 128, each plane takes
/// 16 entries at a time and up to 16 query rows; the next are copied to shared memory meanwhile,
/// and a cube that has all entries of its heads writes their output, and weights, itself.
/// Elsewhere, and for f32, a cube of 256 units has up to 8 query rows. As many units as a row has
/// loads of 16 bytes multiply a key; parts of products meet in shared memory and are added in
/// order. 128 entries are scored, then their values added up.
///
/// Products are capped and sloped as they are found, and entries before a window hidden. A sink
/// joins the sum of weights where the parts of its query are put together.
///
/// It reads 2 · head_dim · bytes per entry and kv head, and does 4 · head_dim operations per entry
/// and query row; each part writes and reads 4 · (head_dim + 4) bytes per query row, and a weight
/// is written twice and read once.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to attend
/// to, or the device has no kernels or cannot launch so much.
pub(crate) fn dense(input: &DecodeInput, kv: &DenseKv) -> Result<DecodeOutput> {
    let check = Check::new(OPERATION, &input.queries.device())?;
    let [batch, _, new, _] = input.queries.dims();
    let DenseKv { keys, values, entries, mut counts, visibility } = kv.clone();
    check_buffers(&check, &input.queries, &keys, &values, entries)?;
    let fits = (1..=entries).contains(&new);
    check.value("the number of queries", new, fits, format!("1 to {entries}, the entries"))?;
    let kv_heads = keys.dims()[1];
    if let Some(counts) = &counts {
        check.shape("counts", counts.dims(), [batch * kv_heads])?;
        let plain = new == 1 && !input.weights;
        let expected = "none where weights are wanted, or there are more queries";
        check.value("counts", counts.dims()[0], plain, expected)?;
    }
    let mask = match visibility {
        Visibility::Causal => KvMask::Causal,
        Visibility::Positions { queries, entries: of_entries } => {
            check.shape("the queries' positions", queries.dims(), [batch, 1, new])?;
            let columns = of_entries.dims()[2];
            check.shape("the entries' positions", of_entries.dims(), [batch, kv_heads, columns])?;
            let fits = columns >= entries;
            let expected = format!("at least {entries}, the entries");
            check.value("the positions of entries", columns, fits, expected)?;
            check.same_type("the entries' positions", of_entries.dtype(), queries.dtype())?;
            counts = counts.map(|counts| counts.cast(queries.dtype()));
            KvMask::Positions {
                queries: queries.into_dispatch(),
                entries: of_entries.into_dispatch(),
            }
        }
    };
    check_cubes(&check, input, &keys, entries)?;
    Ok(call(input, mask, counts, [keys, values], entries))
}

/// Decode attention over heads that hold different numbers of entries, one after another without
/// padding, of one query per head: nothing is padded to the longest head.
///
/// # Errors
/// As [`dense`].
pub(crate) fn ragged(input: &DecodeInput, kv: &RaggedKv) -> Result<DecodeOutput> {
    let check = Check::new(OPERATION, &input.queries.device())?;
    let RaggedKv { keys, values, offsets, width, positions, tail, tail_counts } = kv.clone();
    check_buffers(&check, &input.queries, &tail.keys, &tail.values, tail.entries)?;
    let [batch, _, new, head_dim] = input.queries.dims();
    let [_, kv_heads, ..] = tail.keys.dims();
    check.value("the number of queries", new, new == 1, "1 where heads are ragged")?;
    let rows = keys.dims()[0];
    check.value("the rows of the list", rows, rows > 0, "at least 1")?;
    check.shape("the keys of the list", keys.dims(), [rows, head_dim])?;
    check.values("the values of the list", values.dims(), [rows, head_dim])?;
    for tensor in [&keys, &values] {
        check.same_type("the list", tensor.dtype(), tail.keys.dtype())?;
    }
    check.shape("offsets", offsets.dims(), [batch * kv_heads + 1])?;
    check.countable("the list", &[rows, head_dim])?;
    let total = width.saturating_add(tail.entries);
    check.value("entries with those of the list", total, total > 0, "at least 1")?;
    check_cubes(&check, input, &tail.keys, total)?;
    check.no_positions(&input.scoring)?;
    if let Some(counts) = &tail_counts {
        check.shape("tail_counts", counts.dims(), [batch * kv_heads])?;
        let plain = positions.is_none() && !input.weights;
        let expected = "none where slots are free or weights are wanted";
        check.value("tail_counts", counts.dims()[0], plain, expected)?;
    }
    let counts = tail_counts.map(|counts| counts.cast(offsets.dtype()));
    let [keys, values] = [keys, values].map(Tensor::into_dispatch);
    let mask = match positions.filter(|_| width > 0) {
        None => KvMask::List { keys, values, offsets: offsets.into_dispatch(), width },
        Some(positions) => {
            let columns = [batch, kv_heads, width];
            check.shape("the positions of the list", positions.dims(), columns)?;
            KvMask::Slots {
                keys,
                values,
                offsets: offsets.cast(positions.dtype()).into_dispatch(),
                positions: positions.into_dispatch(),
            }
        }
    };
    Ok(call(input, mask, counts, [tail.keys, tail.values], tail.entries))
}

fn call(
    input: &DecodeInput,
    mask: KvMask<Dispatch>,
    counts: Option<Tensor<1, Int>>,
    rows: [Tensor<4>; 2],
    entries: usize,
) -> DecodeOutput {
    let queries = input.queries.clone().into_dispatch();
    let [keys, values] = rows.map(Tensor::into_dispatch);
    let rows = TailTensors { keys, values, entries };
    let counts = match counts {
        Some(counts) => EntryCounts::Counted { of_heads: counts.into_dispatch() },
        None => EntryCounts::Alike,
    };
    let scores = Scores::from(input.scoring.clone());
    let found = Dispatch::decode_attention(queries, rows, mask, counts, scores, input.weights);
    let (output, weights) = match found {
        DecodeTensors::Plain { output } => (output, None),
        DecodeTensors::Weights { output, weights } => (output, Some(weights)),
    };
    DecodeOutput {
        output: Tensor::from_dispatch(output),
        weights: weights.map(Tensor::from_dispatch),
    }
}

fn check_buffers(
    check: &Check,
    queries: &Tensor<4>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    entries: usize,
) -> Result<()> {
    let [batch, query_heads, new, head_dim] = queries.dims();
    let [_, kv_heads, capacity, _] = keys.dims();
    let buffers = [batch, kv_heads, capacity, head_dim];
    check.shape("keys", keys.dims(), buffers)?;
    check.values("values", values.dims(), buffers)?;
    check.same_type("values", values.dtype(), keys.dtype())?;
    let grouped = kv_heads > 0 && query_heads.is_multiple_of(kv_heads);
    check.value("query_heads", query_heads, grouped, format!("a multiple of {kv_heads}"))?;
    let sizes = [("batch", batch), ("query_heads", query_heads), ("head_dim", head_dim)];
    for (what, size) in sizes.into_iter().chain([("the number of queries", new)]) {
        check.value(what, size, size > 0, "at least 1")?;
    }
    check.value("the capacity", capacity, capacity > 0, "at least 1")?;
    check.at_most("head_dim", head_dim, portable::UNITS)?;
    let held = entries <= capacity;
    check.value("entries", entries, held, format!("at most {capacity}, the capacity"))?;
    check.countable("keys", &buffers)
}

/// `columns` are those of the weights.
fn check_cubes(check: &Check, input: &DecodeInput, keys: &Tensor<4>, columns: usize) -> Result<()> {
    let [batch, query_heads, new, _] = input.queries.dims();
    let kv_heads = keys.dims()[1];
    check.countable("weights", &[batch, query_heads, new, columns])?;
    check.tensors(12 + check.scoring(&input.scoring, query_heads)?)?;
    // The most cubes of all ways to launch.
    let rows = query_heads / kv_heads * new;
    check.cubes([merge::MOST_PARTS, kv_heads * rows, batch])?;
    check.cubes([batch * query_heads * new, columns.div_ceil(merge::WEIGHTS), 1])
}
