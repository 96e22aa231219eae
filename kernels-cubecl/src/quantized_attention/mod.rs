mod extension;
mod kernel;
mod planes;

use briquette_ops::{DecodeInput, DecodeOutput, QuantizedKv, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Tensor},
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{CubeCount, CubeDim};

use self::{extension::QuantizedAttentionBackend, kernel::Form};
use crate::{
    check::Check,
    split::{
        self, Heads, Plan, PlanePlan, Rows, UNITS,
        planes::{HEADS, TILE},
    },
    tile::support::{is_chunked, multiplies},
};

/// Numbers of a head's shared memory: queries of a cube, and scores of a tile.
const MOST_QUERIES: usize = 1024;
const MOST_SCORES: usize = 512;

/// Planes of a cube on tensor cores, of which a multiprocessor has registers for two.
const PLANES: usize = 4;

/// Where the weights are among the tensors of the kernel on planes.
const WEIGHTS: usize = 12;

/// Sums of products that one unit keeps in registers.
const SUMS_A_UNIT: usize = 64;

/// Decode attention over quantized entries (KIVI), read as they are packed: no key and no value is laid out.
///
/// Where the device multiplies tiles of 16-bit numbers, pages are of 32 tokens, values of groups of 32 channels, numbers
/// of 2 or 4 bits, head_dim is 64 or 128 and everything has the type of the queries, a plane takes a page at a time, or
/// 16 tokens of the tail, for up to 8 query heads of one kv head. Keys and values are laid out in the registers of the
/// instruction, two numbers at a time and rounded to the type of the queries, as those of a cache in that type: 4 to 5
/// operations for two. Where one cube has all of a head, it writes the output itself.
///
/// Elsewhere pages of a head are split between cubes, each of 64 units and up to 4 query heads of one kv head (8 with 4 or 8
/// bits). Of keys a unit takes one word of a channel, 32 / bits tokens: scale and query are multiplied once for all
/// of them, and what the least number of the group adds once; the product of a query with a level is what is left.
/// Of values a unit takes one word of a token, 32 / bits channels, in the same way. Maxima and sums are those of an
/// online softmax, in f32. The tail is taken in splits of its own, by a kernel for rows of full precision, and a
/// further kernel puts all splits together in a fixed order.
///
/// With `d` channels, `b` bytes a number of full precision, `n` bits, groups of `G` tokens and of `C` channels, `P`
/// tokens in pages and `t` in the tail, a kv head reads P · (2 · d · n / 8 + 2 · b · d / G + 2 · b · d / C) bytes, and
/// 2 · d · b · t of the tail. Each split of a query head writes and reads 4 · d + 8 bytes, and each weight is written
/// twice and read once. Operations, for `g` query heads a kv head: 4 · d · g · (P + t), and 6 · d · P to take levels
/// out of words for every 4 query heads (8 with 4 or 8 bits).
///
/// A score that is NaN makes the output of its head NaN. A head that sees nothing has an output of zeros.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there are no pages or no room for a tail, or the device
/// has no kernels or cannot launch so much.
pub(crate) fn quantized(input: &DecodeInput, kv: &QuantizedKv) -> Result<DecodeOutput> {
    check(input, kv)?;
    let (wanted, kv) = (input.weights, kv.clone());
    let dtype = kv.keys.scale.dtype();
    let ints = kv.offsets.dtype();
    let words = kv.keys.words.dtype();
    let (output, weights) = Dispatch::quantized_attention(
        input.queries.clone().into_dispatch(),
        kv.keys.words.into_dispatch(),
        kv.keys.scale.into_dispatch(),
        kv.keys.min.cast(dtype).into_dispatch(),
        kv.values.words.cast(words).into_dispatch(),
        kv.values.scale.cast(dtype).into_dispatch(),
        kv.values.min.cast(dtype).into_dispatch(),
        kv.pages.cast(ints).into_dispatch(),
        kv.offsets.into_dispatch(),
        kv.tail_fillers.cast(ints).into_dispatch(),
        kv.tail.keys.clone().into_dispatch(),
        kv.tail.values.cast(kv.tail.keys.dtype()).into_dispatch(),
        kv.bits,
        kv.group,
        kv.most_pages,
        kv.columns,
        kv.tail.entries,
        input.scale as f32,
        wanted,
    );
    Ok(DecodeOutput {
        output: Tensor::from_dispatch(output),
        weights: wanted.then(|| Tensor::<3>::from_dispatch(weights).unsqueeze_dim(2)),
    })
}

