use std::{collections::BTreeMap, fmt::Debug};

use burn::tensor::{DType, Device, Int, Tensor};

use super::RotaryEmbedding;
use crate::{
    Error, Result, check,
    ops::{Ops, RotaryTables, rotate},
};

/// Encodes positions into queries and keys.
pub trait PositionEncoding: Debug + Send + Sync {
    /// Encodes `positions` into `x`.
    ///
    /// # Shapes
    /// - `x`: `[batch, heads, tokens, head_dim]`
    /// - `positions`: `[batch, heads or 1, tokens]`, within `-1..max_positions`; −1 is padding,
    ///   whose result does not matter as long as it is finite
    /// - returns `[batch, heads, tokens, head_dim]`, of the type of `x`
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4>;

    /// Encodes like [`encode`](Self::encode), where the caller knows that all positions are below
    /// `end`, so that tables of positions need not reach further. A cache calls this one.
    fn encode_below(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let _ = end;
        self.encode(x, positions)
    }

    /// Encodes queries, of which positions may change more than of keys (Llama 4 scales those of
    /// layers without rotation). By itself it encodes them as [`encode_below`](Self::encode_below).
    /// Not called where there is a [rotary embedding](Self::rotary).
    fn encode_queries(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        self.encode_below(x, positions, end)
    }

    /// Returns the rotary embedding if it is one, so that kernels can encode rows, or keys as they
    /// read them. Others are encoded by [`encode`](Self::encode).
    fn rotary(&self) -> Option<&RotaryEmbedding> {
        None
    }

    /// Returns one more than the highest position that can be encoded; `None` if there is no end.
    fn max_positions(&self) -> Option<usize>;

    /// Takes back what [`encode_below`](Self::encode_below) has done, with the same arguments;
    /// `None` if it cannot.
    fn decode_below(
        &self,
        x: Tensor<4>,
        positions: Tensor<3, Int>,
        end: usize,
    ) -> Option<Tensor<4>> {
        let _ = (x, positions, end);
        None
    }

    /// Whether the model has already rotated queries and keys, so that [`encode`](Self::encode)
    /// leaves them as they are. Policies that need them before their rotation are then refused
    /// ([`Error::RotatedKeys`](crate::Error::RotatedKeys)), unless the rotation is
    /// [known](Self::rotated_by).
    fn comes_rotated(&self) -> bool {
        false
    }

    /// Returns how the model has rotated queries and keys that [come
    /// rotated](Self::comes_rotated), if it says so.
    fn rotated_by(&self) -> Option<RotatedBy<'_>> {
        None
    }

    /// Checks that heads of `head_dim` channels on `device` can be encoded. A cache calls it before
    /// every call.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) or
    /// [`Error::WrongDevice`](crate::Error::WrongDevice).
    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        let _ = (head_dim, device);
        Ok(())
    }
}

/// Encoding of a model that rotates queries and keys itself, and says how: see
/// [`Rotated::by`](super::Rotated::by).
#[derive(Clone, Copy, Debug)]
pub struct RotatedBy<'a> {
    pub(crate) encoding: &'a dyn PositionEncoding,
    pub(crate) over_columns: bool,
}

impl RotatedBy<'_> {
    /// Says that the model counts [columns](crate::KvCache::columns_seen), padding included: it
    /// rotates all rows of a padded batch from one start.
    pub fn over_columns(self) -> Self {
        Self { over_columns: true, ..self }
    }
}

impl PositionEncoding for RotatedBy<'_> {
    fn encode(&self, x: Tensor<4>, _positions: Tensor<3, Int>) -> Tensor<4> {
        x
    }

    fn max_positions(&self) -> Option<usize> {
        None
    }

    fn comes_rotated(&self) -> bool {
        true
    }

    fn rotated_by(&self) -> Option<RotatedBy<'_>> {
        Some(*self)
    }

    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        self.encoding.check(head_dim, device)
    }
}

