//! Layers whose budgets depend on each other.

use super::{
    capacity::CapacityPlan,
    compress::{Snapshot, compress_cross_layer, kept_cross_layer},
    input::LayerInput,
    store_guard::StoreGuard,
    update::LayerUpdate,
};
use crate::{
    Error, LayerView, Result,
    cache::{context::Context, layer::LayerCache},
    reduce::Reduced,
    view::Measures,
};

/// Compresses the layers of a prompt that have arrived, where their budgets depend on each other. A
/// reducer that drops entries runs as layers arrive; one that merges runs at the last layer.
/// Returns the number of each compressed layer, with its kept entries and snapshot.
fn compress_layers(
    layers: &[LayerCache],
    context: Context<'_>,
    update: &LayerUpdate,
) -> Result<Vec<(usize, Reduced, Snapshot)>> {
    let Some((snapshot, entries)) = &update.snapshot else { return Ok(Vec::new()) };
    let before = context.layer.checked_sub(1);
    let arrived =
        |layer: usize| layers[layer].snapshot.as_ref().is_some_and(|it| it.seen == snapshot.seen);
    if let Some(missing) = before.filter(|&before| !arrived(before)) {
        let allocator = context.policy.allocator().name().to_owned();
        return Err(Error::LayerOrder { layer: context.layer, missing, allocator });
    }
    let last = context.layer + 1 == context.shape.layers;
    if !last && !context.policy.reducer().drops_only() {
        return Ok(Vec::new());
    }
    let measure = |layer: usize| match layer == context.layer {
        true => update.measure.clone(),
        false if layer < context.layer && layers[layer].snapshot.is_some() => {
            layers[layer].measure.clone()
        }
        false => None,
    };
    let measures = Measures::new((0..context.shape.layers).map(measure).collect());
    let mut all = Vec::new();
    for (layer, cache) in layers.iter().enumerate().take(context.layer + 1) {
        let is_own = layer == context.layer;
        let (snapshot, held) = match &cache.snapshot {
            _ if is_own => (snapshot, &update.held[..]),
            Some(snapshot) => (snapshot, cache.held()),
            None => continue,
        };
        let shape = context.config.shape_of(context.shape, layer);
        let of_layer = Context { layer, shape, measures: &measures, ..context };
        let view = |entries| LayerView {
            state: cache.state.as_deref(),
            ..of_layer.view(entries, held, &snapshot.seen, &snapshot.budget, true)
        };
        // What lies in lists is laid out only if some of it goes.
        let lying = if is_own { None } else { cache.entries_as_they_lie()? };
        let numbers = lying.as_ref().unwrap_or(entries);
        let Some(keep) = kept_cross_layer(context.policy, &view(numbers), snapshot, !last)? else {
            continue;
        };
        let laid_out = if is_own { None } else { cache.entries()? };
        let entries = laid_out.as_ref().unwrap_or(entries);
        let (reduced, snapshot) =
            compress_cross_layer(context.policy, view(entries), snapshot, &keep)?;
        all.push((layer, reduced, snapshot));
    }
    Ok(all)
}

/// Compresses layers together. Changes the layer of the call in its `update`, and returns the other
/// layers that change, rebuilt.
pub(in crate::cache) fn rebuild_others(
    layers: &[LayerCache],
    context: Context<'_>,
    update: &mut LayerUpdate,
) -> Result<Vec<(usize, LayerCache)>> {
    let mut others = Vec::new();
    for (layer, reduced, snapshot) in compress_layers(layers, context, update)? {
        if layer == context.layer {
            let columns = reduced.entries.columns();
            update.compress(reduced, CapacityPlan::after_prompt(context.policy, columns));
            if let Some((before, _)) = &mut update.snapshot {
                **before = snapshot;
            }
        } else {
            let rebuilt = layers[layer].rebuild(context, reduced)?;
            others.push((layer, LayerCache { snapshot: Some(Box::new(snapshot)), ..rebuilt }));
        }
    }
    Ok(others)
}

/// Commits a call to its layer, and replaces the `others` by what it has rebuilt. No layer changes
/// if that fails.
pub(in crate::cache) fn commit(
    layers: &mut [LayerCache],
    context: Context<'_>,
    (input, update, guard): (LayerInput, LayerUpdate, StoreGuard),
    others: Vec<(usize, LayerCache)>,
) -> Result<()> {
    layers[context.layer].commit(context, input, update, guard)?;
    // Nothing fails from here on.
    for (layer, rebuilt) in others {
        layers[layer] = rebuilt;
    }
    if context.layer + 1 == context.shape.layers {
        layers.iter_mut().for_each(|layer| layer.snapshot = None);
    }
    Ok(())
}
