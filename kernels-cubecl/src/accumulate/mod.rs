mod extension;
mod kernel;

use briquette_ops::{AccumulateInput, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::AccumulateBackend;
use crate::{check::Check, vector::vector_size};

/// Units that add up parts, and numbers of the output of one cube.
const MERGERS: usize = 256;
/// Numbers of one bin's sums, in shared memory: 4 KiB.
const BIN_NUMBERS: usize = 1024;
/// Slots that are told apart: bucket and row of a chunk share 32 bits.
const MAX_BUCKETS: usize = 1 << 21;

/// Weighted sums of rows, each added to the slots it is sent to: `[batch, heads, slots, channels]`, f32. The merging of
/// D2O, KVMerger, CaM and EMS.
///
/// No float is added by two units, so sums come out the same every time. Rows are first sorted by slot, 1 024 at a time,
/// by a bitonic sort in shared memory. Then a cube of 32 units takes a bin of slots, whose sums fill 4 KiB of shared
/// memory, and a part of the chunks: it looks up which rows of each chunk are its own and adds them in their order, eight
/// on their way at a time. Parts, and the slots of a span, are added up at the end.
///
/// With `bins` = slots · channels / 1 024 and `chunks` = rows / 1 024, for each head it reads every row once, that is
/// rows · channels · bytes, and 16 bytes a row of slots, weights and sorted keys; it writes and reads
/// 4 · chunks · bins bytes of places and, if there is more than one part, at most half as much as rows · channels · 4
/// bytes of parts. It adds and multiplies 2 · rows · channels times.
///
/// Slots are shared out evenly, rows are not: if many rows are sent to one bin, the few cubes that add them take as long as
/// those rows. There are up to 32 parts.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no head, no slot, no channel or no span, or the device
/// has no kernels or cannot launch so much. No rows are allowed.
pub fn accumulate(input: AccumulateInput) -> Result<Tensor<4>> {
    check(&input)?;
    let AccumulateInput { x, weights, slot, span, slots } = input;
    let [batch, heads, rows, channels] = x.dims();
    if rows == 0 {
        return Ok(Tensor::zeros([batch, heads, slots, channels], (&x.device(), DType::F32)));
    }
    Ok(Tensor::from_dispatch(Dispatch::accumulate(
        x.into_dispatch(),
        weights.into_dispatch(),
        slot.into_dispatch(),
        span,
        slots,
    )))
}

fn check(input: &AccumulateInput) -> Result<()> {
    let check = Check::new("accumulate", &input.x.device())?;
    let [batch, heads, rows, channels] = input.x.dims();
    check.shape("weights", input.weights.dims(), [batch, heads, rows])?;
    check.shape("slot", input.slot.dims(), [batch, heads, rows])?;
    check.f32("weights", input.weights.dtype())?;
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("channels", channels)?;
    some("span", input.span)?;
    some("slots", input.slots)?;
    check.at_most("channels", channels, kernel::ADDERS * 64)?;
    check.at_most("slots and span", input.slots.saturating_add(input.span), MAX_BUCKETS)?;
    check.countable("x", &[batch, heads, rows, channels])?;
    let Plan { chunks, bins, parts, buckets, .. } = plan(input);
    let lists = batch * heads;
    check.countable("the places of bins", &[lists, chunks, bins + 1])?;
    check.countable("parts", &[parts, lists, buckets, channels])?;
    check.cubes([chunks.max(bins), parts.max(lists), lists])?;
    check.cubes([(input.slots * channels).div_ceil(MERGERS), lists, 1])
}

fn plan(input: &AccumulateInput) -> Plan {
    let [_, _, rows, channels] = input.x.dims();
    Plan::new(rows, channels, input.span, input.slots)
}

/// How the work is shared out.
struct Plan {
    chunks: usize,
    /// Slots, and what stands before the first by less than a span.
    buckets: usize,
    of_bin: usize,
    bins: usize,
    chunks_of_part: usize,
    parts: usize,
}

impl Plan {
    fn new(rows: usize, channels: usize, span: usize, slots: usize) -> Self {
        let chunks = rows.div_ceil(kernel::CHUNK);
        let buckets = slots + span - 1;
        let of_bin = (BIN_NUMBERS / channels).clamp(1, 64);
        // Parts cost a write and a read of their sums: they are to be fewer than the rows.
        let rows_of_part = (4 * buckets).max(kernel::CHUNK).max(rows.div_ceil(32));
        let chunks_of_part = rows_of_part.div_ceil(kernel::CHUNK).min(chunks).max(1);
        Self {
            chunks,
            buckets,
            of_bin,
            bins: buckets.div_ceil(of_bin),
            chunks_of_part,
            parts: chunks.div_ceil(chunks_of_part),
        }
    }
}

fn launch(
    x: CubeTensor,
    weights: CubeTensor,
    slot: CubeTensor,
    span: usize,
    slots: usize,
) -> CubeTensor {
    let shape = x.shape();
    let (batch, heads, rows, channels) = (shape[0], shape[1], shape[2], shape[3]);
    let lists = batch * heads;
    let Plan { chunks, buckets, of_bin, bins, chunks_of_part, parts } =
        Plan::new(rows, channels, span, slots);
    let client = x.client.clone();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), x.device.clone(), shape, dtype);
    let keys = empty(Shape::from([lists, chunks, kernel::CHUNK]), DType::U32);
    let starts = empty(Shape::from([lists, chunks, bins + 1]), DType::U32);
    kernel::sort::launch(
        &client,
        CubeCount::Static(chunks as u32, lists as u32, 1),
        CubeDim::new_1d(kernel::SORTERS as u32),
        weights.clone().into_tensor_arg(),
        slot.clone().into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        starts.clone().into_tensor_arg(),
        heads,
        span,
        buckets,
        of_bin,
        bins,
        dtype_to_storage_type(slot.dtype),
    );
    let sums = empty(Shape::from([parts, lists, buckets, channels]), DType::F32);
    let (vector, dtype) = (vector_size(&x).min(vector_size(&sums)), x.dtype);
    let output = empty(Shape::from([batch, heads, slots, channels]), DType::F32);
    kernel::add::launch(
        &client,
        CubeCount::Static(bins as u32, parts as u32, lists as u32),
        CubeDim::new_1d(kernel::ADDERS as u32),
        vector,
        x.into_tensor_arg(),
        weights.into_tensor_arg(),
        keys.into_tensor_arg(),
        starts.into_tensor_arg(),
        sums.clone().into_tensor_arg(),
        heads,
        chunks_of_part,
        buckets,
        of_bin,
        channels,
        dtype_to_storage_type(dtype),
    );
    kernel::merge::launch(
        &client,
        CubeCount::Static((slots * channels).div_ceil(MERGERS) as u32, lists as u32, 1),
        CubeDim::new_1d(MERGERS as u32),
        sums.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        span,
        MERGERS,
    );
    output
}
