use std::sync::Arc;

use burn::{
    nn::{Initializer, LinearConfig},
    tensor::Device,
};

use briquette::ops::Ops;

use crate::{
    Architecture, Linear, ModelConfig,
    nn::{projection::Projection, rms_norm::RmsNorm},
};

/// The configuration, the device and the operations that the layers of a model are built with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) device: &'a Device,
    /// The operations that all layers count their fallbacks with.
    pub(crate) ops: &'a Arc<dyn Ops>,
}

impl Build<'_> {
    pub(crate) fn linear(self, input: usize, output: usize, bias: bool) -> Projection {
        let layer = LinearConfig::new(input, output).with_bias(bias).init(self.device);
        Projection::Dense(Linear::from(layer).with_ops(self.ops.clone()))
    }

    /// A normalisation of so many channels.
    pub(crate) fn rms_norm(self, channels: usize) -> RmsNorm {
        let less_one =
            matches!(self.config.architecture, Architecture::Gemma2 | Architecture::Gemma3);
        let start = if less_one { Initializer::Zeros } else { Initializer::Ones };
        let weight = start.init([channels], self.device);
        RmsNorm::new(weight, self.config.rms_norm_eps, less_one, self.ops.clone())
    }
}
