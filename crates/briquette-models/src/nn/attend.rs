use briquette::{
    Error, KvCache, Reconstruction, RecurrentState, Result, SharedPrefill,
    position::PositionEncoding,
};
use burn::tensor::Tensor;

/// What a recurrent layer computes of its state and of the padding of each batch row: an output,
/// and the next state. See [`KvCache::update_state`].
pub type StateStep<'a> =
    Box<dyn FnOnce(RecurrentState, &[usize]) -> Result<(Tensor<4>, RecurrentState)> + 'a>;

/// Receiver of a model's queries, keys and values: a [`KvCache`], or something around one that
/// observes its calls.
pub trait Attend {
    /// Computes the attention of new tokens in one layer. Shapes and meaning are those of
    /// [`KvCache::attend`]; a forward pass calls it once per layer, from the first to the last.
    ///
    /// # Errors
    /// As [`KvCache::attend`].
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>>;

    /// Computes the attention of new tokens in one layer of a model whose values are the first
    /// channels of its keys (DeepSeek). Shapes and meaning are those of
    /// [`KvCache::attend_keys`]. What takes values beside keys only refuses it.
    ///
    /// # Errors
    /// As [`KvCache::attend_keys`], and [`Error::Stage`] where it is not implemented.
    fn attend_keys(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let _ = (queries, keys, encoding);
        Err(Error::Stage {
            stage: "call",
            name: "attend_keys".into(),
            reason: format!(
                "this pass takes values beside keys, and those of layer {layer} are in its keys: \
                 run the model on a `KvCache`"
            ),
        })
    }

    /// Computes a recurrent layer for new tokens, `[rows, columns]` of them. Meaning and numbers of
    /// layers are those of [`KvCache::update_state`]. What has no states refuses it.
    ///
    /// # Errors
    /// As [`KvCache::update_state`], and [`Error::Stage`] where it is not implemented.
    fn update_state(
        &mut self,
        layer: usize,
        dims: [usize; 2],
        step: StateStep<'_>,
    ) -> Result<Tensor<4>> {
        let _ = (dims, step);
        Err(Error::Stage {
            stage: "call",
            name: "update_state".into(),
            reason: format!(
                "this pass keeps no state for recurrent layer {layer}: run the model on a `KvCache`"
            ),
        })
    }

    /// Receives the hidden states, `[batch, tokens, hidden_size]`, of which the queries, keys and
    /// values of the next call are made, after the norm before them.
    fn hidden_states(&mut self, x: &Tensor<3>) {
        let _ = x;
    }
}

/// A layer, and what computes its attention.
pub(crate) struct LayerAttention<'a> {
    pub(crate) layer: usize,
    pub(crate) positions: &'a dyn PositionEncoding,
    pub(crate) attend: &'a mut dyn Attend,
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

    fn attend_keys(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        Self::attend_keys(self, layer, queries, keys, encoding)
    }

    fn update_state(
        &mut self,
        layer: usize,
        dims: [usize; 2],
        step: StateStep<'_>,
    ) -> Result<Tensor<4>> {
        Self::update_state(self, layer, dims, step)
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

impl Attend for SharedPrefill<'_> {
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
