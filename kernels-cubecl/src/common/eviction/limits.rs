//! Numbers of a head that a table has for consecutive tokens.

use briquette_ops::{EvictLimits, Result};
use cubecl::prelude::*;

use crate::common::check::Check;

/// Refuses a table that is not of so many `lists`, or has not so many `numbers` for each token.
pub(crate) fn check_limits(
    check: &Check,
    limits: &EvictLimits,
    lists: usize,
    numbers: usize,
) -> Result<()> {
    let [found, width] = limits.table().dims();
    check.shape("limits", [found, width], [lists, width])?;
    check.equal("the numbers of limits", limits.numbers(), numbers)?;
    check.some([("the tokens of limits", (width - 2) / numbers)])
}

/// Index of the first of so many `numbers` of a token, the one at the position `newest`, in the
/// table of [`EvictLimits`].
#[cube]
pub(crate) fn of_token<I: Int>(
    limits: &Tensor<I>,
    list: usize,
    newest: usize,
    #[comptime] numbers: usize,
) -> usize {
    let row = list * limits.stride(0);
    let last = (limits.shape(1) - 2) / numbers - 1;
    let token = (newest - usize::cast_from(limits[row])).min(last);
    row + (2 + numbers * token) * limits.stride(1)
}
