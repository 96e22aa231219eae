use burn::{
    module::{Module, Param},
    nn,
    tensor::{Tensor, module},
};

use briquette::ops::{LinearInput, best};

/// A linear layer in the place of Burn's [`nn::Linear`], which it is made from: parameters have the same names and shapes,
/// and what goes by the module's name, as the adapter of PyTorch's checkpoints does, treats it alike.
///
/// Products with few rows, which a decode step has, go to a kernel that reads the weights at the device's bandwidth, see
/// [`LinearOps::linear`](briquette::ops::LinearOps::linear); with more rows, or where there is no such kernel, they are Burn's own.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl From<nn::Linear> for Linear {
    fn from(nn::Linear { weight, bias }: nn::Linear) -> Self {
        Self { weight, bias }
    }
}

impl Linear {
    /// `[.., inputs]` -> `[.., outputs]`
    ///
    /// # Panics
    /// As Burn's own does, if shapes or types do not fit.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let mut dims = x.dims();
        let rows = dims[..D - 1].iter().product::<usize>();
        let weight = self.weight.val();
        let [inputs, outputs] = weight.dims();
        dims[D - 1] = outputs;
        let bias = self.bias.as_ref().map(|bias| bias.val());
        let x = x.reshape([rows, inputs]);
        let input = LinearInput { x: x.clone(), weight: weight.clone(), bias: bias.clone() };
        // What the operation refuses, Burn refuses in its own way.
        let product = best().linear(input).unwrap_or_else(|_| module::linear(x, weight, bias));
        product.reshape(dims)
    }
}
