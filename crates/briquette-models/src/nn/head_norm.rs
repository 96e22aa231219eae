use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use crate::{Result, nn::rms_norm::RmsNorm};

/// Normalisation of queries or keys.
#[derive(Module, Debug)]
pub(crate) enum HeadNorm {
    Weighted(RmsNorm),
    /// `x / sqrt(mean(x²) + epsilon)`, with this epsilon.
    Unweighted(f64),
}

impl HeadNorm {
    /// `[.., channels]` -> `[.., channels]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        match self {
            Self::Weighted(norm) => norm.forward(x),
            Self::Unweighted(epsilon) => {
                let dtype = x.dtype();
                let x = x.cast(DType::F32);
                let mean = x.clone().square().mean_dim(D - 1);
                Ok((x / (mean + *epsilon).sqrt()).cast(dtype))
            }
        }
    }
}
