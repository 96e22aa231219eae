mod extension;
mod kernel;

use briquette_ops::{GlobalLocalInput, PoolKind, Result};
use burn::{
    backend::{Dispatch, TensorMetadata},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::{extension::GlobalLocalBackend, kernel::UNITS};
use crate::check::Check;

/// The Global-Local scores of EMS (Li et al., 2024), f32, `[batch, kv_heads, columns]`: with g what all queries gave to a
/// column and l what those of the windows did, both means over query heads that share a kv head,
/// max(g · Σ l / Σ g, l), pooled along the columns.
///
/// Two launches: a cube a head adds g and l up, in an order that is always the same; then a unit a column does the rest. A
/// column is read twice, and once more for each that it is pooled with, from a cache of the device: 12 · n bytes. It writes 4.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, a dimension is empty, `pool` is not odd, or the device has no
/// kernels or cannot launch so much.
pub fn global_local(input: GlobalLocalInput) -> Result<Tensor<3>> {
    let check = Check::new("global_local", &input.sums.device())?;
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    // Columns pooled over, and whether the highest is taken.
    let (pool, most) = pool.map_or((1, false), |pool| (pool.kernel, pool.kind == PoolKind::Max));
    let dims @ [batch, heads, columns] = sums.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("kv_heads", kv_heads)?;
    some("columns", columns)?;
    let grouped = heads.is_multiple_of(kv_heads);
    check.value("heads", heads, grouped, format!("a multiple of {kv_heads}"))?;
    check.value("pool", pool, pool % 2 == 1, "odd")?;
    check.shape("past", past.dims(), dims)?;
    check.shape("current", current.dims(), dims)?;
    for (name, track) in [("sums", &sums), ("past", &past), ("current", &current)] {
        check.f32(name, track.dtype())?;
    }
    check.countable("sums", &dims)?;
    check.cubes([batch * kv_heads, batch * kv_heads, 1])?;
    check.cubes([columns.div_ceil(UNITS), 1, 1])?;
    check.tensors(5)?;
    let [sums, past, current] = [sums, past, current].map(Tensor::into_dispatch);
    Ok(Tensor::from_dispatch(Dispatch::global_local(
        sums,
        past,
        current,
        kv_heads,
        window,
        pool / 2,
        most,
    )))
}

/// Sums, and what both windows gave.
fn launch(
    tracks: [CubeTensor; 3],
    kv_heads: usize,
    window: usize,
    reach: usize,
    most: bool,
) -> CubeTensor {
    let (client, device) = (tracks[0].client.clone(), tracks[0].device.clone());
    let shape = tracks[0].shape();
    let (batch, columns) = (shape[0], shape[2]);
    let group = shape[1] / kv_heads;
    let outside = columns.saturating_sub(window);
    let empty = |shape| empty_device_dtype(client.clone(), device.clone(), shape, DType::F32);
    let levels = empty(Shape::from([batch, kv_heads]));
    let scores = empty(Shape::from([batch, kv_heads, columns]));
    let lists = (batch * kv_heads) as u32;
    let [sums, past, current] = tracks.clone().map(CubeTensor::into_tensor_arg);
    kernel::level::launch(
        &client,
        CubeCount::Static(lists, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        sums,
        past,
        current,
        levels.clone().into_tensor_arg(),
        group,
    );
    let [sums, past, current] = tracks.map(CubeTensor::into_tensor_arg);
    kernel::global_local::launch(
        &client,
        CubeCount::Static(columns.div_ceil(UNITS) as u32, lists, 1),
        CubeDim::new_1d(UNITS as u32),
        sums,
        past,
        current,
        levels.into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        outside,
        reach,
        most,
        group,
    );
    scores
}
