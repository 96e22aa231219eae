//! What kernels on Hopper's tensor cores are made of: products of 128 units together (`wgmma`), of
//! tiles in shared memory that the tensor memory accelerator has laid there. CubeCL 0.12 has them.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::{
    features::{Tma, WgmmaElems},
    ir::{
        ElemType, FloatKind,
        attributes::IndexAttr,
        dialect::matrix::{WgmmaFenceOp, WgmmaWaitGroupOp},
        types::MatrixShape,
    },
    prelude::*,
    wgmma::{Major, Swizzle, WgmmaTileLayout},
    zspace::Shape,
};

/// Units of a group, which multiply together.
pub(crate) const GROUP: usize = 128;
/// Rows of a product.
pub(crate) const ROWS: usize = 64;
/// Numbers of the contraction of a product.
pub(crate) const DEPTH: usize = 16;
/// Numbers of a row that lie together in shared memory: 128 bytes, the widest pattern.
pub(crate) const PANEL: usize = 64;
/// Boundary in shared memory at which tiles begin.
pub(crate) const ALIGNMENT: usize = 1024;

/// Whether the device has such products of this type.
pub(crate) fn multiplies_groups(client: &Client, element: ElemType) -> bool {
    let features = client.features();
    let elems = WgmmaElems { a: element, b: element, cd: ElemType::Float(FloatKind::F32) };
    let shape = MatrixShape { m: ROWS, n: 256, k: DEPTH };
    features.tma.contains(Tma::Base)
        && features.matmul.wgmma.iter().any(|config| config.matches(elems, shape))
}

/// A tensor as the tensor memory accelerator copies it, in boxes of so many rows, a panel wide.
/// Rows begin on 16 bytes. What is beyond the tensor is zero in shared memory.
pub(crate) fn panels(tensor: CubeTensor, rows: usize) -> TensorMapArg<Tiled> {
    let element = dtype_to_storage_type(tensor.dtype);
    let mut tile_size = vec![1; tensor.meta.shape().num_dims()];
    if let [.., of_rows, of_columns] = tile_size.as_mut_slice() {
        (*of_rows, *of_columns) = (rows, PANEL);
    }
    let tile_size = Shape::from(tile_size);
    TensorMapArg::new(TiledArgs { tile_size }, tensor.into_tensor_arg(), element)
        .with_swizzle(Swizzle::B128.into())
}

/// Panels of so many rows next to each other, multiplied along the rows.
pub(crate) const fn along_rows(rows: usize, columns: usize) -> WgmmaTileLayout {
    WgmmaTileLayout { major: Major::K, swizzle: Swizzle::B128, rows, k: columns }
}

/// The same, multiplied along the columns.
pub(crate) const fn along_columns(rows: usize, columns: usize) -> WgmmaTileLayout {
    WgmmaTileLayout { major: Major::MN, swizzle: Swizzle::B128, rows: columns, k: rows }
}

/// The group of this unit: a number of the plane, as what is made of it must be.
#[cube]
pub(crate) fn group_of_unit() -> usize {
    plane_broadcast(UNIT_POS / comptime!(GROUP as u32), 0u32) as usize
}

/// Orders what was written to registers before the products to come. Products behind a branch need
/// one of their own: where ptxas inserts it, it waits for each product.
#[cube]
pub(crate) fn fence() {
    intrinsic!(|scope| {
        scope.register(&WgmmaFenceOp::new(scope.ctx_mut()));
    })
}

/// Waits until no more than `running` of the products that were committed run. CubeCL counts them
/// too, but takes any branch between a commit and its wait for one that may have committed nothing,
/// and waits for all.
#[cube]
pub(crate) fn wait_for_all_but(#[comptime] running: usize) {
    intrinsic!(|scope| {
        let running = IndexAttr::new(running);
        scope.register(&WgmmaWaitGroupOp::new(scope.ctx_mut(), running));
    })
}
