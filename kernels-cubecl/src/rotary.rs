use burn::tensor::{Int, Tensor};

use crate::{Result, check::Check, split::Heads};

/// A rotary position encoding of keys as they are read: channel `i` is paired with channel `i + head_dim / 2`, and the
/// pair turned by the angle whose cosine and sine stand in row `position` and column `i` of the tables.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    /// `[positions, head_dim / 2]`
    pub cosines: Tensor<2>,
    /// `[positions, head_dim / 2]`
    pub sines: Tensor<2>,
    /// At which position each column is encoded, `[batch, kv_heads or 1, columns]`. Rows of the tables, or any number
    /// in a column that holds nothing.
    pub positions: Tensor<3, Int>,
}

impl RotaryTables {
    /// Refuses tables that do not fit these heads and columns.
    pub(crate) fn check(&self, check: &Check, heads: Heads, columns: usize) -> Result<()> {
        let Heads { batch, kv_heads, head_dim, .. } = heads;
        let rows = self.cosines.dims()[0];
        check.value("head_dim", head_dim, head_dim.is_multiple_of(2), "even")?;
        check.shape("cosines", self.cosines.dims(), [rows, head_dim / 2])?;
        check.shape("sines", self.sines.dims(), [rows, head_dim / 2])?;
        let per = if self.positions.dims()[1] == 1 { 1 } else { kv_heads };
        check.shape("positions", self.positions.dims(), [batch, per, columns])?;
        check.value("the rows of cosines", rows, rows > 0, "at least 1")?;
        check.value("columns", columns, columns > 0, "at least 1")?;
        check.countable("cosines", &self.cosines.dims())
    }
}
