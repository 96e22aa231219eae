use briquette::position::PositionEncoding;
use burn::tensor::{FloatDType, Int, Tensor};

use crate::AttnTemperature;

/// Encoding of layers whose keys have no positions, and whose queries are scaled by theirs.
impl PositionEncoding for AttnTemperature {
    fn encode(&self, x: Tensor<4>, _positions: Tensor<3, Int>) -> Tensor<4> {
        x
    }

    fn encode_queries(&self, x: Tensor<4>, positions: Tensor<3, Int>, _end: usize) -> Tensor<4> {
        let dtype = x.dtype();
        let places = (positions + 1).cast(FloatDType::F32).unsqueeze_dim::<4>(3);
        let steps = (places / self.floor_scale).floor();
        let factors = steps.log1p() * self.attn_scale + 1.0;
        (x.cast(FloatDType::F32) * factors).cast(dtype)
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
