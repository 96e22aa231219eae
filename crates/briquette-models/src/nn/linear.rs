use std::{ops::Range, sync::Arc};

use burn::{
    module::{Module, Param},
    nn,
    tensor::{Tensor, TensorData, s},
};

use briquette::ops::{Ops, best};
use briquette_ops::{Activation, GatedLinearInput, LinearInput};

use crate::Result;

/// A linear layer in the place of Burn's [`nn::Linear`], which it is made from: parameters have the
/// same names and shapes, and what goes by the module's name, as the adapter of PyTorch's
/// checkpoints does, treats it alike.
///
/// Products with few rows, which a decode step has, go to a kernel that reads the weights at the
/// device's bandwidth, see [`ModelOps::linear`](briquette_ops::ModelOps::linear); with more rows,
/// or where there is no such kernel, they are Burn's own.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) ops: Arc<dyn Ops>,
}

impl From<nn::Linear> for Linear {
    fn from(nn::Linear { weight, bias }: nn::Linear) -> Self {
        Self { weight, bias, ops: best() }
    }
}

impl Linear {
    /// Sets the operations: those of a cache, so that one list tells of all
    /// [fallbacks](Ops::fallbacks).
    #[must_use]
    pub fn with_ops(self, ops: Arc<dyn Ops>) -> Self {
        Self { ops, ..self }
    }

    /// The same layer with these weights, `[outputs, inputs]`, as checkpoints have them: seen
    /// transposed, not copied. Burn's adapter would move them number by number on the host.
    pub(crate) fn with_stored(self, weight: TensorData) -> Self {
        let (id, device) = (self.weight.id, self.weight.lazy_device());
        let stored = |weight: TensorData| {
            let dtype = weight.dtype();
            Tensor::<2>::from_data(weight, (&device, dtype)).transpose()
        };
        let weight = device.memory_persistent_allocations(weight, stored);
        Self { weight: Param::initialized(id, weight), ..self }
    }

    /// Whether its operations multiply faster where its weights are K-major.
    pub(crate) fn prefers_k_major(&self) -> bool {
        self.ops.prefers_k_major(&self.weight.val())
    }

    /// The same layer, with weights that are K-major in memory where its operations
    /// [multiply faster so](briquette_ops::ModelOps::prefers_k_major), else input by input.
    pub(crate) fn laid_out(self) -> Self {
        let (id, k_major) = (self.weight.id, self.prefers_k_major());
        let weight = self.weight.val();
        let lay_out = |weight: Tensor<2>| match k_major {
            true => in_order(weight.transpose()).transpose(),
            false => in_order(weight),
        };
        let weight = weight.device().memory_persistent_allocations(weight, lay_out);
        Self { weight: Param::initialized(id, weight), ..self }
    }

    /// The same layer whose outputs are heads of so many channels: of pairs beside each other in
    /// the `rotated` ones, the first of each pair come before the second of each.
    pub(crate) fn in_halves(self, head_dim: usize, rotated: &Range<usize>) -> Self {
        let halves = |all: Tensor<2>| {
            let [rows, outputs] = all.dims();
            let [count, turning] = [outputs / head_dim, rotated.len()];
            let heads = all.reshape([rows, count, head_dim]);
            let pairs = heads.clone().narrow(2, rotated.start, turning);
            let pairs = pairs.reshape([rows, count, turning / 2, 2]).swap_dims(2, 3);
            let turned = pairs.reshape([rows, count, turning]);
            heads.slice_assign(s![.., .., rotated.clone()], turned).reshape([rows, outputs])
        };
        let weight = self.weight.map(halves);
        let bias = self.bias.map(|bias| bias.map(|bias| halves(bias.unsqueeze()).squeeze_dim(0)));
        Self { weight, bias, ..self }
    }

    /// `[.., inputs]` -> `[.., outputs]`
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if shapes or types do not fit.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let bias = self.bias.as_ref().map(|bias| bias.val());
        multiply(x, self.weight.val(), bias, self.ops.as_ref())
    }

    /// See [`Projection::forward_gated`](super::projection::Projection::forward_gated).
    pub(crate) fn forward_gated<const D: usize>(
        &self,
        x: Tensor<D>,
        activation: Activation,
    ) -> Result<Tensor<D>> {
        let bias = self.bias.as_ref().map(|bias| bias.val());
        let weight = self.weight.val();
        by_rows(x, |x| self.ops.gated_linear(GatedLinearInput { x, weight, bias, activation }))
    }
}

/// The same matrix, row by row in memory: a reshape copies what does not lie in the order of its
/// numbers.
fn in_order(x: Tensor<2>) -> Tensor<2> {
    let dims = x.dims();
    let numbers: Tensor<1> = x.reshape([dims[0] * dims[1]]);
    numbers.reshape(dims)
}

/// `[.., inputs]` -> `[.., outputs]`
pub(crate) fn multiply<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    ops: &dyn Ops,
) -> Result<Tensor<D>> {
    by_rows(x, |x| ops.linear(LinearInput { x, weight, bias }))
}

/// `[.., inputs]` -> `[.., outputs]`, by a product of all rows, `[rows, inputs]` -> `[rows,
/// outputs]`.
pub(crate) fn by_rows<const D: usize>(
    x: Tensor<D>,
    product: impl FnOnce(Tensor<2>) -> briquette_ops::Result<Tensor<2>>,
) -> Result<Tensor<D>> {
    let mut dims = x.dims();
    let rows = dims[..D - 1].iter().product::<usize>();
    let found = product(x.reshape([rows, dims[D - 1]])).map_err(briquette::Error::from)?;
    dims[D - 1] = found.dims()[1];
    Ok(found.reshape(dims))
}

#[cfg(test)]
mod tests {
    use briquette_ops::{AttentionOps, ClusterOps, EntryOps, MergeOps, ModelOps, SelectOps};
    use burn::tensor::{Device, Distribution};

    use super::*;

    /// The reference, where it prefers K-major weights.
    #[derive(Debug)]
    struct KMajor;

    impl AttentionOps for KMajor {}
    impl EntryOps for KMajor {}
    impl SelectOps for KMajor {}
    impl MergeOps for KMajor {}
    impl ClusterOps for KMajor {}
    impl Ops for KMajor {}

    impl ModelOps for KMajor {
        fn prefers_k_major(&self, _weight: &Tensor<2>) -> bool {
            true
        }
    }

    fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
        x.try_into_vec_as().unwrap()
    }

    #[test]
    fn k_major_weights_are_the_same_weights() {
        let device = Device::flex();
        device.seed(2026);
        let layer = nn::LinearConfig::new(6, 4).with_bias(true).init(&device);
        let layer = Linear::from(layer).with_ops(Arc::new(KMajor));
        let x = Tensor::<3>::random([2, 3, 6], Distribution::Default, &device);
        let (id, weight) = (layer.weight.id, numbers(layer.weight.val()));
        let found = layer.forward(x.clone()).unwrap();
        let layer = layer.laid_out();
        assert_eq!((layer.weight.id, layer.weight.val().dims()), (id, [6, 4]));
        assert_eq!(numbers(layer.weight.val()), weight);
        let again = layer.clone().laid_out();
        for layer in [layer, again] {
            let other = layer.forward(x.clone()).unwrap();
            for (a, b) in numbers(other).iter().zip(numbers(found.clone())) {
                assert!((a - b).abs() <= 1e-6, "{a}, {b}");
            }
        }
    }
}
