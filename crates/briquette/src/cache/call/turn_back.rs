//! Queries and keys that come rotated, turned back for policies that need them before that.

use burn::tensor::{Int, Tensor};

use super::input::Projections;
use crate::{
    Error, Policy, Result,
    cache::progress::Progress,
    ops::{Ops, constant_ints},
    position::{PositionEncoding, RotatedBy, decode},
};

/// The rotation of a model that is taken back, at the positions that the model has counted.
pub(in crate::cache) struct TurnBack<'a> {
    /// The encoding that the model has applied, and that the cache applies instead.
    pub(in crate::cache) encoding: &'a dyn PositionEncoding,
    positions: Tensor<3, Int>,
    end: usize,
}

impl<'a> TurnBack<'a> {
    /// Returns the rotation to take back; `None` if the policy takes queries and keys as they come.
    /// `positions` are those of the tokens, `[batch, 1, new]`, and all are below `end`; `progress`
    /// tells the padding before them.
    ///
    /// # Errors
    /// [`Error::PositionOverflow`].
    pub(in crate::cache) fn of(
        encoding: &'a dyn PositionEncoding,
        policy: &Policy,
        (positions, end): (&Tensor<3, Int>, usize),
        progress: &Progress,
    ) -> Result<Option<Self>> {
        let applied = encoding.rotated_by().filter(|_| policy.needs_unrotated().is_some());
        let Some(RotatedBy { encoding, over_columns }) = applied else { return Ok(None) };
        let both = progress.columns().iter().zip(progress.seen());
        // All padding of a row comes before the tokens of this call.
        let padding: Vec<usize> =
            both.map(|(all, own)| if over_columns { all - own } else { 0 }).collect();
        let most = padding.iter().copied().max().unwrap_or(0);
        if let Some(max) = encoding.max_positions().filter(|&max| end + most > max) {
            return Err(Error::PositionOverflow { position: (end + most).saturating_sub(1), max });
        }
        let mut positions = positions.clone();
        if most > 0 {
            let rows = padding.len();
            let by = padding.into_iter().map(|columns| columns as i64).collect();
            let by = constant_ints("padding", by, [rows, 1, 1], &positions.device());
            positions = positions.clone() + by.expand(positions.dims());
        }
        Ok(Some(Self { encoding, positions, end: end + most }))
    }

    /// Returns rows as they were before the model rotated them.
    ///
    /// # Errors
    /// [`Error::EncodingNotReversible`].
    pub(in crate::cache) fn apply(&self, x: Tensor<4>, ops: &dyn Ops) -> Result<Tensor<4>> {
        decode(self.encoding, x, self.positions.clone(), self.end, ops)
    }
}

impl Projections {
    /// Turns queries and keys back where [`TurnBack::of`] says so. Returns with them the encoding
    /// that the cache applies.
    ///
    /// # Errors
    /// [`Error::PositionOverflow`], [`Error::EncodingNotReversible`].
    pub(in crate::cache) fn turned_back<'a>(
        self,
        encoding: &'a dyn PositionEncoding,
        policy: &Policy,
        places: (&Tensor<3, Int>, usize),
        progress: &Progress,
        ops: &dyn Ops,
    ) -> Result<(Self, &'a dyn PositionEncoding)> {
        let Some(turned) = TurnBack::of(encoding, policy, places, progress)? else {
            return Ok((self, encoding));
        };
        let (queries, keys) = (turned.apply(self.queries, ops)?, turned.apply(self.keys, ops)?);
        Ok((Self { queries, keys, ..self }, turned.encoding))
    }
}
