use crate::{Result, setting::check_positive_number};

/// Factor of the queries of layers that do not encode positions, which grows with their position:
/// `1 + attn_scale · ln(1 + ⌊(position + 1) / floor_scale⌋)` (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnTemperature {
    /// Positions of a step.
    pub floor_scale: f64,
    /// Factor of the logarithm.
    pub attn_scale: f64,
}

impl AttnTemperature {
    pub(crate) fn check(self) -> Result<()> {
        check_positive_number("floor_scale", self.floor_scale)?;
        check_positive_number("attn_scale", self.attn_scale)
    }
}
