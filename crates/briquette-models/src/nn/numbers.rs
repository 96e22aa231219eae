use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};

/// The numbers of a model's dense parameters.
struct Numbers(usize);

impl ModuleVisitor for Numbers {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // The lazy shape: nothing is allocated.
        self.0 += param.lazy_shape().iter().product::<usize>();
    }
}

/// The numbers of the dense parameters of a part of a model, loaded or not.
pub(crate) fn numbers(part: &impl Module) -> usize {
    let mut all = Numbers(0);
    part.visit(&mut all);
    all.0
}
