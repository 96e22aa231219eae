mod backend;
mod kernel;

use briquette_ops::{MergeInput, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{MergeBackend, Others};
use crate::common::check::Check;

/// Merges rows into others: each row that any go to becomes the weighted mean of itself and of
/// these; the others stay as they are. Keys and values, `[batch, heads, rows, channels]`, of the
/// types they had. The merging of a few rows in D2O and EMS; for many there is
/// [`accumulate`](crate::accumulate()).
///
/// Keys and values that nobody else holds are changed in place, others copied before. A cube of 64
/// units a row that is merged: if it is the first that goes to its slot, it adds all that go there,
/// in their order, in f32. So sums come out the same every time. Directions are made unit length by
/// a launch of their own before.
///
/// A head reads and writes 2 · channels numbers of each row that others go to, and reads as many of
/// these; others² · 4 bytes of slots, mostly from the cache of the device; and reads and writes
/// rows · channels numbers of directions.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no head, no row or
/// no channel, none is merged, channels are more than 1024, or the device has no kernels or cannot
/// launch so much.
pub fn merge(input: MergeInput) -> Result<(Tensor<4>, Tensor<4>)> {
    check(&input)?;
    Ok(merge_checked(input))
}

/// As [`merge`], of an input that [`check`] has let through.
pub(crate) fn merge_checked(input: MergeInput) -> (Tensor<4>, Tensor<4>) {
    let (keys, values) = Dispatch::merge(
        input.keys.into_dispatch(),
        input.values.into_dispatch(),
        input.own.into_dispatch(),
        Others {
            keys: input.other_keys.into_dispatch(),
            values: input.other_values.into_dispatch(),
            weights: input.weights.into_dispatch(),
            slot: input.slot.into_dispatch(),
        },
        input.directions,
    );
    (Tensor::from_dispatch(keys), Tensor::from_dispatch(values))
}

/// Refuses what [`merge`] does.
pub(crate) fn check(input: &MergeInput) -> Result<()> {
    let check = Check::new("merge", &input.keys.device())?;
    let [batch, heads, rows, channels] = input.keys.dims();
    let others = input.other_keys.dims()[2];
    check.some([
        ("batch", batch),
        ("heads", heads),
        ("rows", rows),
        ("others", others),
        ("channels", channels),
    ])?;
    check.at_most("channels", channels, kernel::UNITS * kernel::MOST_OWN)?;
    let (all, lists) = ([batch, heads, rows, channels], [batch, heads, others, channels]);
    check.values("values", input.values.dims(), all)?;
    check.shape("own", input.own.dims(), [batch, heads, rows])?;
    check.shape("other_keys", input.other_keys.dims(), lists)?;
    check.shape("other_values", input.other_values.dims(), lists)?;
    check.shape("weights", input.weights.dims(), [batch, heads, others])?;
    check.shape("slot", input.slot.dims(), [batch, heads, others])?;
    check.f32("own", input.own.dtype())?;
    check.f32("weights", input.weights.dtype())?;
    check.same_type("other_keys", input.other_keys.dtype(), input.keys.dtype())?;
    check.same_type("other_values", input.other_values.dtype(), input.values.dtype())?;
    check.countable("keys", &all)?;
    check.countable("other_keys", &lists)?;
    check.cubes([rows.max(others), batch * heads, 1])
}
