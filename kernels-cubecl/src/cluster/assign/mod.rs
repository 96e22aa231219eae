mod backend;
mod kernel;

use briquette_ops::{AssignClustersInput, AssignClustersOutput, MergedRows, Result, constant_ints};
use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use self::backend::AssignClustersBackend;
use crate::common::{check::Check, padding::PaddingCounts};

/// Assigns each token to a cluster, −1 for none, and ranks it: a representative `f32::MAX`, others
/// by their score, those in no cluster `f32::MIN`. Both `[batch, heads, columns]`. EMS selects the
/// tokens that stay by these ranks.
///
/// A unit a column, one launch: it looks its row up among those that stay, then among those that
/// are merged, by halves. It reads four numbers a column and what it looks at of the lists, which
/// caches hold, and writes two.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row, column or cluster, or
/// the device has no kernels or cannot launch so much.
pub fn assign_clusters(input: AssignClustersInput<'_>) -> Result<AssignClustersOutput> {
    let check = Check::new("assign_clusters", &input.rows.device())?;
    let AssignClustersInput {
        rows,
        kept_rows,
        cluster_counts: counts,
        merged,
        representatives,
        positions,
        scores,
        ..
    } = input;
    let dims @ [batch, heads, columns] = rows.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    let clusters = kept_rows.dims()[2];
    some("clusters", clusters)?;
    check.shape("kept_rows", kept_rows.dims(), [batch, heads, clusters])?;
    check.shape("representatives", representatives.dims(), [batch, heads, clusters])?;
    check.shape("positions", positions.dims(), dims)?;
    check.shape("scores", scores.dims(), dims)?;
    check.f32("scores", scores.dtype())?;
    check.countable("columns", &dims)?;
    check.cubes([columns.div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(11)?;
    let lists = batch * heads;
    let missing = PaddingCounts::new(&check, counts, lists, clusters)?;
    let merging = merged.as_ref().map(|merged| (merged.counts, merged.cluster_offset));
    merged.as_ref().map_or(Ok(()), |merged| check_merged(&check, merged, dims, clusters))?;
    let of_head = |head: usize| -> [usize; 3] {
        let (merging, first) =
            merging.map_or((0, 0), |(counts, first)| (counts[head], first[head]));
        [missing.of(head), merging, first]
    };
    let first = of_head(0);
    let differ = (1..lists).any(|head| of_head(head) != first);
    let ints = rows.dtype();
    // Another tensor stands in for one that is not read.
    let held = if differ {
        let numbers: Vec<i64> = (0..lists).flat_map(of_head).map(|number| number as i64).collect();
        let numbers = constant_ints("assign_clusters", numbers, [lists, 3], &rows.device());
        numbers.cast(ints).into_dispatch()
    } else {
        rows.clone().into_dispatch()
    };
    let merges = merged.is_some();
    let (merged, nearest, similarity, threshold) = match merged {
        Some(merged) => (merged.rows, merged.nearest, merged.similarity, merged.threshold),
        None => (rows.clone(), rows.clone(), scores.clone(), 0.0),
    };
    let int = |x: Tensor<3, Int>| x.cast(ints).into_dispatch();
    let (of_tokens, ranks) = Dispatch::assign_clusters(
        rows.into_dispatch(),
        int(kept_rows),
        int(merged),
        int(nearest),
        int(representatives),
        held,
        int(positions),
        similarity.into_dispatch(),
        scores.into_dispatch(),
        first[0],
        first[1],
        first[2],
        threshold as f32,
        merges,
        differ,
    );
    let (clusters, ranks) = (Tensor::from_dispatch(of_tokens), Tensor::from_dispatch(ranks));
    Ok(AssignClustersOutput { clusters, ranks })
}

fn check_merged(
    check: &Check,
    merged: &MergedRows<'_>,
    [batch, heads, _]: [usize; 3],
    clusters: usize,
) -> Result<()> {
    let MergedRows { rows, counts, nearest, cluster_offset, similarity, .. } = merged;
    let (lists, width) = (batch * heads, rows.dims()[2]);
    check.value("rows to merge", width, width > 0, "1 or more")?;
    check.shape("rows to merge", rows.dims(), [batch, heads, width])?;
    check.shape("nearest", nearest.dims(), rows.dims())?;
    check.shape("similarity", similarity.dims(), rows.dims())?;
    check.f32("similarity", similarity.dtype())?;
    check.countable("rows to merge", &rows.dims())?;
    // Refuses counts that do not fit.
    PaddingCounts::new(check, counts, lists, width)?;
    let fits = cluster_offset.len() == lists;
    check.value("the length of cluster_offset", cluster_offset.len(), fits, lists.to_string())?;
    for &offset in *cluster_offset {
        check.value("cluster_offset", offset, offset <= clusters, format!("at most {clusters}"))?;
    }
    Ok(())
}
