//! Kernels compiled before the first token is waited for.

use burn::tensor::{DType, Tensor};

use super::KvCache;
use crate::{Error, Result, check, position::PositionEncoding};

/// Calls whose kernels are compiled, and tuned, ahead of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    /// Rows of a batch.
    pub rows: Vec<usize>,
    /// Tokens of a prompt. Most kernels serve any length, but which are taken changes with it: name
    /// the shortest, the longest, and some between.
    pub prompts: Vec<usize>,
}

impl Default for WarmUp {
    /// One row, and prompts of 16 and 512 tokens.
    fn default() -> Self {
        Self { rows: vec![1], prompts: vec![16, 512] }
    }
}

impl WarmUp {
    /// Tokens decoded behind each prompt: the first, and one that follows a decoded token.
    pub const DECODED: usize = 2;

    /// Makes a call for each number of rows and tokens of a prompt. `progress` is told after each
    /// how many of how many are done.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if there is none, or one of no rows or tokens, before any is
    /// made; that of a call, which is the last.
    pub fn each<E: From<Error>>(
        &self,
        mut progress: impl FnMut(usize, usize),
        mut call: impl FnMut(usize, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let calls = self.calls()?;
        for (done, (rows, prompt)) in calls.iter().enumerate() {
            call(*rows, *prompt)?;
            progress(done + 1, calls.len());
        }
        Ok(())
    }

    fn calls(&self) -> Result<Vec<(usize, usize)>> {
        check::count("calls to warm up for", self.rows.len() * self.prompts.len())?;
        let mut calls = Vec::new();
        for &rows in &self.rows {
            for &prompt in &self.prompts {
                check::count("rows", rows)?;
                check::count("tokens of a prompt", prompt)?;
                calls.push((rows, prompt));
            }
        }
        Ok(calls)
    }
}

impl KvCache {
    /// Compiles the kernels of this cache for prompts of these lengths and the tokens decoded
    /// behind them, so that the first answer does not wait for it. The calls are made on zeros, in
    /// a cache of its own with the shape, policy and settings of this one, which is left as it is.
    /// It takes the memory of such a cache. A compression that comes only after many decoded tokens
    /// is not met.
    ///
    /// Queries, keys and values will come in `dtype`, and their positions encoded by `encoding`.
    /// `progress` is told after each prompt how many of how many are done.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a warm-up of nothing, and those of
    /// [`attend`](Self::attend).
    pub fn warm(
        &self,
        warm_up: &WarmUp,
        dtype: DType,
        encoding: &dyn PositionEncoding,
        progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        warm_up.each(progress, |rows, prompt| {
            let (policy, config) = (self.policy.clone(), self.config.clone());
            let mut cache = Self::with_config(self.shape, policy, config, self.device())?;
            for columns in [prompt].into_iter().chain([1; WarmUp::DECODED]) {
                for layer in 0..self.config.recurrent_shapes().len() {
                    cache.update_state(layer, [rows, columns], |state, _| Ok(((), state)))?;
                }
                for layer in 0..self.shape.layers {
                    cache.attend_to_zeros(layer, [rows, columns], dtype, encoding)?;
                }
            }
            self.devices.sync()
        })
    }

    fn attend_to_zeros(
        &mut self,
        layer: usize,
        [rows, columns]: [usize; 2],
        dtype: DType,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let shape = self.config.layer_shape(self.shape, layer);
        let zeros = |heads, channels| {
            Tensor::zeros([rows, heads, columns, channels], (self.device_of(layer), dtype))
        };
        let queries = zeros(shape.query_heads, shape.head_dim);
        let keys = zeros(shape.kv_heads, shape.head_dim);
        if self.config.values_in_keys {
            return self.attend_keys(layer, queries, keys, encoding);
        }
        let values = zeros(shape.kv_heads, shape.value_dim);
        self.attend(layer, queries, keys, values, encoding)
    }
}
