//! Parts of kernels on Hopper's tensor cores: products of 128 units together (`wgmma`), of
//! tiles in shared memory that the tensor memory accelerator has laid there. CubeCL 0.12 has them.
//!
//! A kernel that multiplies so calls no function, as CubeCL's `ln`, `erf` and a division do. CubeCL
//! has kernels linked, and where one that is linked calls a function, ptxas waits for each product
//! before the next (C7509, which only `ptxas -c` tells).

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous_aligned, tensor::CubeTensor};
use cubecl::{
    features::{Tma, WgmmaElems},
    ir::{
        AddressSpace, ElemType, FloatKind, Scope,
        attributes::IndexAttr,
        dialect::{
            general::ReinterpretCastOp,
            matrix::{
                WgmmaCommitGroupOp, WgmmaDescriptorOp, WgmmaFenceOp, WgmmaFenceOperandOp, WgmmaOp,
                WgmmaWaitGroupOp,
            },
        },
        pliron::{builtin::attributes::TypeAttr, value::Value},
        types::{
            MatrixShape, PointerType,
            barrier::{BarrierLevel, BarrierType},
        },
    },
    prelude::{barrier::Barrier, *},
    wgmma::{Major, Swizzle, WgmmaTileLayout},
    zspace::Shape,
};

use super::{mma::CHUNK, support::chunked};

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

/// Whether the device has such products of queries and keys, and their rows are whole panels of
/// which registers have room for the sums.
pub(crate) fn takes_heads(queries: &CubeTensor, keys: &CubeTensor) -> bool {
    let head_dim = queries.shape()[3];
    queries.dtype == keys.dtype
        && head_dim.is_multiple_of(PANEL)
        && head_dim <= 2 * PANEL
        && multiplies_groups(&queries.client, dtype_to_storage_type(queries.dtype))
}

/// A tensor as the tensor memory accelerator copies it, in boxes of so many rows, a panel wide.
/// Beyond the tensor there are zeros in shared memory. A tensor is copied before if its rows do not
/// begin on 16 bytes, or if it repeats.
pub(crate) fn panels(tensor: CubeTensor, rows: usize) -> TensorMapArg<Tiled> {
    let element = dtype_to_storage_type(tensor.dtype);
    let shape = tensor.meta.shape().clone();
    let dims = shape.num_dims();
    let repeats = (0..dims).any(|dim| shape[dim] > 1 && tensor.meta.strides()[dim] == 0);
    let mut tensor = if repeats { into_contiguous_aligned(tensor) } else { chunked(tensor) };
    for dim in (0..dims - 1).filter(|&dim| shape[dim] == 1) {
        // Any that the driver accepts.
        tensor.meta.strides[dim] = CHUNK;
    }
    let mut tile_size = vec![1; dims];
    (tile_size[dims - 2], tile_size[dims - 1]) = (rows, PANEL);
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

/// The place of a tile in shared memory, and how it lies, as products read it. `first` is its first
/// number, at a multiple of [`ALIGNMENT`].
#[cube]
#[allow(unused_variables)]
pub(crate) fn descriptor<E: Float>(first: &E, #[comptime] layout: WgmmaTileLayout) -> u64 {
    intrinsic!(|scope| {
        let place = first.value(scope);
        let (leading, stride) = (layout.leading_byte_offset(), layout.stride_byte_offset());
        let op = WgmmaDescriptorOp::new(scope.ctx_mut(), place, leading, stride, layout.swizzle);
        scope.register_with_result(&op).into()
    })
}

/// The distance of the descriptor of a step of the contraction from that of the tile.
pub(crate) fn part(layout: WgmmaTileLayout, depth: usize) -> u64 {
    // Addresses are counted in 16 bytes; numbers have two.
    (layout.byte_offset(0, depth * DEPTH, 2) / 16) as u64
}

/// A product of rows, which lie along the contraction, and of a tile that lies so or across.
fn product<E: Float>(
    scope: &Scope,
    sums: Value,
    rows: Value,
    tile: Value,
    columns: usize,
    lies: Major,
) {
    let element = TypeAttr::new(E::__expand_as_type(scope));
    let shape = MatrixShape { m: ROWS, n: columns, k: DEPTH };
    let (ctx, of_tile) = (scope.ctx_mut(), element.clone());
    scope.register(&WgmmaOp::new(ctx, rows, tile, sums, element, of_tile, shape, Major::K, lies));
}

/// Adds the product of two tiles in shared memory to `sums`: 64 rows and `columns`, of which a unit
/// has the numbers of an [`Accumulator`](cubecl::wgmma::Accumulator). Nobody touches `sums` until
/// the product is waited for.
#[cube]
#[allow(unused_variables, clippy::extra_unused_type_parameters)]
pub(crate) fn multiply_tiles<E: Float>(
    sums: &mut Array<f32>,
    rows: u64,
    tile: u64,
    #[comptime] columns: usize,
) {
    intrinsic!(|scope| {
        let sums = sums.__extract_list(scope);
        let (rows, tile) = (rows.read_value(scope), tile.read_value(scope));
        product::<E>(scope, sums, rows, tile, columns, Major::K);
    })
}

/// The same of rows in registers, eight numbers of a unit as two tiles of sums have them, and of a
/// tile whose columns lie one after another.
#[cube]
#[allow(unused_variables)]
pub(crate) fn multiply_rows<E: Float>(
    sums: &mut Array<f32>,
    rows: &Array<E>,
    tile: u64,
    #[comptime] columns: usize,
) {
    intrinsic!(|scope| {
        let sums = sums.__extract_list(scope);
        let (rows, tile) = (rows.read_value(scope), tile.read_value(scope));
        product::<E>(scope, sums, rows, tile, columns, Major::MN);
    })
}

/// Keeps the compiler from moving what touches these registers across this point.
#[cube]
#[allow(unused_variables)]
pub(crate) fn pin<E: CubePrimitive>(registers: &Array<E>) {
    intrinsic!(|scope| {
        let registers = registers.__extract_list(scope);
        scope.register(&WgmmaFenceOperandOp::new(scope.ctx_mut(), registers));
    })
}

/// Commits the products since the last commit: they are waited for together.
#[cube]
pub(crate) fn commit() {
    intrinsic!(|scope| {
        scope.register(&WgmmaCommitGroupOp::new(scope.ctx_mut()));
    })
}

/// A word of shared memory taken for the barrier that it holds: barriers that are counted.
#[cube]
#[allow(unused_variables)]
pub(crate) fn barrier_of(word: &u64) -> Barrier {
    intrinsic!(|scope| {
        let word = word.value(scope);
        let inner = BarrierType::get(scope.ctx(), BarrierLevel::Cube).into();
        let kind = PointerType::get(scope.ctx(), inner, AddressSpace::Shared).into();
        let op = ReinterpretCastOp::new(scope.ctx_mut(), kind, word);
        let barrier: NativeExpand<Barrier> = scope.register_with_result(&op).into();
        barrier
    })
}

/// Asks for the panels of so many rows of a head, into a stage of shared memory. `full` is the word
/// of the barrier that says when they have come.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn ask<E: Float>(
    full: &u64,
    from: &TensorMap<E, Tiled>,
    stages: &mut Shared<[E]>,
    batch: usize,
    head: usize,
    row: usize,
    stage: usize,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
) {
    expect(full, rows, head_dim);
    ask_part::<E>(full, from, stages, batch, head, row, stage, 0usize, rows, rows, head_dim);
}

