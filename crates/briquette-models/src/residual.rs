use burn::tensor::Tensor;

use crate::{Result, rms_norm::RmsNorm};

/// The residual stream between two layers, `[batch, tokens, hidden_size]`: what the last block found may still have to be added,
/// so that the norm behind it does both in one launch.
#[derive(Clone, Debug)]
pub(crate) struct Residual {
    sum: Tensor<3>,
    added: Option<Tensor<3>>,
}

impl Residual {
    pub(crate) fn new(sum: Tensor<3>) -> Self {
        Self { sum, added: None }
    }

    /// With what a block has found.
    pub(crate) fn with(self, found: Tensor<3>) -> Self {
        Self { sum: self.summed(), added: Some(found) }
    }

    /// All of it.
    pub(crate) fn summed(self) -> Tensor<3> {
        match self.added {
            Some(added) => self.sum + added,
            None => self.sum,
        }
    }

    /// All of it, summed, and what a norm makes of it.
    pub(crate) fn normalised(self, norm: &RmsNorm) -> Result<(Self, Tensor<3>)> {
        let (sum, normal) = norm.add(self.sum, self.added)?;
        Ok((Self::new(sum), normal))
    }
}
