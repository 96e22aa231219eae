mod backend;
mod k_major;
mod merge;
mod plan;
mod planes;
mod step;
mod tiles;
mod units;
#[cfg(cubecl_0_12)]
mod wgmma;

use briquette_ops::{LinearInput, Result};
use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

pub use self::plan::MOST_LINEAR_ROWS;
#[cfg(cubecl_0_12)]
pub(crate) use self::wgmma::takes_gated;
#[cfg(cubecl_0_12)]
pub use self::wgmma::{LINEAR_SETTINGS, gated_linear, linear_by};
use self::{backend::LinearBackend, plan::LinearPlan, step::STEP};
use crate::common::{check::Check, optional::Optional, tile::support::multiplies};

/// The product of rows with a matrix of weights, `[rows, outputs]`, of the type of `x`: the linear
/// layers of a model. Sums are f32 and rounded once.
///
/// For few rows, which a decode step has, reading the weights is all that it costs if they are read
/// at the bandwidth of the device, so each is read once, and two cubes per multiprocessor have even
/// shares of them: a share may end in the middle of a column of tiles and go on in the next. What a
/// cube has found of a tile is written in f32, and a second, small launch adds such parts up in
/// their order (the decomposition is Stream-K's: Osama et al., 2023,
/// <https://arxiv.org/abs/2301.03598>). No atomics: two runs give the same bits.
///
/// On tensor cores weights of up to 32 rows of `x` are the 16 rows of a product and tokens its 8
/// columns, so that no more than 7 rows of `x` are made up. Weights go from memory to the registers
/// of the instruction: four lanes have the same 64 outputs, 16 bytes of each of eight rows, several
/// such loads on their way. Those outputs and numbers of the contraction may come in any order, as
/// long as tokens come in the same one. More rows, a prompt's too, go through shared memory with
/// the weights, in tiles of 64 × 128 or 128 × 128 sums; a cube has whole tiles where those keep the
/// device busy, else even shares. They are taken for 16-bit numbers where rows of weights begin on
/// 16 bytes, `outputs` is a multiple of 8 and `inputs` of 32; elsewhere units multiply in f32, and
/// a cube has all sums of 32 or 64 outputs, put together in shared memory: one launch.
///
/// Weights may be K-major too, the transpose of a matrix `[outputs, inputs]` in memory, as
/// checkpoints have them: what a lane loads of an output are the numbers of its registers as they
/// lie, and 16 outputs are a tile of so few that a cube has all of its sums: one launch, no parts.
/// That was faster than the other way for 1, 16, 64 and more rows (see `docs/lab/kernels.md`).
///
/// On CubeCL 0.12 (`next/burn-0.23.patch`) and Hopper, K-major weights of more than 8 rows are
/// multiplied by 128 units together, 64 rows and up to 256 outputs at a time, from shared memory,
/// where the tensor memory accelerator lays both sides, several stages ahead.
///
/// It reads inputs · outputs weights once for each 128 rows, and `x` once for each tile of 64 to
/// 256 outputs, from caches; it writes and reads 4 bytes per row and output for each of the parts,
/// which are as many as tiles and cubes together.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no row, input or
/// output, there are more than [`MOST_LINEAR_ROWS`] rows and no tensor cores for them, or the
/// device has no kernels or cannot launch so much.
pub fn linear(input: LinearInput) -> Result<Tensor<2>> {
    check(&input)?;
    let LinearInput { x, weight, bias } = input;
    let bias = Optional::of(bias);
    Ok(Tensor::from_dispatch(Dispatch::linear(x.into_dispatch(), weight.into_dispatch(), bias)))
}

/// Whether [`linear`] is known to be the way to compute this: it runs on tensor cores, or has no
/// more rows than a unit multiplies weights with that it has loaded once. `false` on a device
/// without kernels.
///
/// For one row of an 8B model's weights units take a fifth of the time of Burn's product through
/// Vulkan, and less than it takes with `autotune` (`docs/lab/backends.md`).
pub(crate) fn is_worthwhile(input: &LinearInput) -> bool {
    let Ok(check) = Check::new("linear", &input.x.device()) else { return false };
    input.x.dims()[0] <= units::ROWS || on_tensor_cores(&check, input.x.dtype(), &input.weight)
}

/// Whether [`linear`] is faster where these weights, `[inputs, outputs]`, are K-major.
pub(crate) fn prefers_k_major(weight: &Tensor<2>) -> bool {
    Check::new("linear", &weight.device())
        .is_ok_and(|check| on_tensor_cores(&check, weight.dtype(), weight))
}

/// Whether tensor cores take the product, if rows of weights lie as they need them.
fn on_tensor_cores(check: &Check, dtype: DType, weight: &Tensor<2>) -> bool {
    let [inputs, outputs] = weight.dims();
    plan::divides(inputs, outputs) && multiplies(check.client(), dtype, STEP)
}

fn check(input: &LinearInput) -> Result<()> {
    let check = Check::new("linear", &input.x.device())?;
    let [rows, inputs] = input.x.dims();
    let outputs = input.weight.dims()[1];
    check.shape("weight", input.weight.dims(), [inputs, outputs])?;
    check.same_type("weight", input.weight.dtype(), input.x.dtype())?;
    if let Some(bias) = &input.bias {
        check.shape("bias", bias.dims(), [outputs])?;
        check.same_type("bias", bias.dtype(), input.x.dtype())?;
    }
    check.some([("rows", rows), ("inputs", inputs), ("outputs", outputs)])?;
    check.countable("weight", &[inputs, outputs])?;
    check.countable("x", &[rows, inputs])?;
    check.countable("the product", &[rows, outputs])?;
    if rows > MOST_LINEAR_ROWS && on_tensor_cores(&check, input.x.dtype(), &input.weight) {
        check.cubes([plan::most_tiles(rows, outputs), 1, 1])?;
        return check.tensors(4);
    }
    check.at_most("rows", rows, MOST_LINEAR_ROWS)?;
    // More than either way to launch takes.
    let largest = LinearPlan::largest(check.client(), inputs, outputs);
    check.countable("the parts of sums", &[largest.parts(), rows, largest.tile])?;
    check.cubes([largest.cubes.max(outputs.div_ceil(units::NARROW)), rows, 1])?;
    check.tensors(4)
}
