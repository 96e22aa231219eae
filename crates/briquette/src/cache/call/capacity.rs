//! Capacity of a layer's buffers.

use super::input::LayerInput;
use crate::{
    Policy, PrefillCompression, Result,
    cache::{context::Context, progress::Phase},
    store::Store,
};

/// Capacity that a layer needs: enough that buffers are seldom copied, not more than its budget
/// implies.
pub(in crate::cache) struct CapacityPlan {
    /// Tokens to keep per batch row; `None` keeps everything.
    pub(in crate::cache) budget: Option<Vec<usize>>,
    /// Columns that decoding exceeds by at most the slack.
    limit: Option<usize>,
    slack: usize,
    hint: Option<usize>,
    /// Columns of a prompt that will arrive before anything is dropped.
    to_come: usize,
    /// Whether a decoded token arrives.
    decoding: bool,
}

impl CapacityPlan {
    /// Minimum number of spare columns: an eighth of a few columns would have buffers copied at
    /// almost every token.
    const LEAST: usize = 16;

    /// Number of spare columns beside `columns`: an eighth keeps copies rare and spare room small.
    fn ahead(columns: usize) -> usize {
        Self::LEAST.max(columns / 8)
    }

    /// Plans for a call. `window` queries are held between calls.
    pub(in crate::cache) fn new(
        context: Context<'_>,
        input: &LayerInput,
        store: &dyn Store,
        window: usize,
    ) -> Result<Self> {
        let Context { shape, policy, config, observes, .. } = context;
        let LayerInput { span, query_bytes, .. } = input;
        let rows = span.seen().len();
        // Queries that are held from one compression to the next.
        let held = policy.schedule().decode_every.filter(|_| observes.holds_queries());
        let fixed = context
            .window_bytes(*query_bytes, window, rows)
            .saturating_add(context.query_bytes(*query_bytes, held.unwrap_or(0), rows));
        let bytes_of = |entries, columns| store.bytes_of(entries, columns).saturating_add(fixed);
        let budget = policy.resolve(shape, span.seen(), &bytes_of)?;
        Ok(Self {
            limit: budget
                .as_ref()
                .filter(|_| policy.schedule().decode_every.is_some())
                .and_then(|budget| budget.iter().copied().max())
                .map(|limit| policy.reducer().columns(limit)),
            slack: policy.slack(),
            hint: config.capacity.filter(|_| budget.is_none()),
            to_come: match span.phase {
                Phase::Prompt { missing, .. }
                    if policy.schedule().prefill != PrefillCompression::EveryChunk =>
                {
                    missing
                }
                _ => 0,
            },
            decoding: !span.phase.is_prompt(),
            budget,
        })
    }

    /// Capacity for `columns` columns when nothing was dropped.
    pub(in crate::cache) fn grown(&self, columns: usize) -> usize {
        match self.hint {
            Some(hint) if hint >= columns => return hint,
            _ if self.to_come > 0 => return columns + self.to_come,
            _ => {}
        }
        let grown = columns + Self::ahead(columns);
        match self.limit.map(|limit| limit.saturating_add(self.slack)) {
            Some(most) if columns <= most => grown.min(most),
            _ => grown,
        }
    }

    /// Maximum capacity of buffers when entries were dropped and `columns` columns are left; their
    /// present capacity is `capacity`.
    ///
    /// After a prompt the spare room starts small. In decoding as many tokens will come before the
    /// next compression as came since the last one, so buffers that have grown for them stay.
    pub(in crate::cache) fn after_compression(&self, columns: usize, capacity: usize) -> usize {
        let ahead = if self.decoding { capacity } else { Self::ahead(columns) };
        columns + ahead.min(self.slack)
    }

    /// Maximum capacity of buffers when a prompt was compressed and `columns` columns are left.
    pub(in crate::cache) fn after_prompt(policy: &Policy, columns: usize) -> usize {
        columns + Self::ahead(columns).min(policy.slack())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(limit: Option<usize>, slack: usize, decoding: bool) -> CapacityPlan {
        CapacityPlan { budget: None, limit, slack, hint: None, to_come: 0, decoding }
    }

    /// The widths of buffers after a compressed prompt, while `tokens` tokens are decoded with a
    /// compression at every `every`-th.
    fn widths(limit: usize, every: usize, tokens: usize) -> Vec<usize> {
        let mut columns = limit;
        let mut width = plan(Some(limit), every, false).after_compression(columns, 0);
        let mut widths = vec![width];
        let decoding = plan(Some(limit), every, true);
        for token in 1..=tokens {
            columns += 1;
            if columns > width {
                width = decoding.grown(columns);
            }
            if token % every == 0 {
                columns = limit;
                // A store keeps buffers that are no wider.
                width = width.min(decoding.after_compression(columns, width));
            }
            if widths.last() != Some(&width) {
                widths.push(width);
            }
        }
        widths
    }

    #[test]
    fn room_is_an_eighth_and_at_least_sixteen_columns() {
        let full = plan(None, 64, false);
        assert_eq!([1, 100, 128, 4096].map(|columns| full.grown(columns)), [17, 116, 144, 4608]);
        let left = [1, 100, 400, 4096].map(|columns| full.after_compression(columns, 9000));
        assert_eq!(left, [17, 116, 450, 4160]);
        // No more than what comes before the next compression.
        let compressing = plan(Some(100), 30, true);
        let grown = [20, 101, 120, 131].map(|columns| compressing.grown(columns));
        assert_eq!(grown, [36, 117, 130, 147]);
        assert_eq!(plan(Some(100), 1, false).after_compression(100, 0), 101);
        let policy = Policy::snapkv(crate::Budget::Tokens(400));
        assert_eq!(CapacityPlan::after_prompt(&policy, 400), 450);
    }

    #[test]
    fn decoding_ends_with_buffers_that_stay() {
        assert_eq!(widths(100, 1, 50), [101]);
        assert_eq!(widths(40, 30, 300), [56, 70]);
        let many = widths(256, 512, 5000);
        assert!(many.is_sorted() && many.len() < 12 && many.last() == Some(&768), "{many:?}");
    }
}
