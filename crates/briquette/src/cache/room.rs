use burn::tensor::DType;

use super::{context::Context, place::Placed, progress::Phase};
use crate::{Policy, PrefillCompression, Result, store::Store};

/// The room a layer needs: enough that decoding does not reallocate, not more than its budget implies.
pub(super) struct Room {
    /// Tokens to keep, one number a batch row; `None` keeps everything.
    pub(super) budget: Option<Vec<usize>>,
    /// Columns decoding never exceeds by more than the slack.
    limit: Option<usize>,
    slack: usize,
    hint: Option<usize>,
    /// Columns of a prompt that will arrive before anything is dropped.
    to_come: usize,
}

impl Room {
    /// The most columns made room for ahead of their need.
    const AHEAD: usize = 256;

    /// The budget of a call, and the room it needs. `window` queries are held between calls.
    pub(super) fn new(
        context: Context<'_>,
        placed: &Placed,
        store: &dyn Store,
        window: usize,
    ) -> Result<Self> {
        let Context { shape, policy, config, observes, .. } = context;
        let Placed { arrival, query_bytes, .. } = placed;
        let rows = arrival.seen().len();
        // A policy that compresses prompts only holds no window between them.
        let in_decoding = policy.schedule().decode_every.is_some() && observes.window > 0;
        let queries = if in_decoding { window } else { 0 };
        // Queries that are held from one compression to the next.
        let held = policy.schedule().decode_every.filter(|_| observes.holds_queries());
        let queries = queries.saturating_add(held.unwrap_or(0));
        let position_bytes = DType::from(context.device.settings().int_dtype).size();
        let query = shape.query_heads * context.rows.bytes(shape.head_dim, *query_bytes);
        let fixed = queries
            .saturating_mul(query)
            .saturating_add(context.rows.bytes(queries, position_bytes))
            .saturating_mul(rows);
        let bytes_of = |entries, columns| store.bytes_of(entries, columns).saturating_add(fixed);
        let budget = policy.resolve(shape, arrival.seen(), &bytes_of)?;
        Ok(Self {
            limit: budget
                .as_ref()
                .filter(|_| policy.schedule().decode_every.is_some())
                .and_then(|budget| budget.iter().copied().max())
                .map(|limit| policy.reducer().columns(limit)),
            slack: policy.slack(),
            hint: config.capacity.filter(|_| budget.is_none()),
            to_come: match arrival.phase {
                Phase::Prompt { missing, .. }
                    if policy.schedule().prefill != PrefillCompression::EveryChunk =>
                {
                    missing
                }
                _ => 0,
            },
            budget,
        })
    }

    /// Columns to make room for when `columns` must fit and nothing was dropped.
    pub(super) fn grown(&self, columns: usize) -> usize {
        match self.hint {
            Some(hint) if hint >= columns => return hint,
            _ if self.to_come > 0 => return columns + self.to_come,
            _ => {}
        }
        // Growing by an eighth keeps copies rare and waste small.
        let ahead = if self.limit.is_some() { Self::AHEAD } else { self.slack.min(Self::AHEAD) };
        let grown = columns + ahead.max(columns / 8);
        match self.limit.map(|limit| limit.saturating_add(self.slack)) {
            Some(most) if columns <= most => grown.min(most),
            _ => grown,
        }
    }

    /// Columns to make room for when entries were dropped and `columns` are left.
    pub(super) fn after_compression(&self, columns: usize) -> usize {
        columns + self.slack.min(Self::AHEAD)
    }

    /// The same, for a layer that is not the one at hand.
    pub(super) fn compressed(policy: &Policy, columns: usize) -> usize {
        columns + policy.slack().min(Self::AHEAD)
    }
}
