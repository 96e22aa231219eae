mod backend;
mod kernel;

use briquette_ops::{Result, SelectInput, constant_ints};
use burn::{
    backend::Dispatch,
    tensor::{DType, Int, Tensor},
};

use self::backend::{SelectBackend, parts, units};
use crate::common::check::Check;

/// Columns of each row that are kept, and those that are not.
#[derive(Clone, Debug)]
pub struct SelectOutput {
    /// Kept columns, ascending, `[batch, heads, width]`, where the width is the most that a row
    /// keeps. A row that keeps fewer begins with as many zeros.
    pub indices: Tensor<3, Int>,
    /// Columns that are not kept, in the same way, and their number in each row; `None` if they are
    /// not wanted, or all are kept.
    pub rest: Option<(Tensor<3, Int>, Vec<usize>)>,
    /// Number of scores of entries that are NaN, `[batch · heads]`.
    pub nan: Tensor<1, Int>,
    /// Number of entries that each row keeps, rows first.
    pub counts: Vec<usize>,
}

/// The columns with the highest scores of each row, with those that are protected, in the order of
/// the columns (eviction in H2O, TOVA, SnapKV and what is built on it). `keep` may be any number.
///
/// Scores are ordered as by `f32::total_cmp`, except that NaN is the lowest; of equal scores the
/// lower column comes first. If more are protected than are to be kept, the first are kept, then
/// the last.
///
/// A radix select: one cube per row, of up to 1024 units, counts the scores by their digits in
/// shared memory, three digits of 11, 11 and 10 bits from the highest down, which leaves the lowest
/// score that is kept and how many of the scores that equal it are. Then it goes through the row in
/// tiles of 32 columns per unit, marks what is kept one bit per column, adds the bits up before
/// each, and writes the columns to their places. Counts do not depend on the order they are added
/// up in, so results are the same in every run.
///
/// Where rows are long and few, several cubes share a row, each a part of it: one launch per digit,
/// between which they leave their counts in buffers of the device, and one that writes.
///
/// With `splits`, the columns that are not kept are written too, in the same launches.
///
/// It reads rows · entries · 4 bytes four times, the last three times from a cache of the device
/// where a row fits one, and writes rows · width integers: some 10 integer operations per score and
/// pass. Shared rows add three times 8 KiB per part that are written, and read by each part of the
/// row.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, if nothing is to be kept, or if the
/// device has no kernels or cannot launch so much.
pub fn select(input: &SelectInput<'_>, splits: bool) -> Result<SelectOutput> {
    let (rows, parts) = check(input)?;
    let counts: Vec<usize> =
        input.lengths.iter().zip(input.keep).map(|(&length, &keep)| length.min(keep)).collect();
    let width = counts.iter().copied().max().unwrap_or(0);
    let left: Vec<usize> =
        input.lengths.iter().zip(&counts).map(|(length, kept)| length - kept).collect();
    let others = left.iter().copied().max().filter(|_| splits).unwrap_or(0);
    let device = input.scores.device();
    let rows = constant_ints("select", rows, [counts.len(), ROW], &device);
    let (indices, rest, nan) = Dispatch::select_columns(
        input.scores.clone().cast(DType::F32).into_dispatch(),
        rows.into_dispatch(),
        width,
        others,
        parts,
    );
    let mut nan = Tensor::<2, Int>::from_dispatch(nan);
    if parts > 1 {
        nan = nan.sum_dim(1);
    }
    Ok(SelectOutput {
        indices: Tensor::from_dispatch(indices),
        rest: (others > 0).then(|| (Tensor::from_dispatch(rest), left)),
        nan: nan.reshape([counts.len()]),
        counts,
    })
}

/// Numbers that the kernel reads of a row.
const ROW: usize = 4;

/// Returns the numbers of each row, which are the first column, the bounds of those it chooses
/// from, and how many; and how many cubes share a row.
fn check(input: &SelectInput<'_>) -> Result<(Vec<i64>, usize)> {
    let check = Check::new("select", &input.scores.device())?;
    let [batch, heads, entries] = input.scores.dims();
    let rows = batch * heads;
    for (what, list) in [
        ("the number of lengths", input.lengths),
        ("the length of keep", input.keep),
        ("the length of recent", input.recent),
    ] {
        check.equal(what, list.len(), rows)?;
    }
    check.countable("scores", &[rows, entries])?;
    check.at_most("the number of entries", entries, i32::MAX as usize)?;
    check.cubes([rows, 1, 1])?;
    check.supports(units(check.client(), entries).is_some())?;
    let mut numbers = Vec::with_capacity(rows * ROW);
    let mut width = 0;
    for ((&length, &keep), &recent) in input.lengths.iter().zip(input.keep).zip(input.recent) {
        check.value("length", length, length <= entries, format!("at most {entries}"))?;
        width = width.max(length.min(keep));
        let first = entries - length;
        let (low, high, wanted) = if length <= keep {
            (entries, entries, 0)
        } else {
            let sinks = input.sinks.min(keep);
            let recent = recent.min(keep - sinks);
            (first + sinks, entries - recent, keep - sinks - recent)
        };
        numbers.extend([first, low, high, wanted].map(|number| number as i64));
    }
    check.value("the most entries kept", width, width > 0, "at least 1")?;
    Ok((numbers, parts(check.client(), rows, entries)))
}