/// Says that so many rows will come.
#[cube]
pub(crate) fn expect(full: &u64, #[comptime] rows: usize, #[comptime] head_dim: usize) {
    barrier_of(full).arrive_and_expect_tx(1, comptime!((rows * head_dim * 2) as u32));
}

/// Asks for `part` rows of a head, into the rows of a stage of `rows` from `at` on.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn ask_part<E: Float>(
    full: &u64,
    from: &TensorMap<E, Tiled>,
    stages: &mut Shared<[E]>,
    batch: usize,
    head: usize,
    row: usize,
    stage: usize,
    #[comptime] at: usize,
    #[comptime] part: usize,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
) {
    let full = barrier_of(full);
    #[unroll]
    for panel in 0..comptime!(head_dim / PANEL) {
        let first = stage * comptime!(rows * head_dim) + comptime!(PANEL * (panel * rows + at));
        full.tma_load_4d(
            from,
            &mut stages[first..first + comptime!(PANEL * part)],
            batch as i32,
            head as i32,
            row as i32,
            comptime!((panel * PANEL) as i32),
        );
    }
}

/// Asks for the scores of a block: the products of 64 rows of a tile of `of_rows` and of `block`
/// columns.
#[cube]
pub(crate) fn ask_scores<E: Float>(
    scores: &mut Array<f32>,
    rows: u64,
    columns: u64,
    #[comptime] of_rows: usize,
    #[comptime] block: usize,
    #[comptime] head_dim: usize,
) {
    let of_rows = comptime!(along_rows(of_rows, head_dim));
    let of_columns = comptime!(along_rows(block, head_dim));
    #[unroll]
    for place in 0..comptime!(block / 2) {
        scores[place] = 0.0;
    }
    pin::<f32>(&*scores);
    fence();
    #[unroll]
    for depth in 0..comptime!(head_dim / DEPTH) {
        multiply_tiles::<E>(
            scores,
            rows + comptime!(part(of_rows, depth)),
            columns + comptime!(part(of_columns, depth)),
            block,
        );
    }
    commit();
}
