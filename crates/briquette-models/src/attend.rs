use briquette::{KvCache, Result, cache::Reconstruction, position::PositionEncoding};
use burn::tensor::Tensor;

/// What a model hands its queries, keys and values to: a [`KvCache`], or something around one that looks at what comes
/// and goes.
pub trait Attend {
    /// The attention of new tokens in one layer. Shapes and meaning are those of [`KvCache::attend`]; a forward pass
    /// calls it once a layer, from the first to the last.
    ///
    /// # Errors
    /// What the cache refuses.
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>>;

    /// The hidden states, `[batch, tokens, hidden_size]`, that queries, keys and values of the next call are made of, behind
    /// the norm before them.
    fn hidden_states(&mut self, x: &Tensor<3>) {
        let _ = x;
    }
}

impl Attend for KvCache {
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        Self::attend(self, layer, queries, keys, values, encoding)
    }
}

impl Attend for Reconstruction<'_> {
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        Self::attend(self, layer, queries, keys, values, encoding)
    }

    fn hidden_states(&mut self, x: &Tensor<3>) {
        Self::hidden_states(self, x);
    }
}
