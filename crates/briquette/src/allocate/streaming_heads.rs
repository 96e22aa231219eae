use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result, check};

/// Keeps everything in heads that look far back and `tokens` in those that stream: DuoAttention
/// (Xiao et al., 2024, [arXiv 2410.10819](https://arxiv.org/abs/2410.10819)), with heads ranked on
/// the fly by the [reach](crate::QueryStatistics::reach) of their mean queries and keys in the
/// model's profile.
///
/// As many heads keep everything as the budget of all layers allows, those with the furthest reach
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingHeads {
    /// Number of tokens per streaming head, the protected ones included.
    pub tokens: usize,
}

impl Allocator for StreamingHeads {
    fn name(&self) -> &str {
        "streaming-heads"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.tokens)
    }

    fn check(&self) -> Result<()> {
        check::count("allocate.tokens", self.tokens)
    }

    fn reads_profile(&self) -> bool {
        true
    }

    fn allocates_heads(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let reach = &view.query_statistics(self.name())?.reach;
        let (layers, heads) = (view.shape.layers, view.shape.kv_heads);
        let mut order: Vec<(usize, usize)> =
            (0..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))).collect();
        let of = |&(layer, head): &(usize, usize)| reach[layer][head];
        // Of equals the earlier first: the sort is stable.
        order.sort_by(|a, b| of(b).total_cmp(&of(a)));
        let mut rank = vec![0; heads];
        for (place, (layer, head)) in order.into_iter().enumerate() {
            if layer == view.layer {
                rank[head] = place;
            }
        }
        let mut keep = Vec::with_capacity(view.lengths.len());
        for (row, &budget) in view.budget.iter().enumerate() {
            let (seen, streams) = (view.seen[row], self.tokens.min(budget).max(1));
            let whole = match seen.checked_sub(streams) {
                None | Some(0) => layers * heads,
                Some(more) => (budget - streams.min(budget)) * layers * heads / more,
            };
            let held = &view.lengths[row * heads..][..heads];
            let of_head = |(&rank, &held): (&usize, &usize)| match rank < whole {
                true => held.max(1),
                false => streams,
            };
            keep.extend(rank.iter().zip(held).map(of_head));
        }
        Ok(Allocation::Heads(keep))
    }
}
