mod extension;
mod kernel;

use briquette_ops::{PadInput, Result, Tail};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::{Lists, PadBackend};
use crate::{check::Check, copy};

/// Keys and values of lists in rectangles, `[batch, heads, width + tail, head_dim]`, a tail behind them; at fillers stands
/// any of their rows.
///
/// Rows are copied by the widest vectors that device, alignment and strides allow, one a unit and tensor, in one launch.
/// It reads and writes batch · heads · (width + tail) rows of keys and of values, and computes nothing.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to lay out or no room for a tail,
/// or the device has no kernels or cannot launch so much.
pub fn pad(input: PadInput) -> Result<[Tensor<4>; 2]> {
    let check = Check::new("pad", &input.keys.device())?;
    let PadInput { keys, values, offsets, width, tail } = input;
    let Tail { keys: tail_keys, values: tail_values, entries: tail } = tail;
    let [batch, heads, capacity, head_dim] = tail_keys.dims();
    let [total, _] = keys.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("rows", total)?;
    some("width", width)?;
    some("capacity", capacity)?;
    some("head_dim", head_dim)?;
    check.shape("keys", keys.dims(), [total, head_dim])?;
    check.shape("values", values.dims(), [total, head_dim])?;
    check.shape("tail_values", tail_values.dims(), tail_keys.dims())?;
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
    check.cubes([lists, (width + tail).div_ceil(copy::rows_of_cube(head_dim)), 1])?;
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

/// The shape of a rectangle beside these buffers, with so many columns.
fn rectangle(buffers: &Shape, columns: usize) -> Shape {
    Shape::from([buffers[0], buffers[1], columns, buffers[3]])
}

/// Takes keys and values of the list, then of the tail.
fn launch(
    [keys, values]: [CubeTensor; 2],
    lists: Lists<CubeBackend>,
    [tail_keys, tail_values]: [CubeTensor; 2],
    [width, tail]: [usize; 2],
) -> (CubeTensor, CubeTensor) {
    let (client, device, dtype) = (keys.client.clone(), keys.device.clone(), keys.dtype);
    let shape = rectangle(&tail_keys.shape(), width + tail);
    let empty = || empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
    let (all_keys, all_values) = (empty(), empty());
    let tensors = [&keys, &values, &tail_keys, &tail_values, &all_keys, &all_values];
    let vector = copy::vector_size(tensors);
    let vectors = shape[3] / vector;
    let (differ, int) = match &lists {
        Lists::Alike => (false, DType::I32),
        Lists::Differ { offsets } => (true, offsets.dtype),
    };
    let types = [dtype, int].map(dtype_to_storage_type);
    let offsets = match lists {
        // Never looked at: another tensor stands in.
        Lists::Alike => keys.as_tensor_alias(0),
        Lists::Differ { offsets } => offsets.into_tensor_arg(),
    };
    let cubes = (width + tail).div_ceil(copy::rows_of_cube(vectors));
    kernel::pad::launch(
        &client,
        CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
        CubeDim::new_1d(copy::UNITS as u32),
        vector,
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        offsets,
        tail_keys.into_tensor_arg(),
        tail_values.into_tensor_arg(),
        all_keys.clone().into_tensor_arg(),
        all_values.clone().into_tensor_arg(),
        width,
        vectors,
        differ,
        types,
    );
    (all_keys, all_values)
}
