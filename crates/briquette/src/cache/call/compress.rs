//! Score, allocate, reduce: the compression of one layer.

use burn::tensor::{DType, Tensor};

use super::pages;
use crate::{
    Error, LayerView, Policy, PrefillCompression, Result,
    allocate::Allocation,
    budget::{Protect, Recent},
    cache::progress::Phase,
    columns::behind_zeros,
    ops::{Clustering, Entries, Statistic, counting},
    reduce::Reduced,
    view::Measure,
};

/// The parts of a compression that are due in a call.
#[derive(Clone, Copy)]
pub(in crate::cache) struct CompressionDue {
    /// A prompt, or a chunk after which there is a compression, has arrived.
    pub(in crate::cache) prompt: bool,
    pub(in crate::cache) compress: bool,
    /// Number of last entries that stay beyond the budget: those of a draft.
    pub(in crate::cache) stays: usize,
}

impl CompressionDue {
    /// Returns the parts that are due in a call of this phase.
    pub(in crate::cache) fn of(policy: &Policy, phase: Phase) -> Self {
        let schedule = policy.schedule();
        let compress = match phase {
            // The second pass is still to come.
            _ if policy.second_pass().is_some() => false,
            Phase::Prompt { missing: 0, first } => match schedule.prefill {
                PrefillCompression::Never => false,
                PrefillCompression::FirstPrompt => first,
                PrefillCompression::AtEnd | PrefillCompression::EveryChunk => true,
            },
            Phase::Prompt { .. } => schedule.prefill == PrefillCompression::EveryChunk,
            Phase::Decode { decoded: due } | Phase::Draft { due, .. } => {
                schedule.decode_every.is_some_and(|every| due >= every)
            }
        };
        let (prompt, stays) = match phase {
            Phase::Prompt { missing, .. } => (missing == 0 || compress, 0),
            Phase::Decode { .. } => (false, 0),
            Phase::Draft { columns, .. } => (false, columns),
        };
        Self { prompt, compress, stays }
    }
}

/// The scores and counts needed to compress a layer again when later layers of the prompt have
/// arrived.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Snapshot {
    /// `[batch, kv_heads, entries]`, of the entries held.
    pub(in crate::cache) scores: Tensor<3>,
    pub(in crate::cache) arrived: Vec<usize>,
    pub(in crate::cache) seen: Vec<usize>,
    pub(in crate::cache) budget: Vec<usize>,
}

/// Result of [`compress`].
#[derive(Default)]
pub(in crate::cache) struct Findings {
    /// The kept entries, if the layer is compressed by itself and drops or merges any.
    pub(in crate::cache) reduced: Option<Reduced>,
    /// Entries that each head may keep, per batch row and kv head, if it is decided.
    pub(in crate::cache) share: Option<Vec<usize>>,
    pub(in crate::cache) measure: Option<Measure>,
    /// The snapshot for layers that are compressed together.
    pub(in crate::cache) snapshot: Option<Snapshot>,
}

/// Measures the layer at the end of a prompt if its allocator measures layers; otherwise compresses
/// it if that is due. `arrived` are its new tokens per batch row.
pub(in crate::cache) fn compress(
    policy: &Policy,
    view: LayerView<'_>,
    arrived: &[usize],
    due: CompressionDue,
) -> Result<Findings> {
    let allocator = policy.allocator();
    if due.prompt && allocator.measures() {
        let measure = measure(policy, &view)?;
        let snapshot = |scores| Snapshot {
            scores,
            arrived: arrived.to_vec(),
            seen: view.seen.to_vec(),
            budget: view.budget.to_vec(),
        };
        let scores = due.compress.then(|| score(policy, &view)).transpose()?;
        return Ok(Findings {
            measure: Some(measure),
            snapshot: scores.map(snapshot),
            ..Findings::default()
        });
    }
    if !due.compress {
        return Ok(Findings::default());
    }
    if let (false, Some(append)) = (view.prompt, policy.schedule().append_only) {
        let new = policy.schedule().decode_every.unwrap_or(1);
        let scores = score(policy, &view)?;
        let view = LayerView { scores: Some(&scores), ..view };
        let keep = kept_per_head(policy, &view, allocator.allocate(&view)?, arrived)?;
        let reduced = pages::select(&view, append, new, &keep)?
            .map(|selection| {
                let entries = view.selected(&selection)?;
                Ok::<_, Error>(Reduced::new(entries, selection.counts))
            })
            .transpose()?;
        return Ok(Findings { reduced, ..Findings::default() });
    }
    let known = allocator.reads_scores().then(|| score(policy, &view)).transpose()?;
    let allocation = allocator.allocate(&LayerView { scores: known.as_ref(), ..view })?;
    let share = kept_per_head(policy, &view, allocation, arrived)?;
    let (keep, protect) = beyond(&share, view.protect, due.stays);
    let view = LayerView { protect, ..view };
    if !exceeds(&view, &keep) {
        return Ok(Findings { share: Some(share), ..Findings::default() });
    }
    let scores = known.map_or_else(|| score(policy, &view), Ok)?;
    let reduced = reduce(policy, &LayerView { scores: Some(&scores), ..view }, &keep)?;
    Ok(Findings { reduced: Some(reduced), share: Some(share), ..Findings::default() })
}

