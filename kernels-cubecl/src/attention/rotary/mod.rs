//! Rotary position encodings: of rows, and the tables that attention kernels turn keys by as they
//! read them.

mod backend;
mod kernel;

use briquette_ops::{Result, RotaryTables};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{RotateBackend, Tables};
use crate::{attention::decode::split::Heads, common::check::Check};

/// Refuses tables that do not fit these heads and columns.
pub(crate) fn check_tables(
    tables: &RotaryTables,
    check: &Check,
    heads: Heads,
    columns: usize,
) -> Result<()> {
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let rows = tables.cosines.dims()[0];
    check.value("head_dim", head_dim, head_dim.is_multiple_of(2), "even")?;
    check.shape("cosines", tables.cosines.dims(), [rows, head_dim / 2])?;
    check.shape("sines", tables.sines.dims(), [rows, head_dim / 2])?;
    let per = if tables.positions.dims()[1] == 1 { 1 } else { kv_heads };
    check.shape("positions", tables.positions.dims(), [batch, per, columns])?;
    check.value("the rows of cosines", rows, rows > 0, "at least 1")?;
    check.value("columns", columns, columns > 0, "at least 1")?;
    check.countable("cosines", &tables.cosines.dims())
}

/// Turns the rows of `x`, `[batch, heads, tokens, head_dim]`, each to its position; what is less
/// than 0 is 0, and what is more than the tables have is their last row. Positions are
/// `[batch, heads or 1, tokens]`. Returns as many rows of the same type.
///
/// One launch: a unit turns up to four pairs of channels, in f32, and rounds once. It reads and
/// writes tokens · head_dim numbers per head, and of each token head_dim numbers of the tables,
/// which caches hold. Tensor operations go through memory a dozen times, and hand over as many
/// launches, which is what a decode step waits for.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row, or the device has no
/// kernels or cannot launch so much.
pub fn rotate(x: Tensor<4>, rotary: RotaryTables) -> Result<Tensor<4>> {
    let check = Check::new("rotate", &x.device())?;
    let [_, heads, ..] = x.dims();
    check_rows(&check, x.dims(), heads, &rotary)?;
    Ok(Tensor::from_dispatch(Dispatch::rotate(x.into_dispatch(), dispatched(rotary))))
}

/// Turns queries, `[batch, query_heads, tokens, head_dim]`, and keys,
/// `[batch, kv_heads, tokens, head_dim]`, as [`rotate`] does, in one launch. Positions are
/// `[batch, 1, tokens]`.
///
/// # Errors
/// As [`rotate`].
pub fn rotate_both(
    queries: Tensor<4>,
    keys: Tensor<4>,
    rotary: RotaryTables,
) -> Result<(Tensor<4>, Tensor<4>)> {
    let check = Check::new("rotate", &queries.device())?;
    let [batch, query_heads, tokens, head_dim] = queries.dims();
    let [_, kv_heads, ..] = keys.dims();
    check.shape("keys", keys.dims(), [batch, kv_heads, tokens, head_dim])?;
    check.same_type("keys", keys.dtype(), queries.dtype())?;
    check.shape("positions", rotary.positions.dims(), [batch, 1, tokens])?;
    check_rows(&check, keys.dims(), kv_heads, &rotary)?;
    check_rows(&check, queries.dims(), query_heads + kv_heads, &rotary)?;
    let [queries, keys] = [queries, keys].map(Tensor::into_dispatch);
    let (queries, keys) = Dispatch::rotate_both(queries, keys, dispatched(rotary));
    Ok((Tensor::from_dispatch(queries), Tensor::from_dispatch(keys)))
}

fn dispatched(rotary: RotaryTables) -> Tables<Dispatch> {
    let RotaryTables { cosines, sines, positions } = rotary;
    let sines = sines.cast(cosines.dtype()).into_dispatch();
    Tables { cosines: cosines.into_dispatch(), sines, positions: positions.into_dispatch() }
}

/// Checks rows, and a launch of cubes of so many heads for them.
fn check_rows(
    check: &Check,
    rows: [usize; 4],
    heads_of_cubes: usize,
    rotary: &RotaryTables,
) -> Result<()> {
    let [batch, heads, tokens, head_dim] = rows;
    check.some([("batch", batch), ("heads", heads), ("tokens", tokens), ("head_dim", head_dim)])?;
    let of_heads = Heads { batch, query_heads: heads, kv_heads: heads, head_dim };
    check_tables(rotary, check, of_heads, tokens)?;
    check.countable("x", &rows)?;
    let cubes = (tokens * (head_dim / 2)).div_ceil(kernel::UNITS);
    check.cubes([cubes, heads_of_cubes, batch])?;
    let hardware = &check.client().properties().hardware;
    check.at_most("units of a cube", kernel::UNITS, hardware.max_units_per_cube as usize)
}
