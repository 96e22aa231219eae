mod backend;
mod kernel;

use briquette_ops::{GlobalLocalInput, PoolKind, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::{backend::GlobalLocalBackend, kernel::UNITS};
use crate::common::check::Check;

/// The Global-Local scores of EMS (Li et al., 2024), f32, `[batch, kv_heads, columns]`: with g what
/// all queries gave to a column and l what those of the windows did, both means over query heads
/// that share a kv head, max(g · Σ l / Σ g, l), pooled along the columns.
///
/// Two launches: a cube a head adds g and l up, in an order that is always the same; then a unit a
/// column does the rest. A column is read twice, and once more for each that it is pooled with,
/// from a cache of the device: 12 · n bytes. It writes 4.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, a dimension is empty, `pool` is not
/// odd, or the device has no kernels or cannot launch so much.
pub fn global_local(input: GlobalLocalInput) -> Result<Tensor<3>> {
    let check = Check::new("global_local", &input.sums.device())?;
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    // Columns pooled over, and whether the highest is taken.
    let (pool, most) = pool.map_or((1, false), |pool| (pool.kernel, pool.kind == PoolKind::Max));
    let dims @ [batch, heads, columns] = sums.dims();
    check.some([
        ("batch", batch),
        ("heads", heads),
        ("kv_heads", kv_heads),
        ("columns", columns),
    ])?;
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
