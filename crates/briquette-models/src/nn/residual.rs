use burn::tensor::{Device, Tensor};

use crate::{Result, nn::rms_norm::RmsNorm};

/// The residual stream between two layers, `[batch, tokens, hidden_size]`: the output of the last
/// block may still have to be added, so that the norm behind it does both in one launch.
#[derive(Clone, Debug)]
pub(crate) struct Residual {
    sum: Tensor<3>,
    added: Option<Tensor<3>>,
}

impl Residual {
    pub(crate) fn new(sum: Tensor<3>) -> Self {
        Self { sum, added: None }
    }

    /// The stream on a device, to which it moves whole if it is elsewhere.
    pub(crate) fn on(self, device: &Device) -> Self {
        if self.sum.device() == *device { self } else { Self::new(self.summed().to_device(device)) }
    }

    /// The stream with the output of a block.
    pub(crate) fn with(self, found: Tensor<3>) -> Self {
        Self { sum: self.summed(), added: Some(found) }
    }

    /// The whole sum.
    pub(crate) fn summed(self) -> Tensor<3> {
        match self.added {
            Some(added) => self.sum + added,
            None => self.sum,
        }
    }

    /// The whole sum as a stream, and what a block receives: its normalised form, or itself where
    /// there is no norm.
    pub(crate) fn before_block(self, norm: Option<&RmsNorm>) -> Result<(Self, Tensor<3>)> {
        match norm {
            Some(norm) => self.normalised(norm),
            None => {
                let sum = self.summed();
                Ok((Self::new(sum.clone()), sum))
            }
        }
    }

    /// The whole sum as a stream, and its normalised form.
    pub(crate) fn normalised(self, norm: &RmsNorm) -> Result<(Self, Tensor<3>)> {
        let (sum, normal) = norm.add(self.sum, self.added)?;
        Ok((Self::new(sum), normal))
    }
}