fn check(input: &DecodeInput, kv: &QuantizedKv) -> Result<()> {
    let check = Check::new("quantized_attention", &input.queries.device())?;
    let [batch, query_heads, _, head_dim] = input.queries.dims();
    let [_, kv_heads, capacity, _] = kv.tail.keys.dims();
    let heads = Heads { batch, query_heads, kv_heads, head_dim };
    let bits = kv.bits;
    check.value("bits", bits, [1, 2, 4, 8].contains(&bits), "1, 2, 4 or 8")?;
    let word = 32 / bits;
    let group = kv.group;
    let pages = kv.keys.words.dims()[0];
    check.shape("queries", input.queries.dims(), [batch, query_heads, 1, head_dim])?;
    heads.check(&check)?;

    check.value("pages", pages, pages > 0, "at least 1")?;
    let whole = group > 0 && group.is_multiple_of(word);
    check.value("group", group, whole, format!("a multiple of {word}"))?;
    check.at_most("group", group, MOST_SCORES)?;
    check.shape("keys.words", kv.keys.words.dims(), [pages, head_dim * (group / word)])?;
    check.shape("keys.scale", kv.keys.scale.dims(), [pages, head_dim])?;
    check.shape("keys.min", kv.keys.min.dims(), [pages, head_dim])?;
    let row = head_dim.div_ceil(word);
    check.shape("values.words", kv.values.words.dims(), [pages, group * row])?;
    let groups = kv.values.scale.dims()[1] / group;
    let even = groups > 0
        && head_dim.is_multiple_of(groups)
        && (groups == 1 || (head_dim / groups).is_multiple_of(word));
    let expected = format!("1, or a divisor of {head_dim} that leaves multiples of {word}");
    check.value("groups of a value", groups, even, expected)?;
    check.shape("values.scale", kv.values.scale.dims(), [pages, group * groups])?;
    check.shape("values.min", kv.values.min.dims(), [pages, group * groups])?;

    let all = kv.pages.dims()[0];
    check.shape("offsets", kv.offsets.dims(), [batch * kv_heads + 1])?;
    check.shape("tail_fillers", kv.tail_fillers.dims(), [batch * kv_heads])?;
    let held = (1..=all).contains(&kv.most_pages);
    check.value("most_pages", kv.most_pages, held, format!("1 to {all}"))?;
    let tail = [batch, kv_heads, capacity, head_dim];
    check.shape("tail_keys", kv.tail.keys.dims(), tail)?;
    check.shape("tail_values", kv.tail.values.dims(), tail)?;
    check.value("capacity", capacity, capacity > 0, "at least 1")?;
    check.value(
        "tail",
        kv.tail.entries,
        kv.tail.entries <= capacity,
        format!("at most {capacity}"),
    )?;
    let (least, most) = (kv.most_pages * group, kv.most_pages * group + kv.tail.entries);
    let held = (least..=most).contains(&kv.columns);
    check.value("columns", kv.columns, held, format!("{least} to {most}"))?;
    check.countable("keys.words", &kv.keys.words.dims())?;
    check.countable("keys.scale", &kv.keys.scale.dims())?;
    check.countable("values.words", &kv.values.words.dims())?;
    check.countable("values.scale", &kv.values.scale.dims())?;
    check.countable("tail_keys", &kv.tail.keys.dims())?;
    if input.weights {
        split::check_columns(&check, heads, kv.columns)?;
    }
    Ok(())
}

