//! Compresses all layers at once, by the weights that their entries received in a second pass over
//! the prompt.

use burn::tensor::Tensor;

use crate::{
    LayerView, Result,
    cache::{
        KvCache,
        call::compress::{exceeds, kept_per_head, reduce, score},
    },
};

impl KvCache {
    /// Compresses all layers now, by the weights that their entries received in a second pass over
    /// the prompt.
    ///
    /// `given` holds these weights per layer, `[batch, kv_heads, entries]`, f32. The policy's
    /// scorer makes scores of them, its allocator sees all layers together, and its reducer does
    /// the rest. Tokens may be decoded from then on, and later prompts are kept whole: one pass is
    /// enough for a cache, also where all entries were within the budget.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) if `given` is not of the entries held, or what a stage
    /// returns. The cache is then as it was before.
    pub fn compress_by(&mut self, given: &[Tensor<3>]) -> Result<()> {
        let of_layer = |layer| self.context_between_calls(layer);
        let Self { policy, layers, .. } = &*self;
        let mut held = Vec::new();
        for (layer, cache) in layers.iter().enumerate() {
            let (budget, entries) = (cache.budget(of_layer(layer))?, cache.entries()?);
            let (Some(budget), Some(entries)) = (budget, entries) else { return Ok(()) };
            held.push((entries, budget));
        }
        let mut views = Vec::new();
        for (layer, (entries, budget)) in held.iter().enumerate() {
            let cache = &layers[layer];
            let seen = cache.progress().seen();
            let view = of_layer(layer).view(entries, cache.held(), seen, budget, true);
            let state = cache.state.as_deref();
            views.push(LayerView { given: given.get(layer), state, ..view });
        }
        let scores: Vec<Tensor<3>> =
            views.iter().map(|view| score(policy, view)).collect::<Result<_>>()?;
        for (view, scores) in views.iter_mut().zip(&scores) {
            view.scores = Some(scores);
        }
        let allocations = policy.allocator().allocate_together(&views)?;
        let mut all_rebuilt = Vec::new();
        for ((layer, view), allocation) in views.iter().enumerate().zip(allocations) {
            let keep = kept_per_head(policy, view, allocation, view.seen)?;
            if exceeds(view, &keep) {
                let reduced = reduce(policy, view, &keep)?;
                all_rebuilt.push((layer, layers[layer].rebuild(of_layer(layer), reduced)?));
            }
        }
        // Nothing fails from here on.
        if let Some(rollback) = self.active_transaction.rollback() {
            rollback.remember_all(&self.layers);
        }
        for (layer, rebuilt) in all_rebuilt {
            self.layers[layer] = rebuilt;
        }
        self.layers.iter_mut().for_each(|layer| layer.second_pass = true);
        Ok(())
    }
}
