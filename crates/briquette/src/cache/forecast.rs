//! Computes what heads may keep at future tokens, under a budget that grows with the tokens seen.

use burn::tensor::Device;

use super::{
    KvCache,
    call::{compress::kept_per_head, in_place::grows},
    context::Context,
    growth::{Growth, GrowthStep},
    layer::LayerCache,
};
use crate::{
    Policy, Result,
    ops::{Entries, EvictLimits},
};

/// Maximum number of heads times tokens that are computed for a layer at a time.
const MOST: usize = 1 << 17;

/// Number of entries of a head before a token, and number that it may keep.
struct HeadStep {
    entries: usize,
    kept: usize,
}

impl HeadStep {
    /// Whether the token takes a free slot, so that no entry is evicted.
    fn takes_free(&self) -> bool {
        self.entries < self.kept
    }
}

/// A layer whose future tokens are being computed.
struct Growing<'a> {
    layer: &'a LayerCache,
    /// The entries in storage order, with arbitrary keys and values.
    lying: Option<Entries>,
    /// Entries of each head.
    entries: Vec<usize>,
    /// The numbers of each head at each token.
    steps: Vec<Vec<HeadStep>>,
    /// Whether the next token may be added to `steps`.
    goes_on: bool,
}

impl<'a> Growing<'a> {
    fn new(layer: &'a LayerCache) -> Result<Self> {
        let lying = layer.entries_as_they_lie()?;
        let entries = layer.entry_counts();
        // Tokens that have no cluster yet get one when a compression lays all out.
        let is_clustered = |lying: &Entries| {
            lying.clustering.as_ref().is_none_or(|of| of.unclustered.iter().all(|&own| own == 0))
        };
        let goes_on = lying.as_ref().is_some_and(is_clustered);
        Ok(Self { layer, lying, entries, steps: Vec::new(), goes_on })
    }

    /// Computes the next token, if every head evicts at most one entry for it.
    fn take(&mut self, context: Context<'_>) -> Result<()> {
        let (Some(lying), true) = (&self.lying, self.goes_on) else { return Ok(()) };
        let Context { policy, shape, .. } = context;
        let after = |seen: &usize| seen + self.steps.len() + 1;
        let seen: Vec<usize> = self.layer.progress().seen().iter().map(after).collect();
        let Some(budget) = policy.resolve(shape, &seen, &|_, _| 0)? else { return Ok(()) };
        let view = context.view(lying, &self.entries, &seen, &budget, false);
        let allocation = policy.allocator().allocate(&view)?;
        let kept = kept_per_head(policy, &view, allocation, &vec![1; seen.len()])?;
        let heads = self.entries.iter().zip(kept);
        let step: Vec<HeadStep> =
            heads.map(|(&entries, kept)| HeadStep { entries, kept }).collect();
        let (protect, is_clustered) = (policy.protect(), policy.reducer().makes_clusters());
        // The new token has a cluster of its own, and the protected ones are there.
        let protected = |head: &HeadStep| {
            let recent = protect.recent_tokens(head.kept);
            recent > 0 && protect.sinks.saturating_add(recent) <= head.entries
        };
        let fits =
            |head: &HeadStep| head.entries <= head.kept && (!is_clustered || protected(head));
        self.goes_on = step.iter().all(fits);
        if self.goes_on {
            let heads = self.entries.iter_mut().zip(&step);
            heads.for_each(|(entries, head)| *entries += usize::from(head.takes_free()));
            self.steps.push(step);
        }
        Ok(())
    }

