//! Score, allocate, reduce: what becomes of the entries of a layer.

use burn::tensor::{DType, Tensor};

use super::{Entries, Sharing, Statistic, pages, progress::Phase};
use crate::{
    Error, LayerView, Policy, PrefillCompression, Result,
    allocate::Allocation,
    device::{Rows, buffer_bytes},
    policy::AppendOnly,
    reduce::Reduced,
};

/// The work a call is the time for.
#[derive(Clone, Copy)]
pub(super) struct Due {
    /// A prompt, or a chunk after which there is a compression, has arrived.
    pub(super) prompt: bool,
    /// The policy compresses now.
    pub(super) compress: bool,
}

impl Due {
    /// The work a call of this phase is the time for.
    pub(super) fn of(policy: &Policy, phase: Phase) -> Self {
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
            Phase::Decode { decoded } => {
                schedule.decode_every.is_some_and(|every| decoded >= every)
            }
        };
        let prompt = match phase {
            Phase::Prompt { missing, .. } => missing == 0 || compress,
            Phase::Decode { .. } => false,
        };
        Self { prompt, compress }
    }
}

/// The rest of a layer after a compression.
pub(super) struct Compressed {
    pub(super) entries: Entries,
    /// Tokens held, by heads.
    pub(super) counts: Vec<usize>,
    pub(super) state: Option<Tensor<2>>,
    /// The scores of what is left, if it may have to be compressed again.
    pub(super) scores: Option<Tensor<3>>,
}

/// The scores and counts needed to compress a layer again when later layers of the prompt have arrived.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// `[batch, kv_heads, entries]`, of the entries held.
    pub(super) scores: Tensor<3>,
    pub(super) arrived: Vec<usize>,
    pub(super) seen: Vec<usize>,
    pub(super) budget: Vec<usize>,
}

impl Snapshot {
    pub(super) fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.scores, rows)
    }
}

/// The findings of [`compress`].
#[derive(Default)]
pub(super) struct Findings {
    /// The entries left, if the layer decides for itself and something is to go.
    pub(super) reduced: Option<Compressed>,
    /// The numbers the allocator measured.
    pub(super) measure: Option<Vec<f64>>,
    /// For layers that are compressed together.
    pub(super) snapshot: Option<Snapshot>,
}

/// Measures the layer if its allocator does, and compresses it if it decides for itself. `arrived` are its new tokens, by
/// rows.
pub(super) fn compress(
    policy: &Policy,
    view: LayerView<'_>,
    arrived: &[usize],
    due: Due,
) -> Result<Findings> {
    let allocator = policy.allocator();
    if due.prompt && allocator.measures() {
        let measure = Some(measure(policy, &view)?);
        let snapshot = |scores| Snapshot {
            scores,
            arrived: arrived.to_vec(),
            seen: view.seen.to_vec(),
            budget: view.budget.to_vec(),
        };
        let scores = due.compress.then(|| score(policy, &view)).transpose()?;
        return Ok(Findings { reduced: None, measure, snapshot: scores.map(snapshot) });
    }
    if !due.compress {
        return Ok(Findings::default());
    }
    if let (false, Some(append)) = (view.prompt, policy.schedule().append_only) {
        let new = policy.schedule().decode_every.unwrap_or(1);
        let scores = score(policy, &view)?;
        let view = LayerView { scores: Some(&scores), ..view };
        let shares = shares(policy, &view, allocator.allocate(&view)?)?;
        let reduced = appended(&view, append, new, &shares)?;
        return Ok(Findings { reduced, ..Findings::default() });
    }
    let known = allocator.reads_scores().then(|| score(policy, &view)).transpose()?;
    let keep = allocate(policy, &LayerView { scores: known.as_ref(), ..view }, arrived)?;
    let Some(keep) = keep else { return Ok(Findings::default()) };
    let scores = known.map_or_else(|| score(policy, &view), Ok)?;
    let reduced = reduce(policy, &LayerView { scores: Some(&scores), ..view }, &keep)?;
    Ok(Findings { reduced: Some(reduced), ..Findings::default() })
}

/// Compresses a layer whose scores are known, with what was measured of the layers that have arrived; `more` are
/// still to come. `None` if it is within its budget.
pub(super) fn compress_among_layers(
    policy: &Policy,
    view: LayerView<'_>,
    snapshot: &Snapshot,
    more: bool,
) -> Result<Option<Compressed>> {
    let scores = widened(&snapshot.scores, view.entries.columns());
    let view = LayerView { scores: Some(&scores), ..view };
    let Some(mut keep) = allocate(policy, &view, &snapshot.arrived)? else { return Ok(None) };
    if more {
        // Shares fall as layers arrive, but rounded ones may rise again by one.
        keep.iter_mut().for_each(|keep| *keep += 1);
    }
    // The scores go where their entries go.
    let mut entries = view.entries.clone();
    entries.tracks = entries.tracks.with(Statistic::Scores, scores.clone());
    let mut compressed = reduce(policy, &LayerView { entries: &entries, ..view }, &keep)?;
    let (tracks, scores) = compressed.entries.tracks.without(Statistic::Scores);
    compressed.entries.tracks = tracks;
    // Statistics of query heads hold the scores of a kv head for each of its own.
    compressed.scores = scores.map(|scores| first_of_groups(scores, view.shape.kv_heads));
    Ok(Some(compressed))
}

/// What the first query head of each kv head has, `[batch, kv_heads, entries]`.
fn first_of_groups(x: Tensor<3>, kv_heads: usize) -> Tensor<3> {
    let [batch, heads, entries] = x.dims();
    if heads == kv_heads {
        return x;
    }
    let groups: Tensor<4> = x.reshape([batch, kv_heads, heads / kv_heads, entries]);
    groups.narrow(2, 0, 1).squeeze_dim(2)
}

