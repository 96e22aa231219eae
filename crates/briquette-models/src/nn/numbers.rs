use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};

/// The numbers of a model's dense parameters.
struct Numbers<'a> {
    /// That of the parameters which are counted, of all where there is none.
    device: Option<&'a Device>,
    all: usize,
}

impl ModuleVisitor for Numbers<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // The lazy shape and device: nothing is allocated.
        if self.device.is_none_or(|device| param.lazy_device() == *device) {
            self.all += param.lazy_shape().iter().product::<usize>();
        }
    }
}

/// The numbers of the dense parameters of a part of a model, loaded or not.
pub(crate) fn numbers(part: &impl Module) -> usize {
    count(part, None)
}

/// Those that lie on a device, or will.
pub(crate) fn numbers_on(part: &impl Module, device: &Device) -> usize {
    count(part, Some(device))
}

fn count(part: &impl Module, device: Option<&Device>) -> usize {
    let mut numbers = Numbers { device, all: 0 };
    part.visit(&mut numbers);
    numbers.all
}
