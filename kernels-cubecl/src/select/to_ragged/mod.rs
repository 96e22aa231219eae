mod backend;
mod kernel;

use briquette_ops::{PackInput, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::PackBackend;
use crate::common::{check::Check, copy_rows};

/// The last columns of each batch row and head in one list of all, keys and values,
/// `[total, head_dim]` each: what [`pad`](crate::pad) lays out.
///
/// Rows are copied by the widest vectors that device, alignment and strides allow, one a unit and
/// tensor, in one launch. It reads and writes as many rows of keys and of values as the list has,
/// and computes nothing.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is nothing to pack, or
/// the device has no kernels or cannot launch so much.
pub fn pack(input: PackInput<'_>) -> Result<[Tensor<2>; 2]> {
    let check = Check::new("pack", &input.keys.device())?;
    let PackInput { keys, values, counts, offsets } = input;
    let dims @ [batch, heads, columns, head_dim] = keys.dims();
    let lists = batch * heads;
    check.values("values", values.dims(), dims)?;
    check.same_type("values", values.dtype(), keys.dtype())?;
    check.equal("the length of counts", counts.len(), lists)?;
    for &count in counts {
        check.value("counts", count, count <= columns, format!("at most {columns}"))?;
    }
    check.shape("offsets", offsets.dims(), [lists + 1])?;
    let total = counts.iter().sum::<usize>();
    check.some([("rows", total), ("head_dim", head_dim)])?;
    check.countable("columns", &dims)?;
    // What is copied a number at a time takes most cubes.
    check.cubes([lists, columns.div_ceil(copy_rows::rows_of_cube(head_dim)), 1])?;
    check.tensors(5)?;
    let [keys, values] = [keys, values].map(Tensor::into_dispatch);
    let (keys, values) = Dispatch::pack(keys, values, offsets.into_dispatch(), total);
    Ok([Tensor::from_dispatch(keys), Tensor::from_dispatch(values)])
}
