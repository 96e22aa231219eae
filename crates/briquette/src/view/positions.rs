use burn::tensor::{Tensor, TensorData};

use crate::{
    Result,
    ops::send,
    position::{Encode, PositionEncoding},
};

/// Encoding of positions in the queries and keys of a layer in this call.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    /// The encoding of keys, if they are held without positions.
    pub(crate) keys: Option<Encode<'a>>,
    pub(crate) encoding: &'a dyn PositionEncoding,
    /// The position per batch row that the next token will be encoded at.
    pub(crate) next: Vec<usize>,
}

impl Encoded<'_> {
    /// Encodes `x`, `[1, heads, 1, head_dim]`, at the positions `ahead` of the next token's, and
    /// returns the mean.
    pub(crate) fn ahead(&self, x: Tensor<4>, ahead: &[usize]) -> Result<Tensor<4>> {
        let end = self.encoding.max_positions().unwrap_or(usize::MAX);
        let of_row = |&next: &usize| {
            let mut positions: Vec<i64> = ahead
                .iter()
                .map(|ahead| next.saturating_add(*ahead))
                .filter(|position| *position < end)
                .map(|position| position as i64)
                .collect();
            if positions.is_empty() {
                positions.push(next.min(end.saturating_sub(1)) as i64);
            }
            let count = positions.len();
            let end = positions.iter().max().map_or(0, |last| *last as usize + 1);
            let positions = TensorData::new(positions, [1, 1, count]);
            let positions = send("positions to come", positions, &x.device());
            self.encoding.encode_queries(x.clone().repeat_dim(2, count), positions, end).mean_dim(2)
        };
        Ok(Tensor::cat(self.next.iter().map(of_row).collect(), 0))
    }
}
