use burn::tensor::{Device, Tensor, TensorData};

use super::window::Queries;
use crate::{
    Result,
    device::Rows,
    prefix::{Parts, PrefixError},
    rows::select_list,
    view::HeldQueries,
};

/// The queries of a layer since its last compression, before their positions are encoded, as they
/// came.
#[derive(Clone, Debug, Default)]
pub(in crate::cache) struct QueryLog {
    pieces: Vec<(Queries, Vec<i64>)>,
}

impl QueryLog {
    /// All its queries and the `new` ones, which have these `positions` on the host.
    pub(in crate::cache) fn with(&self, new: &Queries, positions: &[i64]) -> HeldQueries {
        let [batch, ..] = new.queries.dims();
        let pieces = self.pieces.iter().map(|(queries, positions)| (queries, &positions[..]));
        let pieces: Vec<_> = pieces.chain([(new, positions)]).collect();
        let row = |row: usize| {
            let of_piece = |(_, positions): &(&Queries, &[i64])| {
                let columns = positions.len() / batch;
                positions[row * columns..][..columns].to_vec()
            };
            pieces.iter().flat_map(of_piece).collect()
        };
        let positions = (0..batch).map(row).collect();
        let dtype = new.queries.dtype();
        let tensors = pieces.iter().map(|(queries, _)| queries.queries.clone().cast(dtype));
        HeldQueries { queries: Tensor::cat(tensors.collect(), 2), positions }
    }

    pub(in crate::cache) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(in crate::cache) fn push(&mut self, new: Queries, positions: &[i64]) {
        self.pieces.push((new, positions.to_vec()));
    }

    /// Returns the parts of a file. Positions come from the host, which alone knows the
    /// [cleared](Self::clear_rows) rows, and are increased by one, so that padding is 0.
    pub(in crate::cache) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put_numbers("pieces", [self.pieces.len()]);
        for (number, (piece, positions)) in self.pieces.iter().enumerate() {
            let places = positions.iter().map(|&position| usize::try_from(position + 1));
            let places = places.map(|place| place.unwrap_or(0));
            parts.put_numbers(&format!("{number}.positions"), places.collect::<Vec<_>>());
            parts.put(&format!("{number}.queries"), &piece.queries)?;
        }
        Ok(parts)
    }

    /// Restores the log that [`save`](Self::save) wrote, of queries
    /// `[batch, query_heads, head_dim]` per token.
    pub(in crate::cache) fn restore(
        mut parts: Parts,
        [batch, heads, head_dim]: [usize; 3],
        device: &Device,
    ) -> Result<Self> {
        let mut pieces = Vec::new();
        for number in 0..parts.take_number("pieces")? {
            let name = format!("{number}.positions");
            let places = parts.take_numbers(&name)?;
            let columns = places.len() / batch;
            if columns == 0 || columns * batch != places.len() {
                let reason = format!("has {} numbers for {batch} rows", places.len());
                return Err(PrefixError::contents(&name, reason).into());
            }
            let of_place = |place| i64::try_from(place).map(|place| place - 1);
            let positions: std::result::Result<Vec<i64>, _> =
                places.into_iter().map(of_place).collect();
            let positions = positions
                .map_err(|error| PrefixError::contents(&name, format!("is too large: {error}")))?;
            let dims = [batch, heads, columns, head_dim];
            let data = TensorData::new(positions.clone(), [batch, 1, columns]);
            let queries = Queries {
                queries: parts.take_float(&format!("{number}.queries"), dims, device)?,
                positions: Tensor::from_data(data, device),
            };
            pieces.push((queries, positions));
        }
        parts.finish()?;
        Ok(Self { pieces })
    }

    /// Returns the log of these of `batch` rows.
    pub(in crate::cache) fn select_rows(&self, batch: usize, rows: &[usize]) -> Self {
        let pieces = self.pieces.iter();
        let selected =
            pieces.map(|(piece, at)| (piece.select_rows(rows), select_list(at, batch, rows)));
        Self { pieces: selected.collect() }
    }

    /// Returns the log with the batch rows of another behind its own; there are so many `rows` in
    /// each. A piece is padding in the rows of the other.
    pub(in crate::cache) fn append_rows(&self, more: &Self, rows: [usize; 2]) -> Self {
        let [own, others] = rows;
        let padded = |(piece, at): &(Queries, Vec<i64>), before: usize, behind: usize| {
            let columns = at.len() / (own + others - before - behind);
            let nothing = |rows: usize| vec![-1; rows * columns];
            let positions = [nothing(before), at.clone(), nothing(behind)].concat();
            (piece.with_padding_rows(before, behind), positions)
        };
        let of_own = self.pieces.iter().map(|piece| padded(piece, 0, others));
        let of_more = more.pieces.iter().map(|piece| padded(piece, own, 0));
        Self { pieces: of_own.chain(of_more).collect() }
    }

    pub(in crate::cache) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Forgets the queries of batch rows in which tokens have `arrived`: a row that only received
    /// padding waits for its own.
    pub(in crate::cache) fn clear_rows(&mut self, arrived: &[usize]) {
        for (_, positions) in &mut self.pieces {
            let columns = positions.len() / arrived.len();
            for (row, &arrived) in positions.chunks_mut(columns).zip(arrived) {
                if arrived > 0 {
                    row.fill(-1);
                }
            }
        }
        self.pieces.retain(|(_, positions)| positions.iter().any(|&position| position >= 0));
    }

    pub(in crate::cache) fn bytes(&self, rows: Rows) -> usize {
        self.pieces.iter().map(|(piece, _)| piece.bytes(rows)).sum()
    }
}
