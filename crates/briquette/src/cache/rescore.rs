//! All layers compressed at once, by what a second pass over the prompt has given their entries.

use burn::tensor::Tensor;

use super::{
    KvCache,
    compress::{kept, reduce, score},
    context::Context,
};
use crate::{LayerView, Result, position::NoPositionEncoding};

impl KvCache {
    /// Compresses all layers now. `given` is what a second pass over the prompt gave the entries of each, `[batch, kv_heads,
    /// entries]`, f32: the policy's scorer makes scores of it, its allocator sees all layers together, and its reducer does
    /// the rest.
    ///
    /// # Errors
    /// [`Error::Stage`](crate::Error::Stage) if `given` is not of the entries held, or what a stage returns. The cache is
    /// then as it was before.
    pub fn compress_by(&mut self, given: &[Tensor<3>]) -> Result<()> {
        let Self { shape, policy, config, device, layers, measures, rows, under_way, .. } = self;
        let Some(rows) = *rows else { return Ok(()) };
        let of_layer = |layer| Context {
            layer,
            shape: *shape,
            observes: policy.observes(),
            policy,
            config,
            device,
            rows,
            encoding: &NoPositionEncoding,
            reach: 0,
            measures,
        };
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
            views.push(LayerView { given: given.get(layer), state: cache.state(), ..view });
        }
        let scores: Vec<Tensor<3>> =
            views.iter().map(|view| score(policy, view)).collect::<Result<_>>()?;
        for (view, scores) in views.iter_mut().zip(&scores) {
            view.scores = Some(scores);
        }
        let allocations = policy.allocator().allocate_together(&views)?;
        let mut replacements = Vec::new();
        for ((layer, view), allocation) in views.iter().enumerate().zip(allocations) {
            let Some(keep) = kept(policy, view, allocation, view.seen)? else { continue };
            let compressed = reduce(policy, view, &keep)?;
            replacements.push((layer, layers[layer].replacement(of_layer(layer), compressed)?));
        }
        // Nothing fails from here on.
        if let Some(before) = under_way.before() {
            before.remember_all(layers);
        }
        for (layer, replacement) in replacements {
            layers[layer].replace(replacement);
        }
        Ok(())
    }
}
