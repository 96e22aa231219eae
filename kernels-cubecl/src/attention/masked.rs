/// The score of a key that the query does not see: its weight underflows to an exact zero.
pub(crate) const INVISIBLE: f32 = -1e30;
