use std::sync::Arc;

use burn::{
    module::{Module, Param, ParamId},
    tensor::{DType, Tensor},
};

use briquette_ops::{Activation, QuantizedMatrix};

use crate::{
    Result,
    nn::{linear::Linear, quantized_linear::QuantizedLinear},
};

/// A linear layer of a model. A checkpoint names its parameters alike, whichever it is.
#[derive(Module, Debug)]
pub(crate) enum Projection {
    Dense(Linear),
    Quantized(QuantizedLinear),
}

/// Projections of a block, by their paths in it.
pub(crate) type Projections<'a> = Vec<(String, &'a mut Projection)>;

/// The same projections, by their paths in the block around theirs.
pub(crate) fn within<'a>(name: &str, inner: Projections<'a>) -> Projections<'a> {
    inner.into_iter().map(|(path, projection)| (format!("{name}.{path}"), projection)).collect()
}

impl Projection {
    /// `[.., inputs]` -> `[.., outputs]`
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if shapes or types do not fit.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        match self {
            Self::Dense(inner) => inner.forward(x),
            Self::Quantized(inner) => inner.forward(x),
        }
    }

    /// Both sides of a gated feed-forward network, of which this has the weights one behind the
    /// other: `[.., inputs]` -> `[.., outputs / 2]`
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if shapes or types do not fit.
    pub(crate) fn forward_gated<const D: usize>(
        &self,
        x: Tensor<D>,
        activation: Activation,
    ) -> Result<Tensor<D>> {
        match self {
            Self::Dense(inner) => inner.forward_gated(x, activation),
            Self::Quantized(inner) => inner.forward_gated(x, activation),
        }
    }

    /// Its weights, `[outputs, inputs]`, if they are quantized.
    pub(crate) fn quantized(&self) -> Option<&QuantizedMatrix> {
        match self {
            Self::Quantized(inner) => Some(&inner.weight),
            Self::Dense(_) => None,
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        match self {
            Self::Dense(inner) => inner.weight.lazy_shape()[1],
            Self::Quantized(inner) => inner.weight.dims()[0],
        }
    }

    /// Its weights, `[inputs, outputs]`; quantized ones expanded to this type.
    pub(crate) fn weight(&self, dtype: DType) -> Tensor<2> {
        match self {
            Self::Dense(inner) => inner.weight.val(),
            Self::Quantized(inner) => inner.weight.dequantize().cast(dtype).transpose(),
        }
    }

    /// The same layer with these weights, `[outputs, inputs]`.
    pub(crate) fn with_quantized(self, weight: QuantizedMatrix) -> Self {
        let (bias, ops) = match self {
            Self::Dense(Linear { bias, ops, .. }) => (bias, ops),
            Self::Quantized(QuantizedLinear { bias, ops, .. }) => (bias, ops),
        };
        Self::Quantized(QuantizedLinear { weight: Arc::new(weight), bias, ops })
    }

    /// The same layer, see [`Linear::laid_out`]; quantized weights are K-major.
    pub(crate) fn laid_out(self) -> Self {
        match self {
            Self::Dense(inner) => Self::Dense(inner.laid_out()),
            Self::Quantized(_) => self,
        }
    }

    /// One layer whose outputs are those of all, one behind the other. `None` if their weights are
    /// not stored alike.
    pub(crate) fn side_by_side(layers: &[&Self]) -> Option<Self> {
        let bias = || {
            let biases = layers.iter().map(|one| match one {
                Self::Dense(Linear { bias, .. })
                | Self::Quantized(QuantizedLinear { bias, .. }) => Some(bias.as_ref()?.val()),
            });
            joined(biases, 0)
        };
        match layers.first()? {
            Self::Dense(first) => {
                let k_major = first.prefers_k_major();
                let weights = layers.iter().map(|one| match one {
                    // Output by output, as K-major weights lie.
                    Self::Dense(inner) if k_major => Some(inner.weight.val().transpose()),
                    Self::Dense(inner) => Some(inner.weight.val()),
                    Self::Quantized(_) => None,
                });
                let weight = match k_major {
                    true => joined(weights, 0)?.map(Tensor::transpose),
                    false => joined(weights, 1)?,
                };
                Some(Self::Dense(Linear { weight, bias: bias(), ops: first.ops.clone() }))
            }
            Self::Quantized(first) => {
                let weights: Option<Vec<QuantizedMatrix>> =
                    layers.iter().map(|one| one.quantized().cloned()).collect();
                let weight = Arc::new(QuantizedMatrix::stacked(&weights?)?);
                let (bias, ops) = (bias(), first.ops.clone());
                Some(Self::Quantized(QuantizedLinear { weight, bias, ops }))
            }
        }
    }
}

/// Parameters as one; `None` if any is absent.
fn joined<const D: usize>(
    parts: impl Iterator<Item = Option<Tensor<D>>>,
    dimension: usize,
) -> Option<Param<Tensor<D>>> {
    let parts = parts.collect::<Option<Vec<_>>>()?;
    let device = parts.first()?.device();
    // Where Burn puts weights that it loads.
    let joined = device.memory_persistent_allocations(parts, |parts| Tensor::cat(parts, dimension));
    Some(Param::initialized(ParamId::new(), joined))
}
