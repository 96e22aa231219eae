//! Recurrent layers, as a model computes them from the states that a cache keeps.

use super::{
    CacheConfig, KvCache, ceiling,
    recurrent::{RecurrentShape, RecurrentState},
};
use crate::{Error, Policy, Result, check};

/// Why a cache with recurrent layers goes on from where it is.
pub(super) const NO_WAY_BACK: &str = "its recurrent layers have no earlier state to go back to";
/// Why steps of recurrent layers are not recorded.
pub(super) const NOT_RECORDED: &str = "recurrent layers make their states anew in every call";

impl CacheConfig {
    /// Sets the recurrent layers that a model has beside those of its
    /// [`CacheShape`](crate::CacheShape), which counts layers of attention only. The cache keeps a
    /// state for each, and the model calls [`KvCache::update_state`].
    ///
    /// A policy compresses layers of attention, and a budget, in bytes too, is theirs. Policies
    /// with a second pass over the prompt are refused. Tokens are not
    /// [taken back](KvCache::truncate), and steps are not recorded.
    pub fn with_recurrent_layers(mut self, shapes: Vec<RecurrentShape>) -> Self {
        self.recurrent_layers = Some(shapes.into());
        self
    }

    pub(super) fn recurrent_shapes(&self) -> &[RecurrentShape] {
        self.recurrent_layers.as_deref().unwrap_or_default()
    }

    /// What it says of recurrent layers, as text; `None` if there are none.
    pub(super) fn recurrent_text(&self) -> Option<String> {
        Some(self.recurrent_shapes()).filter(|all| !all.is_empty()).map(|all| format!("{all:?}"))
    }

    pub(super) fn check_recurrent_layers(&self, policy: &Policy) -> Result<()> {
        let shapes = self.recurrent_shapes();
        shapes.iter().try_for_each(RecurrentShape::check)?;
        if shapes.is_empty() || policy.second_pass().is_none() {
            return Ok(());
        }
        let name = policy.name();
        let found = format!("{} given to `{name}`, which reads a prompt twice", shapes.len());
        check::refuse("recurrent_layers", found, "given to a policy without a second pass")
    }
}

impl KvCache {
    /// Computes a recurrent layer for new tokens: `step` receives the layer's state, zeros before
    /// the first token, and returns what it has found and the state behind these tokens.
    ///
    /// `step` also receives how many of the first new columns are padding in each batch row: a
    /// state must be behind them what it was before. `layer` counts the [recurrent
    /// layers](CacheConfig::with_recurrent_layers) alone, and `[rows, columns]` is the number of
    /// batch rows and of new columns. A step of a model calls every layer once.
    ///
    /// ```
    /// use briquette::{CacheConfig, CacheShape, KvCache, Policy, RecurrentShape, RecurrentState};
    /// use briquette::position::NoPositionEncoding;
    /// # use burn::tensor::Tensor;
    /// # fn main() -> briquette::Result<()> {
    /// # let device = briquette::device::open("flex")?;
    /// # let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// # let x = |heads| Tensor::<4>::zeros([1, heads, 9, 16], &device);
    /// let state = RecurrentShape { channels: 6, columns: 3, heads: 2, key_dim: 8, value_dim: 4 };
    /// let config = CacheConfig::default().with_recurrent_layers(vec![state]);
    /// let mut cache = KvCache::with_config(shape, Policy::full(), config, &device)?;
    /// // The first layer is recurrent, and the second attends.
    /// let outputs = cache.update_state(0, [1, 9], |RecurrentState { inputs, memory }, _padding| {
    ///     let outputs = memory.clone().sum_dim(2);
    ///     Ok((outputs, RecurrentState { inputs, memory: memory * 0.5 }))
    /// })?;
    /// cache.attend(0, x(4), x(2), x(2), &NoPositionEncoding)?;
    /// # assert_eq!(outputs.dims(), [1, 2, 1, 4]);
    /// # assert_eq!(cache.tokens_seen(), [9]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The cache is then as it was before.
    /// - The error of `step`.
    /// - [`Error::InvalidParameter`] for a layer that there is not.
    /// - [`Error::EmptyPrompt`] for no rows or columns, [`Error::BatchChanged`], and what
    ///   [`attend`](Self::attend) returns of a [declared prompt](Self::begin_prompt).
    /// - [`Error::StateOutOfStep`] for a second call before every other layer had its call.
    /// - [`Error::TensorShape`], [`Error::DataType`] and [`Error::WrongDevice`] for the state that
    ///   `step` returns.
    /// - [`Error::MemoryCeiling`].
    pub fn update_state<T>(
        &mut self,
        layer: usize,
        [rows, columns]: [usize; 2],
        step: impl FnOnce(RecurrentState, &[usize]) -> Result<(T, RecurrentState)>,
    ) -> Result<T> {
        let shape = self.recurrent_shape(layer)?;
        if rows == 0 || columns == 0 {
            return Err(Error::EmptyPrompt { row: 0, columns, padding: 0 });
        }
        if let Some(expected) = self.batch.filter(|&expected| expected != rows) {
            return Err(Error::BatchChanged { expected, found: rows });
        }
        let place = self.place_of_state(layer);
        let (device, layout) = (self.devices.of(place), self.devices.rows(place));
        let own = &self.recurrent[layer];
        self.check_step(&format!("recurrent layer {layer}"), own.progress.count())?;
        let span = own.progress.arrive(layer, rows, columns)?;
        let padding = |row: &[i64]| row.iter().take_while(|position| **position < 0).count();
        let padding: Vec<usize> = span.positions.chunks(columns).map(padding).collect();
        let (found, state) = step(own.state_or_zeros(shape, rows, device), &padding)?;
        state.check(shape, rows, device)?;
        let ends_prompt = span.phase.ends_prompt();
        let after = own.after(span, state);
        if self.config.memory_ceiling.is_some() {
            let held = self.bytes_held();
            let needed = held - own.bytes(layout) + after.bytes(layout);
            ceiling::check(self.config.memory_ceiling, held, needed)?;
        }
        self.recurrent[layer] = after;
        self.batch = Some(rows);
        if ends_prompt {
            self.forget_marks();
        }
        Ok(found)
    }

    /// The state of a recurrent layer; `None` before the first token.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a layer that there is not.
    pub fn recurrent_state(&self, layer: usize) -> Result<Option<&RecurrentState>> {
        self.recurrent_shape(layer)?;
        Ok(self.recurrent.get(layer).and_then(|layer| layer.state.as_ref()))
    }

    fn recurrent_shape(&self, layer: usize) -> Result<RecurrentShape> {
        let shapes = self.config.recurrent_shapes();
        match shapes.get(layer) {
            Some(shape) => Ok(*shape),
            None => {
                let must_be = format!("below {}, the number of recurrent layers", shapes.len());
                check::refuse("recurrent layer", layer, must_be)
            }
        }
    }

    /// Checks that recurrent layers have seen what the others have.
    pub(super) fn check_recurrent_in_step(&self) -> Result<()> {
        let seen = self.layers.first().map_or(0, |layer| layer.progress().count());
        let mut layers = self.recurrent.iter().map(|layer| layer.progress.count()).enumerate();
        match layers.find(|(_, count)| *count != seen) {
            Some((layer, others)) => Err(Error::StateOutOfStep {
                layer: "layer 0".into(),
                seen,
                behind: format!("recurrent layer {layer}"),
                others,
            }),
            None => Ok(()),
        }
    }
}
