//! Input of a cache is checked before anything changes.

use burn::tensor::{Device, Tensor};

use super::{CacheConfig, config::is_cache_type, place::Projections, progress::Phase};
use crate::{CacheShape, Error, Policy, Result, position::PositionEncoding};

/// Refuses what the cache was not made for: another layer, device, shape, type or `batch`.
pub(super) fn check(
    layer: usize,
    new: &Projections,
    shape: CacheShape,
    device: &Device,
    batch: Option<usize>,
) -> Result<()> {
    let CacheShape { layers, query_heads, kv_heads, head_dim } = shape;
    if layer >= layers {
        return Err(Error::LayerOutOfRange { layer, layers });
    }
    let Projections { queries, keys, values } = new;
    let [rows, _, columns, _] = queries.dims();
    for (tensor, x, heads) in
        [("queries", queries, query_heads), ("keys", keys, kv_heads), ("values", values, kv_heads)]
    {
        if x.device() != *device {
            return Err(Error::WrongDevice {
                tensor,
                expected: format!("{device:?}"),
                found: format!("{:?}", x.device()),
            });
        }
        if x.dims() != [rows, heads, columns, head_dim] {
            let expected = if tensor == "queries" {
                format!("[batch, {heads}, new, {head_dim}]")
            } else {
                format!("[{rows}, {heads}, {columns}, {head_dim}] like the queries")
            };
            return Err(Error::TensorShape { tensor, expected, found: x.dims().to_vec() });
        }
        if !is_cache_type(x.dtype()) || x.dtype() != queries.dtype() {
            let expected = if tensor == "queries" {
                "F32, F16 or BF16".to_owned()
            } else {
                format!("{:?} like the queries", queries.dtype())
            };
            return Err(Error::DataType { what: tensor, dtype: x.dtype(), expected });
        }
    }
    if rows == 0 || columns == 0 {
        return Err(Error::EmptyPrompt { row: 0, columns, padding: 0 });
    }
    match batch {
        Some(expected) if expected != rows => Err(Error::BatchChanged { expected, found: rows }),
        _ => Ok(()),
    }
}

/// Refuses an encoding that is not for heads of this cache, and one that leaves out what the policy needs.
pub(super) fn check_encoding(
    encoding: &dyn PositionEncoding,
    policy: &Policy,
    shape: CacheShape,
    device: &Device,
) -> Result<()> {
    encoding.check(shape.head_dim, device)?;
    let needs = encoding.comes_rotated().then(|| policy.needs_unrotated()).flatten();
    match needs {
        Some(needs) => Err(Error::RotatedKeys { policy: policy.name().to_owned(), needs }),
        None => Ok(()),
    }
}

/// Refuses NaN and infinity, where they are looked for. One number a tensor is read from the device.
pub(super) fn check_finite(
    layer: usize,
    new: &Projections,
    config: &CacheConfig,
    phase: Phase,
) -> Result<()> {
    if !config.input_check.applies(phase.is_prompt()) {
        return Ok(());
    }
    let count = |x: &Tensor<4>| x.clone().is_finite().bool_not().int().sum();
    let counts = Tensor::cat(vec![count(&new.queries), count(&new.keys), count(&new.values)], 0);
    let counts = counts.try_into_vec_as::<i64>()?;
    match ["queries", "keys", "values"].into_iter().zip(counts).find(|(_, count)| *count > 0) {
        Some((what, count)) => Err(Error::NotFinite { what, layer, count: count as usize }),
        None => Ok(()),
    }
}
