//! The comparison of two booleans, which is all that CubeCL 0.11 translates to WGSL and not to
//! SPIR-V. A kernel of these tests that has one does not compile here, on any device, as it would
//! not on Vulkan. Kernels are not translated to SPIR-V for that. They are known only to the server
//! of a device, which CubeCL opens itself, and software Vulkan crashes on what CubeCL makes for it.

use above_along_one::AboveAlongOne;
use burn::backend::DispatchDevice;
use cubecl::{
    ir::dialect::cmp::{BoolEqualOp, BoolNotEqualOp},
    prelude::*,
};
use pliron::{
    context::Context,
    derive::{op_interface, op_interface_impl},
    op::Op,
    operation::verify_operation,
    printable::Printable,
    result::Result,
    verify_err_noloc,
};

use crate::common::kernel_backends;

/// An operation that SPIR-V lacks. CubeCL verifies the interfaces of all operations of a kernel
/// before it compiles it.
#[op_interface]
trait NotInSpirv {
    fn verify(op: &dyn Op, _: &Context) -> Result<()>
    where
        Self: Sized,
    {
        verify_err_noloc!("CubeCL does not translate {} to SPIR-V", op.get_opid())
    }
}

#[op_interface_impl]
impl NotInSpirv for BoolEqualOp {}

#[op_interface_impl]
impl NotInSpirv for BoolNotEqualOp {}

/// Whether a unit is above one along one of two dimensions, and not along both.
#[cube(launch)]
fn above_along_one(#[comptime] by_booleans: bool) {
    let mut found = Shared::<[u32]>::new_slice(1usize);
    let (x, y) = (UNIT_POS_X > 1, UNIT_POS_Y > 1);
    found[0] = if comptime!(by_booleans) {
        select(x != y, 1u32, 0u32)
    } else {
        select(x, 1u32, 0u32) ^ select(y, 1u32, 0u32)
    };
}

#[test]
fn a_kernel_that_compares_booleans_is_refused() {
    for backend in kernel_backends() {
        let DispatchDevice::Cube(device) = backend.device.as_dispatch() else { unreachable!() };
        let client = device.client();
        let verified = |by_booleans| {
            let dim = CubeDim::new_1d(1).into();
            let settings = KernelSettings::new(dim, ExecutionMode::Checked, AddressType::U32);
            let (properties, target) =
                (client.properties_shared(), client.target_properties_shared());
            let kernel = AboveAlongOne::new(settings, properties, target, by_booleans);
            let body = kernel.define().body;
            let module = body.state().module.get_operation();
            let context = body.into_context().expect("nobody else has the kernel");
            verify_operation(module, &context).map_err(|error| error.disp(&context).to_string())
        };
        assert_eq!(verified(false), Ok(()));
        let error = verified(true).unwrap_err();
        assert!(error.contains("cmp.bool_not_equal to SPIR-V"), "{error}");
    }
}
