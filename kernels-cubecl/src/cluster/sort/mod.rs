mod backend;
mod kernel;
mod launch;

use briquette_ops::{Groups, Result};
use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use self::{backend::GroupBackend, launch::units};
use crate::common::check::Check;

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
