mod backend;
mod kernel;

use briquette_ops::{ClusterOrder, Result};
use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use self::backend::{SortByClusterBackend, units};
use crate::common::check::Check;

/// Sorts the columns of each row by their cluster, `[batch, heads, columns]`: what is less than
/// zero is of none, the others are less than `number`. With it EMS finds the tokens of each
/// cluster, and those of none.
///
/// A stable radix sort by digits of 4 bits, the lowest first: a cube of up to 512 units a row, and
/// of the list each unit has a part of its own. It counts the digits of its part in shared memory,
/// the counts of all units are added up in the order of digits and units, and each unit moves its
/// part. No count is shared by two units, so nothing depends on their order.
///
/// With `p` = ⌈log₁₆ number⌉ passes it reads each cluster 2 · p + 2 times, and as often, but for
/// the first pass, the lists it sorts; it writes p + 1 integers a column. A few hundred columns a
/// row take a few microseconds; very long rows are bound by the one cube they have.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if there is no row, no column or no cluster, or the device
/// has no kernels or cannot launch so much.
pub fn sort_by_cluster(clusters: Tensor<3, Int>, number: usize) -> Result<ClusterOrder> {
    let check = Check::new("sort_by_cluster", &clusters.device())?;
    let [batch, heads, columns] = clusters.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    some("number", number)?;
    check.countable("clusters", &[batch, heads, columns])?;
    check.at_most("number", number, i32::MAX as usize)?;
    check.cubes([batch * heads, 1, 1])?;
    check.supports(units(check.client()).is_some())?;
    let (order, tokens_by_cluster, padding_columns) =
        Dispatch::sort_by_cluster(clusters.into_dispatch(), number);
    Ok(ClusterOrder {
        order: Tensor::from_dispatch(order),
        tokens_by_cluster: Tensor::from_dispatch(tokens_by_cluster),
        padding_columns: Tensor::from_dispatch(padding_columns),
    })
}
