mod backend;
mod kernel;

use briquette_ops::{ReorderTokensInput, ReorderTokensOutput, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::ReorderTokensBackend;
use crate::common::{check::Check, padding::PaddingCounts, statistics};

/// Moves per-token metadata (positions, norms, statistics) to its new column: the end of a step of
/// EMS.
///
/// A unit a new column, one launch: it follows the column to the one it was, and that to its row.
/// Of each column it reads seven numbers and those of its statistics, and writes three and those.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row, column or cluster, or
/// the device has no kernels or cannot launch so much.
pub fn reorder_tokens(input: ReorderTokensInput<'_>) -> Result<ReorderTokensOutput> {
    let check = Check::new("reorder_tokens", &input.columns.device())?;
    let ReorderTokensInput {
        columns,
        clusters,
        order,
        counts,
        representatives,
        cluster_counts,
        ..
    } = input;
    let ReorderTokensInput { rows, norms, lengths, positions, statistics, .. } = input;
    let dims @ [batch, heads, width] = columns.dims();
    let (before, most) = (rows.dims()[2], representatives.dims()[2]);
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("width", width)?;
    some("columns", before)?;
    some("rows", lengths.dims()[2])?;
    some("clusters", most)?;
    let all = [batch, heads, before];
    check.shape("clusters", clusters.dims(), dims)?;
    check.shape("order", order.dims(), dims)?;
    check.shape("representatives", representatives.dims(), [batch, heads, most])?;
    check.shape("rows", rows.dims(), all)?;
    check.shape("norms", norms.dims(), all)?;
    check.shape("lengths", lengths.dims(), [batch, heads, lengths.dims()[2]])?;
    check.shape("positions", positions.dims(), all)?;
    check.f32("norms", norms.dtype())?;
    check.f32("lengths", lengths.dtype())?;
    statistics::check(&check, &statistics, all)?;
    check.countable("columns", &dims)?;
    check.countable("rows", &all)?;
    check.cubes([width.max(most).div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(if statistics.is_empty() { 13 } else { 15 })?;
    let lists = batch * heads;
    let of_clusters = PaddingCounts::new(&check, cluster_counts, lists, most)?;
    let of_columns = PaddingCounts::new(&check, counts, lists, width)?;
    let (padding, clusters_differ) = of_clusters.same();
    let (first, columns_differ) = of_columns.same();
    let differ = clusters_differ || columns_differ;
    // Another tensor stands in for one that is not read.
    let missing = match differ {
        true => of_clusters.beside(&of_columns, &columns).into_dispatch(),
        false => columns.clone().into_dispatch(),
    };
    let ints = columns.dtype();
    let norms = norms.into_dispatch();
    // Another tensor stands in for one that is not read.
    let counted = !statistics.is_empty();
    let of_statistics = statistics
        .stacked()
        .map_or_else(|| norms.clone(), |statistics| statistics.clone().into_dispatch());
    let (positions, cluster_of_token, representatives, norms, of_statistics) =
        Dispatch::reorder_tokens(
            columns.into_dispatch(),
            clusters.cast(ints).into_dispatch(),
            order.cast(ints).into_dispatch(),
            rows.cast(ints).into_dispatch(),
            representatives.cast(ints).into_dispatch(),
            missing,
            positions.cast(ints).into_dispatch(),
            norms,
            lengths.into_dispatch(),
            of_statistics,
            counted,
            padding,
            first,
            differ,
        );
    Ok(ReorderTokensOutput {
        positions: Tensor::from_dispatch(positions),
        cluster_of_token: Tensor::from_dispatch(cluster_of_token),
        representatives: Tensor::from_dispatch(representatives),
        norms: Tensor::from_dispatch(norms),
        statistics: statistics.map(|_| Tensor::from_dispatch(of_statistics)),
    })
}
