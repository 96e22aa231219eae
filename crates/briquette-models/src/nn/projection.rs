use std::sync::Arc;

use burn::{
    module::{Module, Param, ParamId},
    tensor::{DType, Tensor},
};

use briquette::ops::{Activation, QuantizedMatrix};

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

    /// The same layer, see [`Linear::k_major`]; quantized weights are so.
    pub(crate) fn k_major(self) -> Self {
        match self {
            Self::Dense(inner) => Self::Dense(inner.k_major()),
            Self::Quantized(_) => self,
        }
    }

    /// One layer whose outputs are those of all, one behind the other. `None` if their weights are
    /// not stored alike.
    pub(crate) fn side_by_side(layers: &[&Self]) -> Option<Self> {
        match layers.first()? {
            Self::Dense(_) => {
                let layers: Option<Vec<&Linear>> = layers.iter().map(|one| one.dense()).collect();
                Some(Self::Dense(dense_side_by_side(&layers?)))
            }
            Self::Quantized(first) => {
                let weights: Option<Vec<QuantizedMatrix>> =
                    layers.iter().map(|one| one.quantized().cloned()).collect();
                let weight = QuantizedMatrix::stacked(&weights?)?;
                let biases: Vec<_> = layers.iter().map(|one| one.bias()).collect();
                let bias = joined_bias(&biases);
                let (weight, ops) = (Arc::new(weight), first.ops.clone());
                Some(Self::Quantized(QuantizedLinear { weight, bias, ops }))
            }
        }
    }

    fn dense(&self) -> Option<&Linear> {
        match self {
            Self::Dense(inner) => Some(inner),
            Self::Quantized(_) => None,
        }
    }

    fn bias(&self) -> Option<&Param<Tensor<1>>> {
        match self {
            Self::Dense(inner) => inner.bias.as_ref(),
            Self::Quantized(inner) => inner.bias.as_ref(),
        }
    }
}

fn dense_side_by_side(layers: &[&Linear]) -> Linear {
    let weights: Vec<Tensor<2>> = layers.iter().map(|layer| layer.weight.val()).collect();
    let device = weights[0].device();
    // Where Burn puts weights that it loads.
    let weight = device.memory_persistent_allocations(weights, |weights| Tensor::cat(weights, 1));
    let biases: Vec<_> = layers.iter().map(|layer| layer.bias.as_ref()).collect();
    Linear {
        weight: Param::initialized(ParamId::new(), weight),
        bias: joined_bias(&biases),
        ops: layers[0].ops.clone(),
    }
}

fn joined_bias(biases: &[Option<&Param<Tensor<1>>>]) -> Option<Param<Tensor<1>>> {
    let biases: Option<Vec<Tensor<1>>> = biases.iter().map(|bias| Some((*bias)?.val())).collect();
    let biases = biases?;
    let device = biases.first()?.device();
    let joined = device.memory_persistent_allocations(biases, |biases| Tensor::cat(biases, 0));
    Some(Param::initialized(ParamId::new(), joined))
}
