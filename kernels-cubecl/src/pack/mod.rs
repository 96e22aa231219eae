mod extension;
mod kernel;

use briquette_ops::{PackInput, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::PackBackend;
use crate::{check::Check, copy};

/// The last columns of each batch row and head in one list of all, keys and values, `[total, head_dim]` each: what
/// [`pad`](crate::pad) lays out.
///
/// Rows are copied by the widest vectors that device, alignment and strides allow, one a unit and tensor, in one launch.
/// It reads and writes as many rows of keys and of values as the list has, and computes nothing.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to pack, or the device has no kernels
/// or cannot launch so much.
pub fn pack(input: PackInput<'_>) -> Result<[Tensor<2>; 2]> {
    let check = Check::new("pack", &input.keys.device())?;
    let PackInput { keys, values, counts, offsets } = input;
    let dims @ [batch, heads, columns, head_dim] = keys.dims();
    let lists = batch * heads;
    check.shape("values", values.dims(), dims)?;
    check.same_type("values", values.dtype(), keys.dtype())?;
    check.value("the length of counts", counts.len(), counts.len() == lists, lists.to_string())?;
    for &count in counts {
        check.value("counts", count, count <= columns, format!("at most {columns}"))?;
    }
    check.shape("offsets", offsets.dims(), [lists + 1])?;
    let total = counts.iter().sum::<usize>();
    check.value("rows", total, total > 0, "1 or more")?;
    check.value("head_dim", head_dim, head_dim > 0, "1 or more")?;
    check.countable("columns", &dims)?;
    // What is copied a number at a time takes most cubes.
    check.cubes([lists, columns.div_ceil(copy::rows_of_cube(head_dim)), 1])?;
    check.tensors(5)?;
    let [keys, values] = [keys, values].map(Tensor::into_dispatch);
    let (keys, values) = Dispatch::pack(keys, values, offsets.into_dispatch(), total);
    Ok([Tensor::from_dispatch(keys), Tensor::from_dispatch(values)])
}

/// The shape of a list of so many rows.
fn list(rectangle: &Shape, total: usize) -> Shape {
    Shape::from([total, rectangle[3]])
}

fn launch(
    [keys, values]: [CubeTensor; 2],
    offsets: CubeTensor,
    total: usize,
) -> (CubeTensor, CubeTensor) {
    let (client, device, dtype) = (keys.client.clone(), keys.device.clone(), keys.dtype);
    let shape = keys.shape();
    let empty = || empty_device_dtype(client.clone(), device.clone(), list(&shape, total), dtype);
    let (list_keys, list_values) = (empty(), empty());
    let vector = copy::vector_size([&keys, &values, &list_keys, &list_values]);
    let vectors = shape[3] / vector;
    let types = [dtype, offsets.dtype].map(dtype_to_storage_type);
    let cubes = shape[2].div_ceil(copy::rows_of_cube(vectors));
    kernel::pack::launch(
        &client,
        CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
        CubeDim::new_1d(copy::UNITS as u32),
        vector,
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        offsets.into_tensor_arg(),
        list_keys.clone().into_tensor_arg(),
        list_values.clone().into_tensor_arg(),
        vectors,
        types,
    );
    (list_keys, list_values)
}
