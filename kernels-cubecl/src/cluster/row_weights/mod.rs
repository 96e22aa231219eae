mod backend;
mod kernel;

use briquette_ops::{Result, RowWeightsInput};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::RowWeightsBackend;
use crate::common::check::Check;

/// The most columns [`row_weights`] takes: every row looks at all of them.
const MOST_COLUMNS: usize = 1 << 13;

/// Sums the scores of the tokens of each row, f32, `[batch, heads, height]`: the weight of a
/// cluster of EMS.
///
/// A unit a row adds its columns up in order, in one launch: every row looks at all columns, 256 of
/// them in shared memory at a time. It reads three numbers a column and 256 rows, compares as many
/// as rows times columns, and writes one number a row.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row or column, there are
/// more than 8 192 columns, or the device has no kernels or cannot launch so much.
pub fn row_weights(input: RowWeightsInput) -> Result<Tensor<3>> {
    let check = Check::new("row_weights", &input.rows.device())?;
    let RowWeightsInput { rows, positions, scores, height, bounds: (least, most) } = input;
    let dims @ [batch, heads, columns] = rows.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    some("rows", height)?;
    check.at_most("the number of columns", columns, MOST_COLUMNS)?;
    check.shape("positions", positions.dims(), dims)?;
    check.shape("scores", scores.dims(), dims)?;
    check.f32("scores", scores.dtype())?;
    check.countable("rows", &[batch, heads, height])?;
    check.countable("columns", &dims)?;
    check.cubes([height.div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(4)?;
    let ints = rows.dtype();
    Ok(Tensor::from_dispatch(Dispatch::row_weights(
        rows.into_dispatch(),
        positions.cast(ints).into_dispatch(),
        scores.into_dispatch(),
        height,
        least,
        most,
    )))
}
