use std::sync::Arc;

use burn::{
    nn::{Initializer, LinearConfig},
    tensor::Device,
};

use briquette::ops::Ops;

use crate::{
    Linear, ModelConfig,
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
        match self.config.architecture.stores_norms_less_one() {
            true => self.norm(channels, Initializer::Zeros, true),
            false => self.plain_norm(channels),
        }
    }

    /// A normalisation of so many channels, whose weights are stored as they are.
    pub(crate) fn plain_norm(self, channels: usize) -> RmsNorm {
        self.norm(channels, Initializer::Ones, false)
    }

    fn norm(self, channels: usize, start: Initializer, less_one: bool) -> RmsNorm {
        let weight = start.init([channels], self.device);
        RmsNorm::new(weight, self.config.rms_norm_eps, less_one, self.ops.clone())
    }
}
