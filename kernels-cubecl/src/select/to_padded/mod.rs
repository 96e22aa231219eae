mod backend;
mod kernel;

use briquette_ops::{PadInput, Result, Tail};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{Lists, PadBackend};
use crate::common::{check::Check, copy_rows};

/// Keys and values of lists in rectangles, `[batch, heads, width + tail, head_dim]`, a tail behind
/// them; at padding stands any of their rows.
///
/// Rows are copied by the widest vectors that device, alignment and strides allow, one a unit and
/// tensor, in one launch. It reads and writes batch · heads · (width + tail) rows of keys and of
/// values, and computes nothing.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to lay out
/// or no room for a tail, or the device has no kernels or cannot launch so much.
pub fn pad(input: PadInput) -> Result<[Tensor<4>; 2]> {
    let check = Check::new("pad", &input.keys.device())?;
    let PadInput { keys, values, offsets, width, tail } = input;
    let Tail { keys: tail_keys, values: tail_values, entries: tail } = tail;
    let [batch, heads, capacity, head_dim] = tail_keys.dims();
    let [total, _] = keys.dims();
    check.some([("batch", batch), ("heads", heads), ("rows", total)])?;
    check.some([("width", width), ("capacity", capacity), ("head_dim", head_dim)])?;
    check.shape("keys", keys.dims(), [total, head_dim])?;
    check.values("values", values.dims(), [total, head_dim])?;
    check.values("tail_values", tail_values.dims(), tail_keys.dims())?;
    check.value("tail", tail, tail <= capacity, format!("at most {capacity}"))?;
    check.same_type("values", values.dtype(), keys.dtype())?;
    check.same_type("tail_keys", tail_keys.dtype(), keys.dtype())?;
    check.same_type("tail_values", tail_values.dtype(), keys.dtype())?;
    let lists = batch * heads;
    match &offsets {
        Some(offsets) => check.shape("offsets", offsets.dims(), [lists + 1])?,
        None => {
            let all = lists * width;
            check.value("rows", total, total == all, format!("{all}, {width} a head"))?;
        }
    }
    check.countable("rows", &[total, head_dim])?;
    check.countable("the tail", &tail_keys.dims())?;
    check.countable("columns", &[lists, width + tail, head_dim])?;
    // What is copied a number at a time takes most cubes.
    check.cubes([lists, (width + tail).div_ceil(copy_rows::rows_of_cube(head_dim)), 1])?;
    check.tensors(7)?;
    let lists = match offsets {
        Some(offsets) => Lists::Differ { offsets: offsets.into_dispatch() },
        None => Lists::Alike,
    };
    let [keys, values] = [keys, values].map(Tensor::into_dispatch);
    let [tail_keys, tail_values] = [tail_keys, tail_values].map(Tensor::into_dispatch);
    let (keys, values) =
        Dispatch::pad_entries(keys, values, lists, tail_keys, tail_values, width, tail);
    Ok([Tensor::from_dispatch(keys), Tensor::from_dispatch(values)])
}
