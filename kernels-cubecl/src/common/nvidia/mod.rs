//! Instructions of NVIDIA's that CubeCL has no operation for. CubeCL leaves an operation of LLVM's
//! as it is, so kernels that use these compile for CUDA, by LLVM, and for nothing else.

mod call;
pub(crate) mod copy;
pub(crate) mod exp2;
#[cfg(cubecl_0_12)]
pub(crate) mod log2;
#[cfg(cubecl_0_12)]
pub(crate) mod reciprocal;
