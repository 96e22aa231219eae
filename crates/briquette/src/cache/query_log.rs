use burn::tensor::Tensor;

use super::query_window::Queries;
use crate::{
    device::{Rows, buffer_bytes},
    view::HeldQueries,
};

/// The queries of a layer since its last compression, before their positions are encoded, as they came.
#[derive(Clone, Debug, Default)]
pub(super) struct QueryLog {
    pieces: Vec<(Queries, Vec<i64>)>,
}

impl QueryLog {
    /// All of them, `new` the newest, whose positions on the host are `positions`.
    pub(super) fn with(&self, new: &Queries, positions: &[i64]) -> HeldQueries {
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

    /// Takes the newest queries in.
    pub(super) fn push(&mut self, new: Queries, positions: &[i64]) {
        self.pieces.push((new, positions.to_vec()));
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Forgets those of the batch rows that tokens have `arrived` in: a row that only received padding waits for its own.
    pub(super) fn clear_rows(&mut self, arrived: &[usize]) {
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

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let of_piece = |(piece, _): &(Queries, Vec<i64>)| {
            buffer_bytes(&piece.queries, rows) + buffer_bytes(&piece.positions, rows)
        };
        self.pieces.iter().map(of_piece).sum()
    }
}
