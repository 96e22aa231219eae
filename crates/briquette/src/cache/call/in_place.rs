//! Decoded tokens that take the places of those that are evicted.

use burn::tensor::Tensor;

use super::{
    capacity::CapacityPlan,
    compress::{CompressionDue, kept_per_head, score},
    input::LayerInput,
    store_guard::StoreGuard,
    working_set::WorkingSet,
};
use crate::{
    Error, LayerView, Policy, Result,
    budget::{Budget, Protect},
    cache::{Entries, context::Context, progress::Phase},
    ops::OpError,
    policy::PositionMode,
    store::{Eviction, Store},
};

/// Whether a decoded token may take the place of one that is evicted, so that entries may lie in no
/// order. `held_before` are the tokens of each head without it.
pub(in crate::cache) fn may_evict_in_place(
    context: Context<'_>,
    input: &LayerInput,
    held_before: &[usize],
    store: &mut dyn Store,
) -> bool {
    let span = &input.span;
    let decodes = matches!(span.phase, Phase::Decode { .. }) && !span.padded;
    let due = CompressionDue::of(context.policy, span.phase).compress;
    decodes
        && due
        && evicts_in_place(context.policy)
        && store.in_place().is_some_and(|slots| slots.can_evict(held_before))
}

/// Tokens that each head keeps of a decoded token and those it held before, if each evicts one.
pub(in crate::cache) fn kept_in_place(
    context: Context<'_>,
    input: &LayerInput,
    held_before: &[usize],
    plan: &CapacityPlan,
    all: &WorkingSet,
) -> Result<Option<Vec<usize>>> {
    let (Some(budget), Some(entries)) = (&plan.budget, &all.entries) else { return Ok(None) };
    let Context { policy, .. } = context;
    let view = context.view(entries, &input.held, input.span.seen(), budget, false);
    let allocation = policy.allocator().allocate(&view)?;
    let kept = kept_per_head(policy, &view, allocation, &input.arrived)?;
    Ok((kept == held_before).then_some(kept))
}

/// Whether every decoded token evicts one, by a score that looks at no order of entries.
fn evicts_in_place(policy: &Policy) -> bool {
    let observes = policy.observes();
    let schedule = policy.schedule();
    schedule.decode_every == Some(1)
        && schedule.append_only.is_none()
        && policy.positions() == PositionMode::Written
        && policy.is_capturable()
        && policy.scorer().ignores_order()
        && policy.reducer().in_place(None).is_some()
        && !policy.allocator().reads_scores()
        // A share of the tokens seen grows: some tokens evict none.
        && !matches!(policy.budget(), Some(Budget::Ratio(_)))
        && observes.window <= 1
        && observes.local == 0
        && !observes.holds_queries()
}

/// Appends the token behind the entries, which stay as they lie.
pub(in crate::cache) fn append_in_place(
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
    guard.store.append(token, &input.arrived_by_head);
    let reads_rows = context.policy.scorer().reads_rows() || context.observes.window > 0;
    let entries = match guard.store.in_place() {
        Some(slots) => slots.slots(reads_rows)?,
        None => guard.store.entries()?,
    };
    Ok(WorkingSet {
        beside_store: false,
        positions: entries.positions.clone(),
        tracks: entries.tracks.clone(),
        columns: entries.columns(),
        padded: input.held.iter().any(|&held| held != entries.columns()),
        entries: Some(entries),
    })
}

/// Scores every entry, of which each head keeps so many, one fewer.
///
/// # Errors
/// The scorer's, and [`OpError::NotANumber`] where inputs are checked.
pub(in crate::cache) fn eviction(
    policy: &Policy,
    view: &LayerView<'_>,
    kept: &[usize],
) -> Result<Option<Eviction>> {
    let Some(reduction) = policy.reducer().in_place(view.state) else { return Ok(None) };
    let scores = score(policy, view)?;
    if view.check {
        check_numbers(&scores, view)?;
    }
    let Protect { sinks, .. } = view.protect;
    let recent = kept.iter().map(|&kept| view.protect.recent_tokens(kept)).collect();
    Ok(Some(Eviction { scores, sinks, recent, reduction }))
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
