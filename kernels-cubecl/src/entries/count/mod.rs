mod backend;
mod kernel;

use briquette_ops::{AttentionStatistics, CountInput, Result, Statistic};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::CountBackend;
use crate::common::{check::Check, rows::cubes_of_rows, statistics};

/// Adds the attention that entries have received to their statistics: the mean over the query heads
/// that share a head, or of its squares.
///
/// One launch: a unit has an entry of a head, reads its number of each of these query heads and of
/// each kind of statistics, and writes those.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, or the device has no kernels
/// or cannot launch so much.
pub fn count(input: CountInput<'_>) -> Result<AttentionStatistics> {
    let CountInput { statistics, weights, kinds } = input;
    let check = Check::new("count", &weights.device())?;
    let [batch, query_heads, columns] = weights.dims();
    let Some(stacked) = statistics.stacked() else { return Ok(statistics) };
    let heads = stacked.dims()[1];
    check.some([("batch", batch), ("heads", heads), ("columns", columns)])?;
    let grouped = query_heads > 0 && query_heads.is_multiple_of(heads);
    check.value("query_heads", query_heads, grouped, format!("a multiple of {heads}"))?;
    statistics::check(&check, &statistics, [batch, heads, columns])?;
    check.f32("weights", weights.dtype())?;
    check.countable("weights", &weights.dims())?;
    check.tensors(3)?;
    check.cubes(cubes_of_rows((batch * heads * columns).div_ceil(kernel::UNITS)))?;
    let [mut added, mut squared] = [0u32; 2];
    for (place, (kind, _)) in statistics.iter().enumerate() {
        let bits = if kind == Statistic::Squares { &mut squared } else { &mut added };
        *bits |= u32::from(kinds.contains(&kind)) << place;
    }
    if added | squared == 0 {
        return Ok(statistics);
    }
    Ok(statistics.map(|stacked| {
        let (stacked, weights) = (stacked.into_dispatch(), weights.into_dispatch());
        Tensor::from_dispatch(Dispatch::count(stacked, weights, added, squared))
    }))
}
