//! Tiles in shared memory as operands of tensor cores: m16n8k16 products of 16-bit numbers, sums in
//! f32.
//!
//! A stage holds rows of `head_dim` numbers in chunks of 16 bytes, [`pitch`] chunks a row: one more
//! than the row has, so that eight rows read at once by `ldmatrix` lie in different banks.

use cubecl::{
    cmma::{MatrixIdent, MmaDefinition},
    prelude::*,
};

/// Numbers of a chunk of 16 bytes.
pub(crate) const CHUNK: usize = 8;

/// Most that a score may lie above the one its row's weights are relative to: these are e⁵ at most,
/// which a 16-bit number holds as exactly as 1.
pub(crate) const SLACK: f32 = 5.0;

/// Chunk of 16 bytes.
pub(crate) type Chunk<E> = Vector<E, Const<8>>;
/// Two numbers, a register of a fragment of A or B, or two sums of an accumulator.
pub(crate) type Pair<E> = Vector<E, Const<2>>;

/// Chunks from one row of a stage to the next.
pub(crate) const fn pitch(head_dim: usize) -> usize {
    head_dim / CHUNK + 1
}

/// The instruction.
#[cube]
pub(crate) fn definition<E: Float>() -> MmaDefinition<E, E, f32> {
    MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize)
}

/// Two numbers of a chunk that follow each other.
#[cube]
pub(crate) fn two<E: Float>(chunk: &Chunk<E>, #[comptime] which: usize) -> Pair<E> {
    let mut pair = Pair::<E>::empty();
    pair.insert(0usize, chunk.extract(which * 2));
    pair.insert(1usize, chunk.extract(which * 2 + 1));
    pair
}

/// The 16 × 16 operand A whose rows are those of the stage from `row` on, and whose columns are
/// numbers from `chunk` on.
#[cube]
pub(crate) fn rows_of_a<E: Float>(
    stage: &Shared<[Chunk<E>]>,
    row: usize,
    chunk: usize,
    #[comptime] pitch: usize,
) -> Array<Pair<E>> {
    let lane = UNIT_POS_PLANE as usize;
    let place = (row + lane % 16) * pitch + chunk + lane / 16;
    let slice = &stage[place..place + 1];
    definition::<E>().load_matrix::<_, Const<2>>(slice, MatrixIdent::A, 4usize, false)
}

/// Two 16 × 8 operands B, one after another, whose columns are the 16 rows of the stage from `row`
/// on, and whose rows are numbers from `chunk` on: for products with the transpose of what is
/// staged.
#[cube]
pub(crate) fn rows_of_b<E: Float>(
    stage: &Shared<[Chunk<E>]>,
    row: usize,
    chunk: usize,
    #[comptime] pitch: usize,
) -> Array<Pair<E>> {
    let lane = UNIT_POS_PLANE as usize;
    let place = (row + lane / 16 * 8 + lane % 8) * pitch + chunk + lane / 8 % 2;
    let slice = &stage[place..place + 1];
    definition::<E>().load_matrix::<_, Const<2>>(slice, MatrixIdent::B, 4usize, false)
}

/// Two 16 × 8 operands B, one after another, whose rows are the 16 rows of the stage from `row` on,
/// and whose columns are numbers from `chunk` on: for products with what is staged as it is.
#[cube]
pub(crate) fn columns_of_b<E: Float>(
    stage: &Shared<[Chunk<E>]>,
    row: usize,
    chunk: usize,
    #[comptime] pitch: usize,
) -> Array<Pair<E>> {
    let lane = UNIT_POS_PLANE as usize;
    let place = (row + lane % 16) * pitch + chunk + lane / 16;
    let slice = &stage[place..place + 1];
    definition::<E>().load_matrix::<_, Const<2>>(slice, MatrixIdent::B, 4usize, true)
}

/// Adds to an accumulator the product of `a` with one of the two operands of `b`.
#[cube]
pub(crate) fn multiply<E: Float>(
    a: &Array<Pair<E>>,
    b: &Array<Pair<E>>,
    #[comptime] which: usize,
    sums: &mut Array<Pair<f32>>,
) {
    let mut operand = Array::<Pair<E>>::new(2usize);
    operand[0] = b[which * 2];
    operand[1] = b[which * 2 + 1];
    definition::<E>().execute_inplace(a, &operand, sums);
}

/// Accumulator of zeros.
#[cube]
pub(crate) fn zeros() -> Array<Pair<f32>> {
    let mut sums = Array::<Pair<f32>>::new(2usize);
    sums[0] = Pair::<f32>::new(0.0);
    sums[1] = Pair::<f32>::new(0.0);
    sums
}

/// Accumulators of zeros.
#[cube]
pub(crate) fn accumulators(#[comptime] count: usize) -> Sequence<Array<Pair<f32>>> {
    let mut all = Sequence::<Array<Pair<f32>>>::new();
    #[unroll]
    for _ in 0..count {
        all.push(zeros());
    }
    all
}
