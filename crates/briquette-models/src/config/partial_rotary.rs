use briquette::{
    Result as CacheResult,
    position::{PositionEncoding, RotaryEmbedding},
};
use burn::tensor::{Device, Int, Tensor};

/// Rotary position embedding of the first channels of a head; the others pass (Phi-4-mini, after
/// GPT-NeoX).
#[derive(Clone, Debug)]
pub(crate) struct PartialRotary {
    pub(crate) inner: RotaryEmbedding,
    pub(crate) head_dim: usize,
}

impl PositionEncoding for PartialRotary {
    fn encode(&self, x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        self.encode_below(x, positions, usize::MAX)
    }

    fn encode_below(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let (rotated, channels) = (self.inner.head_dim(), x.dims()[3]);
        let rest = x.clone().narrow(3, rotated, channels - rotated);
        Tensor::cat(vec![self.inner.encode_below(x.narrow(3, 0, rotated), positions, end), rest], 3)
    }

    fn decode_below(
        &self,
        x: Tensor<4>,
        positions: Tensor<3, Int>,
        end: usize,
    ) -> Option<Tensor<4>> {
        let (rotated, channels) = (self.inner.head_dim(), x.dims()[3]);
        let rest = x.clone().narrow(3, rotated, channels - rotated);
        let decoded = self.inner.decode_below(x.narrow(3, 0, rotated), positions, end)?;
        Some(Tensor::cat(vec![decoded, rest], 3))
    }

    fn max_positions(&self) -> Option<usize> {
        self.inner.max_positions()
    }

    fn check(&self, head_dim: usize, device: &Device) -> CacheResult<()> {
        if head_dim != self.head_dim {
            return Err(briquette::Error::InvalidParameter {
                parameter: "head_dim of the rotary embedding",
                value: self.head_dim.to_string(),
                must_be: format!("{head_dim}, as in the cache"),
            });
        }
        self.inner.check(self.inner.head_dim(), device)
    }
}