/// Encodes rows at positions below `end` by `encoding`, with `ops` where it is a rotary embedding.
pub(crate) fn encode(
    encoding: &dyn PositionEncoding,
    x: Tensor<4>,
    positions: Tensor<3, Int>,
    end: usize,
    ops: &dyn Ops,
) -> Result<Tensor<4>> {
    match encoding.rotary() {
        Some(rotary) => {
            let (cosines, sines) = rotary.tables(end);
            Ok(ops.rotate(x, RotaryTables { cosines, sines, positions })?)
        }
        None => Ok(encoding.encode_below(x, positions, end)),
    }
}

/// Encodes queries at positions below `end`, as [`encode`] does rows.
pub(crate) fn encode_queries(
    encoding: &dyn PositionEncoding,
    x: Tensor<4>,
    positions: Tensor<3, Int>,
    end: usize,
    ops: &dyn Ops,
) -> Result<Tensor<4>> {
    match encoding.rotary() {
        Some(_) => encode(encoding, x, positions, end, ops),
        None => Ok(encoding.encode_queries(x, positions, end)),
    }
}

/// Encodes queries as [`encode_queries`] does, and keys as [`encode`]; positions are
/// `[batch, 1, tokens]`.
pub(crate) fn encode_both(
    encoding: &dyn PositionEncoding,
    (queries, keys): (Tensor<4>, Tensor<4>),
    positions: Tensor<3, Int>,
    end: usize,
    ops: &dyn Ops,
) -> Result<(Tensor<4>, Tensor<4>)> {
    match encoding.rotary() {
        Some(rotary) => {
            let (cosines, sines) = rotary.tables(end);
            Ok(ops.rotate_both(queries, keys, RotaryTables { cosines, sines, positions })?)
        }
        None => Ok((
            encoding.encode_queries(queries, positions.clone(), end),
            encoding.encode_below(keys, positions, end),
        )),
    }
}

/// Takes back what [`encode`] has done.
///
/// # Errors
/// [`Error::EncodingNotReversible`] if the encoding cannot.
pub(crate) fn decode(
    encoding: &dyn PositionEncoding,
    x: Tensor<4>,
    positions: Tensor<3, Int>,
    end: usize,
    ops: &dyn Ops,
) -> Result<Tensor<4>> {
    if let Some(rotary) = encoding.rotary() {
        let (cosines, sines) = rotary.inverse_tables(end);
        return Ok(ops.rotate(x, RotaryTables { cosines, sines, positions })?);
    }
    let decoded = encoding.decode_below(x, positions, end);
    decoded.ok_or_else(|| Error::EncodingNotReversible { encoding: format!("{encoding:?}") })
}

/// Mean of the matrices that encode a query, multiplied from the right, at the positions
/// `first..first + count`: `[rows, 1, head_dim, head_dim]`, f32, one matrix per element of `first`.
/// Positions that cannot be encoded are left out; if none of them can, the last encodable position
/// is used.
pub(crate) fn mean_rotation(
    encoding: &dyn PositionEncoding,
    first: &[usize],
    count: usize,
    head_dim: usize,
    device: &Device,
) -> Result<Tensor<4>> {
    let end = encoding.max_positions().unwrap_or(usize::MAX);
    let basis = Tensor::<2>::eye(head_dim, device).cast(DType::F32);
    let of_row = |first: usize| {
        let first = first.min(end.saturating_sub(1));
        let count = count.min(end - first).max(1);
        match encoding.rotary() {
            Some(rotary) => {
                let (cosines, sines) = rotary.tables(first + count);
                let mean = |table: Tensor<2>| {
                    let mean = table.narrow(0, first, count).mean_dim(0);
                    Tensor::cat(vec![mean.clone(), mean], 1)
                };
                let half = head_dim / 2;
                let (left, right) =
                    (basis.clone().narrow(1, 0, half), basis.clone().narrow(1, half, half));
                let turned = Tensor::cat(vec![right.neg(), left], 1);
                basis.clone() * mean(cosines) + turned * mean(sines)
            }
            None => {
                let rows = basis.clone().unsqueeze_dim::<3>(1).expand([head_dim, count, head_dim]);
                let rows = rows.reshape([1, 1, head_dim * count, head_dim]);
                let positions =
                    Tensor::<1, Int>::arange(first as i64..(first + count) as i64, device);
                let positions = positions.reshape([1, 1, count]).repeat_dim(2, head_dim);
                let encoded = encoding.encode_queries(rows, positions, first + count);
                encoded.reshape([head_dim, count, head_dim]).mean_dim(1).squeeze_dim::<2>(1)
            }
        }
    };
    // Rows of a batch are often as long as each other.
    let mut known = BTreeMap::new();
    let all =
        first.iter().map(|&first| known.entry(first).or_insert_with(|| of_row(first)).clone());
    Ok(Tensor::<2>::stack::<3>(all.collect(), 0).unsqueeze_dim::<4>(1))
}