/// The scores, right-aligned, with zeros before them: a store may lay entries out with more fillers than it was given, or fewer.
fn widened(scores: &Tensor<3>, columns: usize) -> Tensor<3> {
    let [batch, heads, width] = scores.dims();
    if width >= columns {
        // A store may have left columns out that are padding in every row.
        return scores.clone().narrow(2, width - columns, columns);
    }
    let fillers =
        Tensor::zeros([batch, heads, columns - width], (&scores.device(), scores.dtype()));
    Tensor::cat(vec![fillers, scores.clone()], 2)
}

/// The scores of the entries, `[batch, kv_heads, entries]`, f32.
pub(super) fn score(policy: &Policy, view: &LayerView<'_>) -> Result<Tensor<3>> {
    let scorer = policy.scorer();
    let scores = scorer.score(view)?;
    let (found, expected) = (scores.dims(), view.positions().dims());
    if found == expected {
        return Ok(scores.cast(DType::F32));
    }
    let reason = format!("returned {found:?}, expected {expected:?}");
    Err(Error::Stage { stage: "scorer", name: scorer.name().to_owned(), reason })
}

/// The numbers the allocator measures of the layer, one number a batch row.
fn measure(policy: &Policy, view: &LayerView<'_>) -> Result<Vec<f64>> {
    let allocator = policy.allocator();
    let measure = allocator.measure(view)?;
    let rows = view.seen.len();
    if measure.len() == rows && measure.iter().all(|x| x.is_finite()) {
        return Ok(measure);
    }
    let reason = format!("measured {measure:?}, expected a finite number for each of {rows} rows");
    Err(Error::Stage { stage: "allocator", name: allocator.name().to_owned(), reason })
}

/// The share of each head of what the allocator has said.
fn shares(policy: &Policy, view: &LayerView<'_>, allocation: Allocation) -> Result<Vec<usize>> {
    let allocator = policy.allocator();
    let heads = view.shape.kv_heads;
    let fail = |found: &[usize], what: &str| {
        let reason = format!("returned {found:?}, expected at least 1 for each of {what}");
        Err(Error::Stage { stage: "allocator", name: allocator.name().to_owned(), reason })
    };
    let rows = view.seen.len();
    Ok(match allocation {
        Allocation::Rows(keep) if keep.len() != rows || keep.contains(&0) => {
            return fail(&keep, &format!("{rows} rows"));
        }
        Allocation::Rows(keep) => {
            keep.into_iter().flat_map(|keep| std::iter::repeat_n(keep, heads)).collect()
        }
        Allocation::Heads(keep) if keep.len() != rows * heads || keep.contains(&0) => {
            return fail(&keep, &format!("{rows} rows of {heads} heads"));
        }
        Allocation::Heads(keep) => keep,
    })
}

/// How many entries each head keeps; `None` if all of them hold no more.
fn allocate(
    policy: &Policy,
    view: &LayerView<'_>,
    arrived: &[usize],
) -> Result<Option<Vec<usize>>> {
    kept(policy, view, policy.allocator().allocate(view)?, arrived)
}

/// How many entries each head keeps of what the allocator has said; `None` if all of them hold no more.
pub(super) fn kept(
    policy: &Policy,
    view: &LayerView<'_>,
    allocation: Allocation,
    arrived: &[usize],
) -> Result<Option<Vec<usize>>> {
    let heads = view.shape.kv_heads;
    let mut keep = shares(policy, view, allocation)?;
    let entries = distinct(view.entries, view.held);
    for (head, keep) in keep.iter_mut().enumerate() {
        // A row that only received padding waits for its own tokens, as it would alone.
        if arrived[head / heads] == 0 {
            *keep = entries[head].max(*keep);
        }
    }
    Ok(entries.iter().zip(&keep).any(|(held, keep)| held > keep).then_some(keep))
}

/// Entries of each head: tokens that share one count once.
pub(super) fn distinct(entries: &Entries, held: &[usize]) -> Vec<usize> {
    entries.sharing.as_ref().map_or_else(|| held.to_vec(), Sharing::all_entries)
}

/// What is left of a layer whose entries are not rewritten, of which the last `new` of each head have come since the last
/// time; `None` if all of it is.
fn appended(
    view: &LayerView<'_>,
    append: AppendOnly,
    new: usize,
    shares: &[usize],
) -> Result<Option<Compressed>> {
    let Some(selection) = pages::select(view, append, new, shares)? else { return Ok(None) };
    let entries = view.selected(&selection)?;
    Ok(Some(Compressed { entries, counts: selection.counts, state: None, scores: None }))
}

/// The entries the reducer leaves: `keep` of each head.
pub(super) fn reduce(policy: &Policy, view: &LayerView<'_>, keep: &[usize]) -> Result<Compressed> {
    let reducer = policy.reducer();
    let Reduced { entries, counts, state } = reducer.reduce(view, keep)?;
    let widest = counts.iter().copied().max().unwrap_or(0);
    let emptied = || counts.iter().zip(view.held).any(|(&left, &held)| left == 0 && held > 0);
    let columns = entries.columns();
    let fits = columns == widest || view.packs_heads && columns > widest;
    if counts.len() != view.held.len() || emptied() || !fits {
        let reason = format!(
            "returned {columns} columns and counts {counts:?}, expected at least 1 for each of {} heads and as many \
             columns as the most",
            view.held.len()
        );
        return Err(Error::Stage { stage: "reducer", name: reducer.name().to_owned(), reason });
    }
    Ok(Compressed { entries, counts, state, scores: None })
}
