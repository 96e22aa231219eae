mod backend;
mod kernel;

use briquette_ops::{ExtendInput, ExtendOutput, Result, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::ExtendBackend;
use crate::common::check::Check;

/// Extends clusters of tokens (EMS) by the tokens that have come since, which are in rows of their
/// own.
///
/// A unit a column and a row, one launch. It reads two numbers a token and one a cluster, and
/// writes as many.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or counts do not fit, there is no token, cluster,
/// column or row, or the device has no kernels or cannot launch so much.
pub fn extend(input: ExtendInput<'_>) -> Result<ExtendOutput> {
    let check = Check::new("extend", &input.cluster_of_token.device())?;
    let ExtendInput { cluster_of_token, norms, representatives, counts, columns, rows } = input;
    let dims @ [batch, heads, width] = cluster_of_token.dims();
    let height = representatives.dims()[2];
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("width", width)?;
    some("clusters", height)?;
    some("columns", columns)?;
    some("rows", rows)?;
    check.shape("norms", norms.dims(), dims)?;
    check.shape("representatives", representatives.dims(), [batch, heads, height])?;
    check.f32("norms", norms.dtype())?;
    let lists = batch * heads;
    check.value("the length of counts", counts.len(), counts.len() == lists, lists.to_string())?;
    let most = |what, found: usize, most: usize| {
        check.value(what, found, found <= most, format!("at most {most}"))
    };
    for &[tokens, clusters, unclustered] in counts {
        most("tokens", tokens, width)?;
        most("clusters", clusters, height)?;
        most("tokens with those behind", tokens + unclustered, columns)?;
        most("clusters with those behind", clusters + unclustered, rows)?;
    }
    check.countable("columns", &[batch, heads, columns])?;
    check.countable("rows", &[batch, heads, rows])?;
    check.cubes([columns.max(rows).div_ceil(kernel::UNITS), lists, 1])?;
    check.tensors(7)?;
    let [tokens, clusters, unclustered] = counts.first().copied().unwrap_or_default();
    let differ = counts.iter().any(|count| *count != [tokens, clusters, unclustered]);
    // Another tensor stands in for one that is not read.
    let list = if differ {
        let numbers: Vec<i64> = counts.iter().flatten().map(|&count| count as i64).collect();
        let numbers = constant_ints("extend", numbers, [lists, 3], &cluster_of_token.device());
        numbers.cast(cluster_of_token.dtype()).into_dispatch()
    } else {
        cluster_of_token.clone().into_dispatch()
    };
    let ints = cluster_of_token.dtype();
    let (row_of, norms, representatives) = Dispatch::extend(
        cluster_of_token.into_dispatch(),
        norms.into_dispatch(),
        representatives.cast(ints).into_dispatch(),
        list,
        columns,
        rows,
        tokens,
        clusters,
        unclustered,
        differ,
    );
    Ok(ExtendOutput {
        rows: Tensor::from_dispatch(row_of),
        norms: Tensor::from_dispatch(norms),
        representatives: Tensor::from_dispatch(representatives),
    })
}