/// Encoding of layers without positions in their queries and keys, such as those of models that add
/// positions to their embeddings. For a model that rotates queries and keys itself use
/// [`Rotated`](super::Rotated).
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPositionEncoding;

impl PositionEncoding for NoPositionEncoding {
    fn encode(&self, x: Tensor<4>, _positions: Tensor<3, Int>) -> Tensor<4> {
        x
    }

    fn decode_below(
        &self,
        x: Tensor<4>,
        _positions: Tensor<3, Int>,
        _end: usize,
    ) -> Option<Tensor<4>> {
        Some(x)
    }

    fn max_positions(&self) -> Option<usize> {
        None
    }
}

impl PositionEncoding for RotaryEmbedding {
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        self.encode_below(x, positions, self.max_positions)
    }

    fn encode_below(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let (cosines, sines) = self.tables(end);
        rotate(x, RotaryTables { cosines, sines, positions })
    }

    fn decode_below(
        &self,
        x: Tensor<4>,
        positions: Tensor<3, Int>,
        end: usize,
    ) -> Option<Tensor<4>> {
        let (cosines, sines) = self.inverse_tables(end);
        Some(rotate(x, RotaryTables { cosines, sines, positions }))
    }

    fn rotary(&self) -> Option<&RotaryEmbedding> {
        Some(self)
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.max_positions)
    }

    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        check_table(self.head_dim(), self.device(), head_dim, device)
    }
}

/// Checks that a table on the device `found`, for heads of `channels` channels, encodes heads of
/// `head_dim` channels on `device`.
pub(super) fn check_table(
    channels: usize,
    found: &Device,
    head_dim: usize,
    device: &Device,
) -> Result<()> {
    if channels != head_dim {
        let must_be = format!("{head_dim}, as in the cache");
        return check::refuse("head_dim of the rotary embedding", channels, must_be);
    }
    if found != device {
        return Err(Error::WrongDevice {
            tensor: "the rotary embedding",
            expected: format!("{device:?}"),
            found: format!("{found:?}"),
        });
    }
    Ok(())
}

/// Encoding of keys that a store holds without positions.
#[derive(Clone, Debug)]
pub struct Encode<'a> {
    /// Encoding.
    pub encoding: &'a dyn PositionEncoding,
    /// Position at which each entry is encoded, `[batch, kv_heads or 1, entries]`.
    pub positions: Tensor<3, Int>,
    /// Upper bound of these positions: all are below it.
    pub end: usize,
}

impl Encode<'_> {
    /// Returns the tables that a kernel needs to encode keys of this type as it reads them; `None`
    /// if it cannot.
    pub(crate) fn rotary(&self, keys: DType) -> Option<RotaryTables> {
        let (cosines, sines) = self.encoding.rotary()?.tables_for(keys, self.end);
        Some(RotaryTables { cosines, sines, positions: self.positions.clone() })
    }

    /// Returns the keys, encoded if `encode` says how.
    pub(crate) fn keys(encode: Option<&Self>, keys: Tensor<4>, ops: &dyn Ops) -> Result<Tensor<4>> {
        match encode {
            None => Ok(keys),
            Some(Self { encoding, positions, end }) => {
                self::encode(*encoding, keys, positions.clone(), *end, ops)
            }
        }
    }
}