impl Form {
    fn new(heads: Heads, bits: usize, group: usize, value_groups: usize, wanted: bool) -> Self {
        let head_dim = heads.head_dim;
        let word = 32 / bits;
        let pages = (UNITS / group).max(1);
        let most = (SUMS_A_UNIT / word)
            .min(MOST_QUERIES / head_dim)
            .min(MOST_SCORES / (pages * group))
            .max(1);
        let (of_cube, blocks) = heads.blocks(most);
        let jobs = (pages * group / word).min(UNITS);
        let lanes = (UNITS / jobs + 1).next_power_of_two() / 2;
        let row = head_dim.div_ceil(word);
        let value_lanes = row.min(UNITS);
        Self {
            head_dim,
            heads: of_cube,
            blocks,
            bits,
            group,
            value_group: head_dim / value_groups,
            pages,
            lanes,
            value_lanes,
            value_words: row.div_ceil(value_lanes),
            wanted,
        }
    }
}

/// [`PackedGroups`] as a launch takes them.
struct Packed {
    words: CubeTensor,
    scale: CubeTensor,
    min: CubeTensor,
}

impl Packed {
    fn with_dense_rows(&self) -> Self {
        let tensors = [&self.words, &self.scale, &self.min];
        let [words, scale, min] = tensors.map(|x| split::with_dense_rows(x.clone()));
        Self { words, scale, min }
    }
}

/// A call as a launch takes it.
struct Call {
    queries: CubeTensor,
    keys: Packed,
    values: Packed,
    pages: CubeTensor,
    offsets: CubeTensor,
    tail_fillers: CubeTensor,
    tail_keys: CubeTensor,
    tail_values: CubeTensor,
    bits: usize,
    group: usize,
    most_pages: usize,
    columns: usize,
    tail: usize,
    scale: f32,
    wanted: bool,
}

