//! Encodings of the channels behind others, which they leave as they are.

use burn::tensor::{Device, Int, Tensor};

use super::{PositionEncoding, RotatedBy};
use crate::Result;

/// Encodes the channels from `first` on.
#[derive(Debug)]
struct Behind<'a> {
    first: usize,
    encoding: &'a dyn PositionEncoding,
}

/// Calls `f` with an encoding of the channels from `first` on, whoever applies it.
pub(crate) fn behind<T>(
    first: usize,
    encoding: &dyn PositionEncoding,
    f: impl FnOnce(&dyn PositionEncoding) -> T,
) -> T {
    match encoding.rotated_by() {
        _ if first == 0 => f(encoding),
        Some(RotatedBy { encoding, over_columns }) => {
            f(&RotatedBy { encoding: &Behind { first, encoding }, over_columns })
        }
        None => f(&Behind { first, encoding }),
    }
}

impl Behind<'_> {
    fn split(&self, x: Tensor<4>) -> [Tensor<4>; 2] {
        let rest = x.dims()[3] - self.first;
        [x.clone().narrow(3, 0, self.first), x.narrow(3, self.first, rest)]
    }
}

impl PositionEncoding for Behind<'_> {
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        let [first, rest] = self.split(x);
        Tensor::cat(vec![first, self.encoding.encode(rest, positions)], 3)
    }

    fn encode_below(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let [first, rest] = self.split(x);
        Tensor::cat(vec![first, self.encoding.encode_below(rest, positions, end)], 3)
    }

    fn encode_queries(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let [first, rest] = self.split(x);
        Tensor::cat(vec![first, self.encoding.encode_queries(rest, positions, end)], 3)
    }

    fn max_positions(&self) -> Option<usize> {
        self.encoding.max_positions()
    }

    fn decode_below(
        &self,
        x: Tensor<4>,
        positions: Tensor<3, Int>,
        end: usize,
    ) -> Option<Tensor<4>> {
        let [first, rest] = self.split(x);
        Some(Tensor::cat(vec![first, self.encoding.decode_below(rest, positions, end)?], 3))
    }

    fn comes_rotated(&self) -> bool {
        self.encoding.comes_rotated()
    }

    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        self.encoding.check(head_dim.saturating_sub(self.first), device)
    }
}
