mod backend;
mod kernel;
mod plan;

use briquette_ops::{AccumulateInput, Result};
use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use self::{
    backend::{AccumulateBackend, MERGERS},
    plan::Plan,
};
use crate::common::check::Check;

/// Slots that are told apart: bucket and row of a chunk share 32 bits.
const MAX_BUCKETS: usize = 1 << 21;

/// Weighted sums of rows, each added to the slots it is sent to: `[batch, heads, slots, channels]`,
/// f32. The merging of D2O, KVMerger, CaM and EMS.
///
/// No float is added by two units, so sums come out the same every time. Rows are first sorted by
/// slot, 1 024 at a time, by a bitonic sort in shared memory. Then a cube of 32 units takes a bin
/// of slots, whose sums fill 4 KiB of shared memory, and a part of the chunks: it looks up which
/// rows of each chunk are its own and adds them in their order, eight on their way at a time.
/// Parts, and the slots of a span, are added up at the end.
///
/// With `bins` = slots · channels / 1 024 and `chunks` = rows / 1 024, for each head it reads every
/// row once, that is rows · channels · bytes, and 16 bytes a row of slots, weights and sorted keys;
/// it writes and reads 4 · chunks · bins bytes of places and, if there is more than one part, at
/// most half as much as rows · channels · 4 bytes of parts. It adds and multiplies 2 · rows ·
/// channels times.
///
/// Slots are shared out evenly, rows are not: if many rows are sent to one bin, the few cubes that
/// add them take as long as those rows. There are up to 32 parts.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no head, no slot, no channel
/// or no span, or the device has no kernels or cannot launch so much. No rows are allowed.
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
    check.some([
        ("batch", batch),
        ("heads", heads),
        ("channels", channels),
        ("span", input.span),
        ("slots", input.slots),
    ])?;
    check.at_most("channels", channels, kernel::ADDERS * 64)?;
    check.at_most("slots and span", input.slots.saturating_add(input.span), MAX_BUCKETS)?;
    check.countable("x", &[batch, heads, rows, channels])?;
    let Plan { chunks, bins, parts, buckets, .. } =
        Plan::new(rows, channels, input.span, input.slots);
    let lists = batch * heads;
    check.countable("the places of bins", &[lists, chunks, bins + 1])?;
    check.countable("parts", &[parts, lists, buckets, channels])?;
    check.cubes([chunks.max(bins), parts.max(lists), lists])?;
    check.cubes([(input.slots * channels).div_ceil(MERGERS), lists, 1])
}