    fn finish(self, policy: &Policy, device: &Device) -> Growth {
        let Self { layer, entries, steps, .. } = self;
        let (seen, protect) = (layer.progress().seen().to_vec(), policy.protect());
        let heads = entries.len() / seen.len().max(1);
        let of_rows = |head: usize| seen[head / heads];
        let first: Vec<usize> = (0..entries.len()).map(of_rows).collect();
        let is_clustered = policy.reducer().makes_clusters();
        // As many tokens as there may be, or as have come by then.
        let columns = (0..entries.len())
            .filter_map(|head| {
                let HeadStep { kept, .. } = steps.last()?[head];
                Some(policy.reducer().columns(kept).min(of_rows(head) + steps.len()))
            })
            .max()
            .unwrap_or(0)
            .max(self.lying.as_ref().filter(|_| is_clustered).map_or(0, Entries::columns));

        let (mut held, mut numbers) = (layer.held().to_vec(), Vec::new());
        let of_token = |step: Vec<HeadStep>| {
            let before = std::mem::take(&mut held);
            let after = |(head, before): (&HeadStep, &usize)| match is_clustered {
                true => columns.min(policy.reducer().columns(head.kept)),
                false => before + usize::from(head.takes_free()),
            };
            held = step.iter().zip(&before).map(after).collect();
            let of_head = |((head, &before), &after): ((&HeadStep, &usize), &usize)| {
                // No more than there are, which kernels count.
                let recent = protect.recent_tokens(head.kept).min(head.kept);
                [recent, usize::from(head.takes_free()), head.entries, before, after]
            };
            numbers.push(step.iter().zip(&before).zip(&held).map(of_head).collect::<Vec<_>>());
            GrowthStep {
                takes_free: step.iter().map(HeadStep::takes_free).collect(),
                kept: step.into_iter().map(|head| head.kept).collect(),
                held: held.clone(),
            }
        };
        let steps: Vec<GrowthStep> = steps.into_iter().map(of_token).collect();
        let sinks: Vec<usize> = entries.iter().map(|&most| protect.sinks.min(most)).collect();
        let limits = || match is_clustered {
            true => EvictLimits::new(&first, &sinks, &numbers, device),
            false => {
                let of_token = |heads: &Vec<[usize; 5]>| -> Vec<[usize; 2]> {
                    heads.iter().map(|[recent, takes, ..]| [*recent, *takes]).collect()
                };
                let numbers: Vec<_> = numbers.iter().map(of_token).collect();
                EvictLimits::new(&first, &sinks, &numbers, device)
            }
        };
        let limits = (!steps.is_empty()).then(limits);
        Growth { seen, steps, entries, columns, limits }
    }
}

impl KvCache {
    /// Computes what the heads of each layer may keep at up to `tokens` future tokens; `None` where
    /// the budget does not grow. If some layer cannot take the next token in place, the layers that
    /// can are `None` too.
    ///
    /// # Errors
    /// The errors of the allocator.
    pub(super) fn forecast(&self, tokens: usize) -> Result<Vec<Option<Growth>>> {
        let grows = |layer: &usize| grows(self.policy_of(*layer));
        let growing = (0..self.layers.len()).filter(grows);
        let of_layer = |layer: usize| Ok((layer, Growing::new(&self.layers[layer])?));
        let mut all = growing.map(of_layer).collect::<Result<Vec<_>>>()?;
        let heads = all.first().map_or(1, |(_, layer)| layer.entries.len().max(1));
        let is_stuck =
            |all: &[(usize, Growing<'_>)]| all.iter().any(|(_, layer)| layer.steps.is_empty());
        // Layer by layer at each token: layers that share a budget are shared out once.
        for _ in 0..tokens.min((MOST / heads).max(1)) {
            for (layer, growing) in &mut all {
                growing.take(self.context_between_calls(*layer))?;
            }
            if all.is_empty() || is_stuck(&all) {
                break;
            }
        }
        let is_stuck = is_stuck(&all);
        let mut found: Vec<Option<Growth>> = self.layers.iter().map(|_| None).collect();
        for (layer, growing) in all {
            if !is_stuck || growing.steps.is_empty() {
                found[layer] = Some(growing.finish(self.policy_of(layer), self.device_of(layer)));
            }
        }
        Ok(found)
    }
}
