//! Decoded tokens that take the places of evicted ones.

use burn::tensor::Tensor;

use super::{
    answer::Answer,
    capacity::CapacityPlan,
    compress::{CompressionDue, kept_per_head, score},
    input::LayerInput,
    store_guard::StoreGuard,
    working_set::WorkingSet,
};
use crate::{
    Error, LayerView, Policy, Result,
    budget::{Budget, Protect},
    cache::{
        context::Context,
        growth::{Growth, GrowthStep},
        progress::Phase,
    },
    ops::{Entries, EvictLimits, OpError},
    policy::PositionMode,
    store::{Eviction, Store},
};

/// Whether the budget of a layer grows with the tokens seen, so that some tokens evict none.
pub(in crate::cache) fn grows(policy: &Policy) -> bool {
    matches!(policy.budget(), Some(Budget::Ratio(_)))
}

/// Numbers of an eviction in place, per batch row and kv head: each head evicts one entry, or none
/// if it takes a free slot.
pub(in crate::cache) struct InPlaceCounts {
    /// Entries that a head may keep.
    pub(in crate::cache) kept: Vec<usize>,
    /// Tokens held afterwards; an upper bound where tokens share entries.
    pub(in crate::cache) held: Vec<usize>,
    /// Whether a head takes a free slot if it has one; empty where no slot is free.
    takes_free: Vec<bool>,
    /// The same numbers for this and future tokens, where they change.
    limits: Option<EvictLimits>,
}

/// Returns the numbers of an eviction by which a decoded token takes another's place, or a free
/// slot; `None` if the token must be appended to entries by position. The token has not been
/// appended yet: `held_before` are the tokens of each head without it. `growth` is known where the
/// budget grows.
pub(in crate::cache) fn counts_in_place(
    context: Context<'_>,
    input: &LayerInput,
    token: &Entries,
    (held_before, growth): (&[usize], Option<&Growth>),
    plan: &CapacityPlan,
    store: &mut dyn Store,
) -> Result<Option<InPlaceCounts>> {
    let (Some(budget), Some(slots)) = (&plan.budget, store.in_place()) else { return Ok(None) };
    let (policy, span) = (context.policy, &input.span);
    let decodes = matches!(span.phase, Phase::Decode { .. }) && !span.padded;
    let due = decodes && CompressionDue::of(policy, span.phase).compress;
    if !due || !evicts_in_place(policy) || !slots.can_evict(held_before) {
        return Ok(None);
    }
    let with_free = slots.slots_with_free();
    if grows(policy) {
        // Without free slots every token that evicts none would lay the entries out anew.
        let known = growth.filter(|_| with_free.is_some());
        let known = known.and_then(|growth| Some((growth, growth.step(&span.seen_before)?)));
        return Ok(known.map(|(growth, step)| {
            let GrowthStep { kept, takes_free, held } = step.clone();
            InPlaceCounts { kept, held, takes_free, limits: growth.limits.clone() }
        }));
    }
    // An allocator that can be captured looks at numbers, and not at the entries.
    let view = context.view(token, &input.held, span.seen(), budget, false);
    let allocation = policy.allocator().allocate(&view)?;
    let kept = kept_per_head(policy, &view, allocation, &input.arrived)?;
    if let Some(slots) = with_free {
        let mut heads = held_before.iter().zip(&slots).zip(&kept);
        if !heads.all(|((&held, &slots), &kept)| slots == kept || held < slots && slots < kept) {
            return Ok(None);
        }
        let held = input.held.iter().zip(&slots).map(|(&held, &slots)| held.min(slots)).collect();
        // The device sees which heads have one: the same numbers at every token.
        let takes_free = vec![true; kept.len()];
        return Ok(Some(InPlaceCounts { kept, held, takes_free, limits: None }));
    }
    if kept != slots.entry_counts(held_before) {
        return Ok(None);
    }
    let (takes_free, limits) = (Vec::new(), None);
    let Some(columns) = slots.token_columns() else {
        return Ok(Some(InPlaceCounts { held: kept.clone(), kept, takes_free, limits }));
    };
    let heads = context.shape.kv_heads;
    let fits = |(head, &kept): (usize, &usize)| {
        // The new token has a cluster of its own. A token that was seen may still be there.
        let most = span.seen()[head / heads].min(policy.reducer().columns(kept));
        view.protect.recent_tokens(kept) > 0 && most <= columns
    };
    if !kept.iter().enumerate().all(fits) {
        return Ok(None);
    }
    // As many as there is room for: the same at every token, until there is room for no more.
    let held = kept.iter().map(|&kept| columns.min(policy.reducer().columns(kept))).collect();
    Ok(Some(InPlaceCounts { kept, held, takes_free, limits }))
}