/// Adds entries of a draft to what heads keep, behind the last entries that are kept anyway.
fn beyond(share: &[usize], protect: Protect, stays: usize) -> (Vec<usize>, Protect) {
    if stays == 0 {
        return (share.to_vec(), protect);
    }
    let least = share.iter().copied().min().unwrap_or(0);
    let recent = Recent::Tokens(protect.recent_tokens(least) + stays);
    (share.iter().map(|share| share + stays).collect(), Protect { recent, ..protect })
}

/// Returns how many entries of its snapshot a layer may keep, by the measures of the layers that
/// have arrived. `None` if the layer is within its budget, or slightly beyond it while `more`
/// layers follow. Does not read the keys and values of the view.
pub(in crate::cache) fn kept_cross_layer(
    policy: &Policy,
    view: &LayerView<'_>,
    snapshot: &Snapshot,
    more: bool,
) -> Result<Option<Vec<usize>>> {
    /// Divisor of a layer's budget: the part by which the layer may exceed it while others arrive.
    const BEYOND: usize = 8;
    let allocation = policy.allocator().allocate(view)?;
    let mut keep = kept_per_head(policy, view, allocation, &snapshot.arrived)?;
    let most: Vec<usize> = match more {
        true => keep.iter().map(|keep| keep + keep / BEYOND).collect(),
        false => keep.clone(),
    };
    if !exceeds(view, &most) {
        return Ok(None);
    }
    if more {
        // Shares fall as layers arrive, but rounded ones may rise again by one.
        keep.iter_mut().for_each(|keep| *keep += 1);
    }
    Ok(Some(keep))
}

/// Compresses a layer by the scores of its snapshot, so that each head keeps `keep` entries.
/// Returns these and their snapshot.
pub(in crate::cache) fn compress_cross_layer(
    policy: &Policy,
    view: LayerView<'_>,
    snapshot: &Snapshot,
    keep: &[usize],
) -> Result<(Reduced, Snapshot)> {
    let scores = widened(&snapshot.scores, view.entries.columns());
    let view = LayerView { scores: Some(&scores), ..view };
    // The scores go where their entries go.
    let mut entries = view.entries.clone();
    entries.statistics = entries.statistics.with(Statistic::Scores, scores.clone());
    let mut reduced = reduce(policy, &LayerView { entries: &entries, ..view }, keep)?;
    let (statistics, scores) = reduced.entries.statistics.without(Statistic::Scores);
    reduced.entries.statistics = statistics;
    let mut snapshot = snapshot.clone();
    if let Some(scores) = scores {
        // Statistics of query heads hold the scores of a kv head for each of its own.
        snapshot.scores = first_of_groups(scores, view.shape.kv_heads);
    }
    Ok((reduced, snapshot))
}

/// Numbers of the first query head of each kv head, `[batch, kv_heads, entries]`.
fn first_of_groups(x: Tensor<3>, kv_heads: usize) -> Tensor<3> {
    let [batch, heads, entries] = x.dims();
    let groups: Tensor<4> = x.reshape([batch, kv_heads, heads / kv_heads, entries]);
    // Copied: a view would hold the buffer of all that they lie among.
    let first = counting(0..1, &groups.device());
    groups.select(2, first).squeeze_dim(2)
}

/// Returns the scores right-aligned in `columns` columns, with zeros before them. A store may lay
/// entries out with more or less padding than it was given.
fn widened(scores: &Tensor<3>, columns: usize) -> Tensor<3> {
    let [_, _, width] = scores.dims();
    if width >= columns {
        // A store may have left columns out that are padding in every row.
        return scores.clone().narrow(2, width - columns, columns);
    }
    behind_zeros(scores.clone(), columns - width)
}