/// Returns output and weights.
fn launch(call: Call) -> (CubeTensor, CubeTensor) {
    let [keys, values] = [&call.keys, &call.values].map(Packed::with_dense_rows);
    let Call { bits, group, columns, tail, scale, wanted, .. } = call;
    let queries = call.queries.clone();
    let heads = Heads::of(&queries.shape(), &call.tail_keys.shape());
    let client = queries.client.clone();
    let dtype = queries.dtype;
    let weights = split::weight_shape(heads, columns, wanted);
    let weights = split::empty(&queries, weights, DType::F32);
    let Heads { batch, query_heads, head_dim, .. } = heads;
    let output = split::empty(&queries, [batch, query_heads, 1, head_dim], dtype);
    let value_groups = values.scale.shape()[1] / group;
    let of_values = head_dim / value_groups;
    if on_planes(&call, [&keys, &values], of_values, heads) {
        let parts = launch_planes(call, [keys, values], heads, &output, &weights);
        if let Some(parts) = parts {
            split::merge(parts, &output, &weights, heads, wanted);
        }
        return (output, weights);
    }
    let form = Form::new(heads, bits, group, value_groups, wanted);
    let cubes = heads.batch * heads.kv_heads * form.blocks;
    let plan = Plan::new(call.most_pages, form.pages, cubes, &client);
    let parts = if tail == 0 {
        split::parts(&queries, heads, plan.splits)
    } else {
        let rows = Rows {
            queries: queries.clone(),
            members: None,
            starts: call.tail_fillers.clone(),
            turn: None,
            tail_keys: call.tail_keys,
            tail_values: call.tail_values,
            tail,
            columns,
            scale,
            wanted,
        };
        rows.launch(heads, tail, &weights, |splits| {
            (split::parts(&queries, heads, plan.splits + splits), plan.splits)
        })
    };
    let types = [dtype, keys.scale.dtype, call.pages.dtype, keys.words.dtype];
    kernel::pages::launch(
        &client,
        CubeCount::Static((cubes * plan.splits) as u32, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        queries.into_tensor_arg(),
        keys.words.into_tensor_arg(),
        keys.scale.into_tensor_arg(),
        keys.min.into_tensor_arg(),
        values.words.into_tensor_arg(),
        values.scale.into_tensor_arg(),
        values.min.into_tensor_arg(),
        call.pages.into_tensor_arg(),
        call.offsets.into_tensor_arg(),
        call.tail_fillers.into_tensor_arg(),
        parts.clone().into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        heads.query_heads,
        heads.kv_heads,
        columns,
        tail,
        plan.chunk,
        plan.splits,
        scale,
        form,
        types.map(dtype_to_storage_type),
    );
    split::merge(parts, &output, &weights, heads, wanted);
    (output, weights)
}

/// Whether tensor cores take these pages.
fn on_planes(call: &Call, packed: [&Packed; 2], of_values: usize, heads: Heads) -> bool {
    let dtype = call.queries.dtype;
    let Call { bits, group, tail_keys, tail_values, .. } = call;
    let [keys, values] = packed;
    // Pages are rows of words of 32 bits that are read four at a time.
    let words = keys.words.dtype.size() == 4 && values.words.dtype == keys.words.dtype;
    let whole = keys.words.meta.strides()[0].is_multiple_of(4) || keys.words.shape()[0] == 1;
    words
        && whole
        && matches!(bits, 2 | 4)
        && (*group, of_values) == (planes::GROUP, planes::GROUP)
        && heads.head_dim.is_multiple_of(64)
        && multiplies(&call.queries.client, dtype, heads.head_dim)
        && (keys.scale.dtype, tail_keys.dtype) == (dtype, dtype)
        && [&keys.scale, &keys.min, tail_keys, tail_values].into_iter().all(is_chunked)
}

/// Writes the output, or returns parts of it.
fn launch_planes(
    call: Call,
    packed: [Packed; 2],
    heads: Heads,
    output: &CubeTensor,
    weights: &CubeTensor,
) -> Option<CubeTensor> {
    let Call { queries, tail_keys, tail_values, tail, bits, columns, scale, wanted, .. } = call;
    let [keys, values] = packed;
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // A page is a tile, and as much work as two of the tail.
    let tiles = call.most_pages + tail.div_ceil(TILE);
    let plan = PlanePlan::new(tiles, PLANES, heads, &client);
    let whole = plan.splits == 1 && !wanted;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    let brain = dtype == DType::BF16;
    let types = [dtype, call.pages.dtype, keys.words.dtype].map(dtype_to_storage_type);
    planes::quantized_planes::launch(
        &client,
        CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32),
        CubeDim::new_1d(32 * PLANES as u32),
        queries.into_tensor_arg(),
        keys.words.into_tensor_arg(),
        keys.scale.into_tensor_arg(),
        keys.min.into_tensor_arg(),
        values.words.into_tensor_arg(),
        values.scale.into_tensor_arg(),
        values.min.into_tensor_arg(),
        call.pages.into_tensor_arg(),
        call.offsets.into_tensor_arg(),
        call.tail_fillers.into_tensor_arg(),
        tail_keys.into_tensor_arg(),
        tail_values.into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        match &parts {
            Some(parts) => parts.clone().into_tensor_arg(),
            None => weights.as_tensor_alias(WEIGHTS),
        },
        output.clone().into_tensor_arg(),
        columns,
        tail,
        plan.share,
        scale,
        planes::Cut { planes: PLANES, head_dim, bits, brain, whole, wanted },
        types,
    );
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU grants 16 KiB.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for head_dim in 1..=1024 {
            for query_heads in [1, 3, 4, 7, 8, 32] {
                for (bits, group) in
                    [(1, 32), (1, 128), (2, 16), (2, 512), (4, 24), (4, 32), (8, 4), (8, 128)]
                {
                    let heads = Heads { batch: 1, query_heads, kv_heads: 1, head_dim };
                    let form = Form::new(heads, bits, group, 1, true);
                    assert!(form.shared_bytes() <= 16384, "{form:?}");
                    assert!(form.lanes.is_power_of_two() && form.lanes <= UNITS);
                    assert!(form.heads * form.blocks >= query_heads);
                }
            }
        }
    }
}
