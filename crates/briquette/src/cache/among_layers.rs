//! Layers whose budgets depend on each other.

use burn::tensor::Tensor;

use super::{
    append::Step,
    compress::{Compressed, compress_among_layers},
    context::Context,
    layer::{LayerCache, Replacement},
    outcome::Outcome,
    place::Placed,
};
use crate::{Error, LayerView, Result, view::Measures};

/// Where budgets depend on other layers of the prompt, compresses those that have arrived: at every layer if
/// entries are dropped, at the last one if they are merged.
fn compress_layers(
    layers: &[LayerCache],
    context: Context<'_>,
    outcome: &Outcome,
) -> Result<Vec<(usize, Compressed)>> {
    let Some((snapshot, entries)) = &outcome.snapshot else { return Ok(Vec::new()) };
    let before = context.layer.checked_sub(1);
    let arrived =
        |layer: usize| layers[layer].snapshot().is_some_and(|it| it.seen == snapshot.seen);
    if let Some(missing) = before.filter(|&before| !arrived(before)) {
        let allocator = context.policy.allocator().name().to_owned();
        return Err(Error::LayerOrder { layer: context.layer, missing, allocator });
    }
    let last = context.layer + 1 == context.shape.layers;
    if !last && !context.policy.reducer().drops_only() {
        return Ok(Vec::new());
    }
    let measure = |layer: usize| match layer == context.layer {
        true => outcome.measure.clone(),
        false if layer < context.layer && layers[layer].snapshot().is_some() => {
            layers[layer].measure().cloned()
        }
        false => None,
    };
    let measures = Measures::new((0..context.shape.layers).map(measure).collect());
    let mut all = Vec::new();
    for (layer, cache) in layers.iter().enumerate().take(context.layer + 1) {
        let held_entries;
        let (snapshot, entries, held) = if layer == context.layer {
            (&**snapshot, &**entries, &outcome.held[..])
        } else {
            let (Some(snapshot), Some(entries)) = (cache.snapshot(), cache.entries()?) else {
                continue;
            };
            held_entries = entries;
            (snapshot, &held_entries, cache.held())
        };
        let of_layer = Context { layer, measures: &measures, ..context };
        let view = LayerView {
            state: cache.state(),
            ..of_layer.view(entries, held, &snapshot.seen, &snapshot.budget, true)
        };
        let compressed = compress_among_layers(context.policy, view, snapshot, !last)?;
        all.extend(compressed.map(|compressed| (layer, compressed)));
    }
    Ok(all)
}

/// What a call has left of layers that are compressed together: of its own layer in the outcome, and the others.
pub(super) fn replacements(
    layers: &[LayerCache],
    context: Context<'_>,
    outcome: &mut Outcome,
) -> Result<Vec<(usize, Replacement)>> {
    let mut others = Vec::new();
    for (layer, compressed) in compress_layers(layers, context, outcome)? {
        if layer == context.layer {
            outcome.replace_among_layers(compressed, context.policy);
        } else {
            others.push((layer, layers[layer].replacement(context, compressed)?));
        }
    }
    Ok(others)
}

/// Makes the outcome of a call, and what it has left of other layers, the state of the layers, which are as they were if
/// that fails.
pub(super) fn commit(
    layers: &mut [LayerCache],
    context: Context<'_>,
    (placed, outcome, step): (Placed, Outcome, Step),
    others: Vec<(usize, Replacement)>,
) -> Result<Tensor<4>> {
    let output = layers[context.layer].commit(context, placed, outcome, step)?;
    // Nothing fails from here on.
    for (layer, replacement) in others {
        layers[layer].replace(replacement);
    }
    if context.layer + 1 == context.shape.layers {
        layers.iter_mut().for_each(LayerCache::forget_snapshot);
    }
    Ok(output)
}
