mod extension;
mod kernel;

use briquette_ops::{Groups, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{Int, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{Client, CubeCount, CubeDim};

use self::extension::GroupBackend;
use crate::check::Check;

/// Sorts the columns of each row by their class, `[batch, heads, columns]`: what is less than zero is of none, the
/// others are less than `number`. With it EMS finds the tokens of each entry, and those of none.
///
/// A stable radix sort by digits of 4 bits, the lowest first: a cube of up to 512 units a row, and of the list each unit
/// has a part of its own. It counts the digits of its part in shared memory, the counts of all units are added up in the
/// order of digits and units, and each unit moves its part. No count is shared by two units, so nothing depends on their
/// order.
///
/// With `p` = ⌈log₁₆ number⌉ passes it reads each class 2 · p + 2 times, and as often, but for the first pass, the lists
/// it sorts; it writes p + 1 integers a column. A few hundred columns a row take a few microseconds; very long rows are
/// bound by the one cube they have.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if there is no row, no column or no class, or the device has no kernels or cannot
/// launch so much.
pub fn group(classes: Tensor<3, Int>, number: usize) -> Result<Groups> {
    let check = Check::new("group", &classes.device())?;
    let [batch, heads, columns] = classes.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    some("number", number)?;
    check.countable("classes", &[batch, heads, columns])?;
    check.at_most("number", number, i32::MAX as usize)?;
    check.cubes([batch * heads, 1, 1])?;
    check.supports(units(check.client()).is_some())?;
    let (order, members, none) = Dispatch::group(classes.into_dispatch(), number);
    Ok(Groups {
        order: Tensor::from_dispatch(order),
        members: Tensor::from_dispatch(members),
        none: Tensor::from_dispatch(none),
    })
}

/// Units of a cube on this device.
fn units(client: &Client) -> Option<usize> {
    let hardware = &client.properties().hardware;
    let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
    // What each unit counts, and two numbers to add up by.
    let bytes = |units: usize| 4 * units * (kernel::DIGITS + 2);
    [512, 256, 128, 64]
        .into_iter()
        .find(|&units| units <= most && bytes(units) <= hardware.max_shared_memory_size)
}

fn launch(classes: CubeTensor, number: usize) -> (CubeTensor, CubeTensor, CubeTensor) {
    let shape = classes.shape();
    let [batch, heads] = [shape[0], shape[1]];
    let client = classes.client.clone();
    let (device, dtype) = (classes.device.clone(), classes.dtype);
    let empty = |shape| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let [order, members, scratch] = [(); 3].map(|()| empty(shape.clone()));
    let none = empty(Shape::from([batch, heads]));
    let digits = (number - 1).checked_ilog2().map_or(1, |highest| highest as usize + 1);
    kernel::group::launch(
        &client,
        CubeCount::Static((batch * heads) as u32, 1, 1),
        // Checked before.
        CubeDim::new_1d(units(&client).unwrap_or(64) as u32),
        classes.into_tensor_arg(),
        order.clone().into_tensor_arg(),
        members.clone().into_tensor_arg(),
        scratch.into_tensor_arg(),
        none.clone().into_tensor_arg(),
        digits.div_ceil(kernel::BITS),
        units(&client).unwrap_or(64),
        dtype_to_storage_type(dtype),
    );
    (order, members, none)
}