/// The scores of the entries, `[batch, kv_heads, entries]`, f32.
pub(in crate::cache) fn score(policy: &Policy, view: &LayerView<'_>) -> Result<Tensor<3>> {
    let scorer = policy.scorer();
    let scores = scorer.score(view)?;
    let (found, expected) = (scores.dims(), view.positions().dims());
    if found == expected {
        return Ok(scores.cast(DType::F32));
    }
    let reason = format!("returned {found:?}, expected {expected:?}");
    Err(Error::stage("scorer", scorer.name(), reason))
}

fn measure(policy: &Policy, view: &LayerView<'_>) -> Result<Measure> {
    let allocator = policy.allocator();
    let of_rows = allocator.measure(view)?;
    let rows = view.seen.len();
    if of_rows.len() == rows && of_rows.iter().all(|x| x.is_finite()) {
        return Ok(Measure { of_rows, seen: view.seen.to_vec() });
    }
    let reason = format!("measured {of_rows:?}, expected a finite number for each of {rows} rows");
    Err(Error::stage("allocator", allocator.name(), reason))
}

/// Returns the number of entries that an allocation lets each head keep, per batch row and kv head,
/// rows first. `arrived` are the new tokens per batch row.
pub(in crate::cache) fn kept_per_head(
    policy: &Policy,
    view: &LayerView<'_>,
    allocation: Allocation,
    arrived: &[usize],
) -> Result<Vec<usize>> {
    let (rows, heads) = (view.seen.len(), view.shape.kv_heads);
    let fail = |found: &[usize], expected: String| {
        let reason = format!("returned {found:?}, expected at least 1 for each of {expected}");
        Err(Error::stage("allocator", policy.allocator().name(), reason))
    };
    let mut kept: Vec<usize> = match allocation {
        Allocation::Rows(keep) if keep.len() != rows || keep.contains(&0) => {
            return fail(&keep, format!("{rows} rows"));
        }
        Allocation::Rows(keep) => {
            keep.into_iter().flat_map(|keep| std::iter::repeat_n(keep, heads)).collect()
        }
        Allocation::Heads(keep) if keep.len() != rows * heads || keep.contains(&0) => {
            return fail(&keep, format!("{rows} rows of {heads} heads"));
        }
        Allocation::Heads(keep) => keep,
    };
    // A row that only received padding waits for its own tokens, as it would alone.
    if arrived.contains(&0) {
        for (head, entries) in distinct(view.entries, view.lengths).into_iter().enumerate() {
            if arrived[head / heads] == 0 {
                kept[head] = entries.max(kept[head]);
            }
        }
    }
    Ok(kept)
}

/// Whether a head holds more entries than it may keep.
pub(in crate::cache) fn exceeds(view: &LayerView<'_>, keep: &[usize]) -> bool {
    distinct(view.entries, view.lengths).iter().zip(keep).any(|(held, keep)| held > keep)
}

/// Number of entries per head: tokens that share an entry count once.
pub(in crate::cache) fn distinct(entries: &Entries, held: &[usize]) -> Vec<usize> {
    entries.clustering.as_ref().map_or_else(|| held.to_vec(), Clustering::row_counts)
}

/// Runs the reducer, which keeps `keep` entries per head, and checks the entries it returns.
pub(in crate::cache) fn reduce(
    policy: &Policy,
    view: &LayerView<'_>,
    keep: &[usize],
) -> Result<Reduced> {
    let reducer = policy.reducer();
    let reduced = reducer.reduce(view, keep)?;
    let Reduced { entries, counts, .. } = &reduced;
    let widest = counts.iter().copied().max().unwrap_or(0);
    let emptied = || counts.iter().zip(view.lengths).any(|(&left, &held)| left == 0 && held > 0);
    let columns = entries.columns();
    let fits = columns == widest || view.packs_heads && columns > widest;
    if counts.len() != view.lengths.len() || emptied() || !fits {
        let reason = format!(
            "returned {columns} columns and counts {counts:?}, expected at least 1 for each of {} heads and as many \
             columns as the most",
            view.lengths.len()
        );
        return Err(Error::stage("reducer", reducer.name(), reason));
    }
    Ok(reduced)
}
