//! Bytes of the weights of a model that is not loaded.

use std::{path::Path, sync::Arc};

use briquette_ops::{QuantizedMatrix, WeightFormat};
use burn::tensor::{DType, Device};

use crate::{
    DeviceMap, Model, ModelConfig, Result, WeightBits,
    checkpoint::weights::Weights,
    nn::{embedding::Embedding, numbers::numbers_on, projection::Projection},
    quantize,
};

/// What the weights of a model will take, on each of its devices.
#[derive(Clone, Debug)]
pub(crate) struct WeightPlan {
    /// Its devices, each once, with the bytes there.
    pub(crate) of_devices: Vec<(Device, usize)>,
    /// The device of each layer of a cache, where there are several.
    pub(crate) devices_of_cache: Option<Arc<[Device]>>,
}

impl WeightPlan {
    /// [`Model::weight_bytes`] of a model that would be loaded so, and quantized to `bits`. The
    /// headers of its files are read, and the embedding and the head where both are stored and may
    /// be one.
    pub(crate) fn of(
        config: ModelConfig,
        path: &Path,
        devices: &DeviceMap,
        dtype: DType,
        bits: Option<WeightBits>,
    ) -> Result<Self> {
        let open = || Weights::open(path);
        let (mut model, weights) = Model::without_weights(config, path, open, devices, dtype)?;
        let dense = |device| numbers_on(&model, &device) * dtype.size();
        let devices = model.devices().into_iter();
        let mut of_devices: Vec<_> = devices.map(|one| (one.clone(), dense(one))).collect();
        for (device, format, dims) in quantized(&mut model, &weights, bits) {
            let numbers = dims.iter().product::<usize>();
            let bytes = QuantizedMatrix::bytes_of(format, dims, &device);
            for (of, taken) in &mut of_devices {
                if *of == device {
                    *taken = *taken - numbers * dtype.size() + bytes;
                }
            }
        }
        Ok(Self { of_devices, devices_of_cache: model.devices_of_cache() })
    }
}

/// The matrices that will be quantized, with their outputs and inputs.
fn quantized(
    model: &mut Model,
    weights: &Weights,
    bits: Option<WeightBits>,
) -> Vec<(Device, WeightFormat, [usize; 2])> {
    let architecture = model.config().architecture;
    let stored =
        |path: &str| weights.format(&architecture.checkpoint_name(&format!("{path}.weight")));
    let mut matrices = Vec::new();
    if let Embedding::Dense(embedding) = &model.model.embed_tokens {
        let [outputs, inputs] = embedding.weight.lazy_shape().dims();
        let format = stored("model.embed_tokens");
        let format = format.or_else(|| bits.and_then(|_| WeightBits::Eight.format(inputs)));
        let device = embedding.weight.lazy_device();
        matrices.extend(format.map(|format| (device, format, [outputs, inputs])));
    }
    for (path, projection) in model.projections() {
        let Projection::Dense(linear) = projection else { continue };
        let [inputs, outputs] = linear.weight.lazy_shape().dims();
        let bits = bits.filter(|_| quantize::is_quantized(&path));
        let format = stored(&path).or_else(|| bits.and_then(|bits| bits.format(inputs)));
        let device = linear.weight.lazy_device();
        matrices.extend(format.map(|format| (device, format, [outputs, inputs])));
    }
    matrices
}
