use briquette::{KvCache, position::RotaryEmbedding};
use burn::tensor::Tensor;

use crate::attention::Attention;

impl Attention {
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        layer: usize,
        cache: &mut KvCache,
        rope: &RotaryEmbedding,
    ) -> briquette::Result<Tensor<3>> {
        let (q, k, v) = self.project(x);
        let out = cache.attend(layer, q, k, v, rope)?;
        Ok(self.project_output(out))
    }
}
