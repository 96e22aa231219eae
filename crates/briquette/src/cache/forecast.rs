//! Works out what heads may keep at the tokens to come, where a budget grows with the tokens seen.

use burn::tensor::Device;

use super::{
    Entries, KvCache,
    call::{compress::kept_per_head, in_place::grows},
    context::Context,
    growth::{Growth, GrowthStep},
    layer::LayerCache,
};
use crate::{Policy, Result, device::Rows, ops::EvictLimits, position::NoPositionEncoding};

/// The most numbers of a layer that are worked out at a time.
const MOST: usize = 1 << 17;

/// A layer whose tokens to come are gone through.
struct Growing<'a> {
    layer: &'a LayerCache,
    /// The entries as they lie, of any keys and values.
    lying: Option<Entries>,
    /// Entries of each head.
    entries: Vec<usize>,
    /// Entries that each may keep, and whether it takes a free slot, at each token.
    steps: Vec<(Vec<usize>, Vec<bool>)>,
    /// Whether the next token may be one of them.
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

    /// Works the next token out, if every head then evicts one entry or none.
    fn take(&mut self, context: Context<'_>) -> Result<()> {
        let (Some(lying), true) = (&self.lying, self.goes_on) else { return Ok(()) };
        let Context { policy, shape, .. } = context;
        let after = |seen: &usize| seen + self.steps.len() + 1;
        let seen: Vec<usize> = self.layer.progress().seen().iter().map(after).collect();
        let Some(budget) = policy.resolve(shape, &seen, &|_, _| 0)? else { return Ok(()) };
        let view = context.view(lying, &self.entries, &seen, &budget, false);
        let allocation = policy.allocator().allocate(&view)?;
        let kept = kept_per_head(policy, &view, allocation, &vec![1; seen.len()])?;
        let protect = policy.protect();
        // The new token has a cluster of its own, and the protected ones are there.
        let protected = |(&entries, &kept): (&usize, &usize)| {
            let recent = protect.recent_tokens(kept);
            recent > 0 && protect.sinks.saturating_add(recent) <= entries
        };
        let fits =
            !policy.reducer().makes_clusters() || self.entries.iter().zip(&kept).all(protected);
        let mut heads = self.entries.iter().zip(&kept);
        self.goes_on = fits && heads.all(|(entries, kept)| entries <= kept);
        if self.goes_on {
            let heads = self.entries.iter_mut().zip(&kept);
            let takes = |(entries, kept): (&mut usize, &usize)| {
                let takes_free = *entries < *kept;
                *entries += usize::from(takes_free);
                takes_free
            };
            let takes_free = heads.map(takes).collect();
            self.steps.push((kept, takes_free));
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
                let (kept, _) = steps.last()?;
                Some(policy.reducer().columns(kept[head]).min(of_rows(head) + steps.len()))
            })
            .max()
            .unwrap_or(0)
            .max(self.lying.as_ref().filter(|_| is_clustered).map_or(0, Entries::columns));

        let (mut held, mut numbers) = (layer.held().to_vec(), Vec::new());
        let mut clusters = entries.clone();
        for (_, takes_free) in &steps {
            let heads = clusters.iter_mut().zip(takes_free);
            heads.for_each(|(clusters, &takes)| *clusters -= usize::from(takes));
        }
        let of_token = |(kept, takes_free): (Vec<usize>, Vec<bool>)| {
            let before = std::mem::take(&mut held);
            let after = |(head, (&before, &takes)): (usize, (&usize, &bool))| match is_clustered {
                true => columns.min(policy.reducer().columns(kept[head])),
                false => before + usize::from(takes),
            };
            held = before.iter().zip(&takes_free).enumerate().map(after).collect();
            let of_head = |head: usize| {
                let (kept, takes) = (kept[head], usize::from(takes_free[head]));
                // No more than there are, which kernels count.
                let recent = protect.recent_tokens(kept).min(kept);
                [recent, takes, clusters[head], before[head], held[head]]
            };
            numbers.push((0..held.len()).map(of_head).collect::<Vec<_>>());
            let heads = clusters.iter_mut().zip(&takes_free);
            heads.for_each(|(clusters, &takes)| *clusters += usize::from(takes));
            GrowthStep { kept, takes_free, held: held.clone() }
        };
        let steps: Vec<GrowthStep> = steps.into_iter().map(of_token).collect();
        let sinks: Vec<usize> = entries.iter().map(|&most| protect.sinks.min(most)).collect();
        let limits = match is_clustered {
            true => EvictLimits::new(&first, &sinks, &numbers, device),
            false => {
                let of_token = |heads: &Vec<[usize; 5]>| -> Vec<[usize; 2]> {
                    heads.iter().map(|[recent, takes, ..]| [*recent, *takes]).collect()
                };
                let numbers: Vec<_> = numbers.iter().map(of_token).collect();
                EvictLimits::new(&first, &sinks, &numbers, device)
            }
        };
        Growth { seen, steps, entries, columns, limits }
    }
}

impl KvCache {
    /// Works out what the heads of all layers may keep at the next tokens, as many as `tokens`;
    /// `None` where the budget does not grow.
    ///
    /// # Errors
    /// The errors of the allocator.
    pub(super) fn forecast(&self, tokens: usize) -> Result<Option<Vec<Growth>>> {
        if !grows(&self.policy) {
            return Ok(None);
        }
        let Self { shape, policy, config, device, layers, measures, .. } = self;
        let mut all = layers.iter().map(Growing::new).collect::<Result<Vec<_>>>()?;
        let heads = all.first().map_or(1, |layer| layer.entries.len().max(1));
        // Layer by layer at each token: layers that share a budget are shared out once.
        for _ in 0..tokens.min((MOST / heads).max(1)) {
            for (layer, growing) in all.iter_mut().enumerate() {
                growing.take(Context {
                    layer,
                    shape: *shape,
                    observes: policy.observes(),
                    policy,
                    config,
                    device,
                    rows: self.rows.unwrap_or_else(|| Rows::of(device)),
                    encoding: &NoPositionEncoding,
                    reach: 0,
                    measures,
                    shared: None,
                })?;
            }
            if all.iter().any(|layer| layer.steps.is_empty()) {
                break;
            }
        }
        Ok(Some(all.into_iter().map(|growing| growing.finish(policy, device)).collect()))
    }
}
