mod backend;
mod kernel;

use briquette_ops::{Result, RobustInput, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::RobustBackend;
use crate::common::{check::Check, rows::cubes_of_rows};

/// Scores entries by the mean of the attention they received, those of the highest deviations above
/// all others: RoCo (Ren and Zhu, 2024). See [`RobustInput`] for shapes.
///
/// A cube of 256 units a head, in one launch: it reads the statistics of each entry once, keeps its
/// mean and its deviation, and finds the last deviation of those that come first by four digits of
/// 8 bits, counted in shared memory. Counts do not depend on the order they are added up in.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, or the device has no kernels
/// or cannot launch so much.
pub fn robust_scores(input: RobustInput<'_>) -> Result<Tensor<3>> {
    let RobustInput { sums, squares, positions, seen, keep } = input;
    let check = Check::new("robust_scores", &sums.device())?;
    let [batch, of_queries, columns] = sums.dims();
    let heads = positions.dims()[1];
    check.some([("batch", batch), ("heads", heads), ("columns", columns)])?;
    let grouped = of_queries > 0 && of_queries.is_multiple_of(heads);
    check.value("the heads of sums", of_queries, grouped, format!("a multiple of {heads}"))?;
    check.shape("squares", squares.dims(), sums.dims())?;
    check.shape("positions", positions.dims(), [batch, heads, columns])?;
    check.f32("sums", sums.dtype())?;
    check.f32("squares", squares.dtype())?;
    let lists = batch * heads;
    check.equal("the length of keep", keep.len(), lists)?;
    if let Some(seen) = seen {
        check.equal("the length of seen", seen.len(), batch)?;
    }
    check.countable("sums", &sums.dims())?;
    check.tensors(7)?;
    check.shared_bytes(kernel::SHARED_BYTES)?;
    check.cubes(cubes_of_rows(lists))?;
    // Two numbers a head: how many come first, and how many tokens its row has seen, or zero.
    let numbers = keep.iter().enumerate().flat_map(|(list, &keep)| {
        let seen = seen.map_or(0, |seen| seen[list / heads]);
        [keep.min(columns) as i64, seen as i64]
    });
    let numbers = constant_ints("robust_scores", numbers.collect(), [lists, 2], &sums.device());
    Ok(Tensor::from_dispatch(Dispatch::robust_scores(
        sums.into_dispatch(),
        squares.into_dispatch(),
        numbers.cast(positions.dtype()).into_dispatch(),
        positions.into_dispatch(),
    )))
}