/// Whether every decoded token evicts another once a layer is at its budget, by scores that do not
/// depend on the order of the entries.
pub(in crate::cache) fn evicts_in_place(policy: &Policy) -> bool {
    let observes = policy.observes();
    let schedule = policy.schedule();
    let lies_in_any_order = match policy.reducer().makes_clusters() {
        // Tokens are in order; only the rows that they share are not.
        true => {
            policy.positions() != PositionMode::InCache
                && !policy.scorer().depends_on().rows
                && observes.window == 0
        }
        false => !policy.scorer().depends_on().order && observes.window <= 1 && observes.local == 0,
    };
    lies_in_any_order
        && schedule.decode_every == Some(1)
        && schedule.append_only.is_none()
        && policy.is_capturable()
        && policy.reducer().reduces_in_place()
        && !policy.allocator().reads_scores()
        && !observes.holds_queries()
}

/// Appends the token behind the entries, which stay where they are.
pub(in crate::cache) fn append_in_place<A: Answer>(
    context: Context<'_>,
    input: &LayerInput,
    token: Entries,
    plan: &CapacityPlan,
    guard: &mut StoreGuard,
) -> Result<WorkingSet> {
    let needed = guard.store.columns() + 1;
    if needed > guard.store.capacity() {
        guard.outgrown = Some(guard.store.clone());
        guard.store.reserve(plan.grown(needed));
    }
    guard.store.append(token, &input.arrived_by_head)?;
    let Context { policy, observes, .. } = context;
    let reads_rows = A::READS_ROWS
        || policy.scorer().depends_on().rows
        || observes.window > 0
        || policy.reducer().encodes_at_representative();
    let entries = match guard.store.in_place() {
        Some(slots) => slots.slots(reads_rows)?,
        None => guard.store.entries()?,
    };
    Ok(WorkingSet {
        beside_store: false,
        unordered: !guard.store.is_clustered(),
        positions: entries.positions.clone().into(),
        statistics: entries.statistics.clone(),
        columns: entries.columns(),
        // Where tokens share, the host does not know how many of them are left.
        padded: guard.store.is_clustered()
            || input.held.iter().any(|&held| held != entries.columns()),
        entries: Some(entries),
    })
}

/// Scores every entry, and returns the eviction of one entry per head.
///
/// # Errors
/// The scorer's, and [`OpError::NotANumber`] where inputs are checked.
pub(in crate::cache) fn eviction(
    policy: &Policy,
    view: &LayerView<'_>,
    counts: &InPlaceCounts,
) -> Result<Eviction> {
    let reduction = policy.reducer().in_place(view)?;
    let scores = score(policy, view)?;
    if view.check {
        check_numbers(&scores, view)?;
    }
    let Protect { sinks, .. } = view.protect;
    let recent = counts.kept.iter().map(|&kept| view.protect.recent_tokens(kept)).collect();
    Ok(Eviction {
        scores,
        sinks,
        recent,
        reduction,
        most_tokens: counts.held.clone(),
        takes_free: counts.takes_free.clone(),
        limits: counts.limits.clone(),
    })
}

/// Refuses scores that are NaN. Those of padding do not matter.
fn check_numbers(scores: &Tensor<3>, view: &LayerView<'_>) -> Result<()> {
    let held = view.positions().clone().greater_equal_scalar(0);
    let nan = scores.clone().is_nan().bool_and(held);
    let counts = nan.int().sum().try_into_vec_as::<i64>()?;
    match counts.first() {
        Some(&count) if count > 0 => {
            let error = OpError::NotANumber { operation: "evict", count: count as usize };
            Err(Error::of_layer(error, view.layer))
        }
        _ => Ok(()),
    }
}
