//! Burn's own rotary encoding.

use burn::{
    nn::RotaryEncoding,
    tensor::{DType, Device, Int, Tensor},
};

use super::encoding::{PositionEncoding, check_table};
use crate::Result;

/// RoPE over neighbouring channels (`2i`, `2i + 1`), as Burn has it.
/// [`apply`](RotaryEncoding::apply) encodes rows from one position on; here each row is encoded at
/// its own position.
///
/// Row 0 of the table is position 0. A [shifted](RotaryEncoding::shift) table begins elsewhere and
/// does not say so. Give the cache a table that was not shifted, and that holds every position the
/// cache may count to.
impl PositionEncoding for RotaryEncoding {
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        turn(self, x, positions, 1.0)
    }

    fn decode_below(
        &self,
        x: Tensor<4>,
        positions: Tensor<3, Int>,
        _end: usize,
    ) -> Option<Tensor<4>> {
        Some(turn(self, x, positions, -1.0))
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.freq_complex.dims()[0])
    }

    fn check(&self, head_dim: usize, device: &Device) -> Result<()> {
        let [_, channels, _] = self.freq_complex.dims();
        check_table(channels, &self.freq_complex.device(), head_dim, device)
    }
}

/// Turns rows at their positions, forwards (1) or back (−1).
fn turn(
    rope: &RotaryEncoding,
    x: Tensor<4>,
    positions: Tensor<3, Int>,
    direction: f64,
) -> Tensor<4> {
    let dtype = x.dtype();
    let [batch, heads, tokens, head_dim] = x.dims();
    let [end, channels, _] = rope.freq_complex.dims();
    let half = head_dim / 2;
    let of_heads = positions.dims()[1];
    // Padding stands at −1. Any row of the table will do for it.
    let rows = positions.clamp(0, end.saturating_sub(1) as i64).reshape([-1]);
    // A channel has its cosine and sine, both channels of a pair the same.
    let table = rope.freq_complex.clone().reshape([end, channels / 2, 4]).select(0, rows);
    let table = table.cast(DType::F32).reshape([batch, of_heads, tokens, half, 4]);
    let (cosines, sines) = (table.clone().narrow(4, 0, 1), table.narrow(4, 1, 1) * direction);
    let pairs = x.cast(DType::F32).reshape([batch, heads, tokens, half, 2]);
    let (even, odd) = (pairs.clone().narrow(4, 0, 1), pairs.narrow(4, 1, 1));
    let turned_even = even.clone() * cosines.clone() - odd.clone() * sines.clone();
    let turned_odd = odd * cosines + even * sines;
    let turned = Tensor::cat(vec![turned_even, turned_odd], 4);
    turned.reshape([batch, heads, tokens, head_dim]).cast(dtype)
}
