//! Bytes of the weights of a model that is not loaded.

use std::{path::Path, sync::Arc};

use briquette_ops::QuantizedMatrix;
use burn::tensor::{DType, Device};

use crate::{
    DeviceMap, Model, ModelConfig, Result, WeightBits,
    checkpoint::weights::Weights,
    nn::{embedding::Embedding, numbers::numbers, projection::Projection},
    quantize,
};

/// [`Model::weight_bytes`] of a model that would be loaded so, and quantized to `bits`, and the
/// devices that its cache would lie on, if they are several. The headers of its files are read, and
/// the embedding and the head where both are stored and may be one.
pub(crate) fn weight_bytes(
    config: ModelConfig,
    path: &Path,
    devices: &DeviceMap,
    dtype: DType,
    bits: Option<WeightBits>,
) -> Result<(usize, Option<Arc<[Device]>>)> {
    let open = || Weights::open(path);
    let (mut model, weights) = Model::without_weights(config, path, open, devices, dtype)?;
    let mut dense = numbers(&model);
    let architecture = model.config().architecture;
    let stored =
        |path: &str| weights.format(&architecture.checkpoint_name(&format!("{path}.weight")));
    let mut matrices = Vec::new();
    if let Embedding::Dense(embedding) = &model.model.embed_tokens {
        let [outputs, inputs] = embedding.weight.lazy_shape().dims();
        let format = stored("model.embed_tokens");
        let format = format.or_else(|| bits.and_then(|_| WeightBits::Eight.format(inputs)));
        matrices.push((format, [outputs, inputs]));
    }
    for (path, projection) in model.projections() {
        let Projection::Dense(linear) = projection else { continue };
        let [inputs, outputs] = linear.weight.lazy_shape().dims();
        let bits = bits.filter(|_| quantize::is_quantized(&path));
        let format = stored(&path).or_else(|| bits.and_then(|bits| bits.format(inputs)));
        matrices.push((format, [outputs, inputs]));
    }
    let mut quantized = 0;
    for (format, dims) in matrices {
        if let Some(format) = format {
            dense -= dims.iter().product::<usize>();
            quantized += QuantizedMatrix::bytes_of(format, dims, devices.first());
        }
    }
    Ok((dense * dtype.size() + quantized, model.devices_of_cache()))
}
