use std::cell::{OnceCell, RefCell};

use burn::tensor::Tensor;

use crate::{
    Result,
    ops::{MomentsInput, Ops, WindowInput},
    score::{Wanted, WindowMoments},
};

/// The last queries of a layer, whose weights are computed when first asked for.
pub(crate) struct LastQueries<'a> {
    compute: &'a dyn Fn() -> Result<WindowInput>,
    ops: &'a dyn Ops,
    input: OnceCell<WindowInput>,
    weights: OnceCell<Tensor<4>>,
    /// What has been asked for.
    moments: RefCell<Vec<WindowMoments>>,
}

impl std::fmt::Debug for LastQueries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastQueries").finish_non_exhaustive()
    }
}

impl<'a> LastQueries<'a> {
    /// `compute` encodes queries and keys.
    pub(crate) fn new(compute: &'a dyn Fn() -> Result<WindowInput>, ops: &'a dyn Ops) -> Self {
        let (input, weights, moments) = (OnceCell::new(), OnceCell::new(), RefCell::default());
        Self { compute, ops, input, weights, moments }
    }

    fn input(&self) -> Result<&WindowInput> {
        if let Some(input) = self.input.get() {
            return Ok(input);
        }
        let input = (self.compute)()?;
        Ok(self.input.get_or_init(|| input))
    }

    /// `[batch, query_heads, queries, entries]`, f32.
    pub(crate) fn weights(&self) -> Result<&Tensor<4>> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let weights = self.ops.window_weights(self.input()?.clone())?;
        Ok(self.weights.get_or_init(|| weights))
    }

    /// Sums over the last `queries` queries, of which as many of the last as `own` says count, one number a batch row.
    pub(crate) fn moments(
        &self,
        queries: usize,
        own: &[usize],
        wanted: Wanted,
    ) -> Result<WindowMoments> {
        let input = self.input()?;
        let all = input.queries.dims()[2];
        let kept = queries.min(all);
        let own: Vec<usize> = own.iter().map(|&own| own.min(kept)).collect();
        let is_it = |known: &&WindowMoments| {
            known.queries == kept
                && known.own == own
                && (known.sums.deviations.is_some() || !wanted.variance)
                && (known.sums.entropies.is_some() || !wanted.entropy)
        };
        if let Some(known) = self.moments.borrow().iter().find(is_it) {
            return Ok(known.clone());
        }
        let WindowInput { queries, keys, visibility, scale } = input.clone();
        let window = WindowInput {
            queries: queries.narrow(2, all - kept, kept),
            keys,
            visibility: visibility.of_last(kept),
            scale,
        };
        let sums = self.ops.window_moments(MomentsInput {
            window,
            own: own.clone(),
            deviations: wanted.variance,
            entropies: wanted.entropy,
        })?;
        let found = WindowMoments { sums, queries: kept, own };
        self.moments.borrow_mut().push(found.clone());
        Ok(found)
    }
}
