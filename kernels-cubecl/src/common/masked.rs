//! Numbers that stand for no score.

/// Score of a key that the query does not see. Beside any score that it sees, the weight underflows
/// to an exact zero. It is finite, so that the difference of two of them is zero and not NaN.
///
/// Maxima of attention begin with it where a query that sees nothing is to have weights of zero:
/// its maximum stays what it was.
pub(crate) const MASKED: f32 = -1e30;

/// Identity of a maximum: below every score, [`MASKED`] too.
///
/// A maximum begins with it where masked scores count, as in a window, where a query that sees
/// nothing weights all entries alike. Places behind the last entry have it, so that they count for
/// nothing there.
pub(crate) const LOWEST: f32 = -3e38;
