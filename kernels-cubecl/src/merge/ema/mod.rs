mod backend;
mod kernel;

use briquette_ops::{EmaInput, EmaOutput, Result, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{EmaBackend, Held};
use crate::common::{check::Check, optional::Optional};

/// The weights of evicted entries in those that they are merged into, and the thresholds they are
/// held against: D2O (Wan et al., 2024, Eq. 9 to 12). The threshold of a batch row is the mean of
/// the similarities of all that is evicted now, and from the second time on an exponential moving
/// average of those means; it stays as it is where nothing is evicted. What is as similar weighs
/// exp(similarity), else nothing. Returns weights, `[batch, heads, evicted]`, and thresholds,
/// `[batch, 1]`, both f32; the threshold of a row that has evicted nothing so far is −4.
///
/// A cube a batch row, in one launch: it adds up in an order that is always the same, then looks at
/// each number once more. It reads 8 bytes a number and writes 4.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, a dimension is empty, or the device
/// has no kernels or cannot launch so much.
pub fn ema_weights(input: EmaInput<'_>) -> Result<EmaOutput> {
    let check = Check::new("ema_weights", &input.similarity.device())?;
    let EmaInput { similarity, counts, before, beta } = input;
    let [batch, heads, columns] = similarity.dims();
    check.some([("batch", batch), ("heads", heads), ("columns", columns)])?;
    check.f32("similarity", similarity.dtype())?;
    let lists = batch * heads;
    check.equal("the length of counts", counts.len(), lists)?;
    for &count in counts {
        check.value("counts", count, count <= columns, format!("at most {columns}"))?;
    }
    if let Some(before) = &before {
        check.shape("before", before.dims(), [batch, 1])?;
        check.f32("before", before.dtype())?;
    }
    check.countable("similarity", &[batch, heads, columns])?;
    check.cubes([batch, 1, 1])?;
    check.tensors(5)?;
    let first = counts.first().copied().unwrap_or(0);
    let held = if counts.iter().all(|&count| count == first) {
        Held::Alike { count: first }
    } else {
        let list: Vec<i64> = counts.iter().map(|&count| count as i64).collect();
        let counts = constant_ints("ema", list, [lists], &similarity.device());
        Held::Differ { counts: counts.into_dispatch() }
    };
    let (similarity, before) = (similarity.into_dispatch(), Optional::of(before));
    let (weights, threshold) = Dispatch::ema_weights(similarity, before, held, beta as f32);
    let (weights, threshold) = (Tensor::from_dispatch(weights), Tensor::from_dispatch(threshold));
    Ok(EmaOutput { weights, threshold })
}
