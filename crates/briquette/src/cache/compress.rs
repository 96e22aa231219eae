//! Score, allocate, reduce: what becomes of the entries of a layer.

use burn::tensor::{DType, Tensor};

use super::{Entries, LastQueries, Sharing, Track, layer::Context};
use crate::{
    Error, Result,
    allocate::{AllocateInput, Allocation, LazyScores},
    device::{Rows, buffer_bytes},
    reduce::{ReduceInput, Reduced},
    score::{ScoreInput, Scorer},
};

/// Entries of one layer, with what is known of them on the host. Heads: one number a batch row and kv head.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) entries: &'a Entries,
    /// Tokens held, by heads.
    pub(super) held: &'a [usize],
    /// How many of them are new, by rows.
    pub(super) arrived: &'a [usize],
    /// Tokens seen, by rows.
    pub(super) seen: &'a [usize],
    /// Tokens to keep, by rows.
    pub(super) budget: &'a [usize],
    /// Whether tokens of a prompt have just arrived.
    pub(super) prompt: bool,
    /// What the reducer remembers.
    pub(super) state: Option<&'a Tensor<2>>,
}

/// What a call is the time for.
#[derive(Clone, Copy)]
pub(super) struct Due {
    /// A prompt, or a chunk after which there is a compression, has arrived.
    pub(super) prompt: bool,
    /// The policy compresses now.
    pub(super) compress: bool,
}

/// What is left of a layer.
pub(super) struct Compressed {
    pub(super) entries: Entries,
    /// Tokens held, by heads.
    pub(super) counts: Vec<usize>,
    pub(super) state: Option<Tensor<2>>,
    /// The scores of what is left, if it may have to be compressed again.
    pub(super) scores: Option<Tensor<3>>,
}

/// What is needed to compress a layer again when later layers of the prompt have arrived.
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

/// What [`compress`] finds.
pub(super) struct Findings {
    /// What is left, if the layer decides for itself and something is to go.
    pub(super) reduced: Option<Compressed>,
    /// What the allocator measured.
    pub(super) measure: Option<Vec<f64>>,
    /// For layers that are compressed together.
    pub(super) snapshot: Option<Snapshot>,
}

/// Measures the layer if its allocator does, and compresses it if it decides for itself.
pub(super) fn compress(
    context: Context<'_>,
    view: View<'_>,
    window: &LastQueries<'_>,
    window_queries: &[usize],
    due: Due,
) -> Result<Findings> {
    let Context { layer, shape, policy, config, observes, .. } = context;
    let allocator = policy.allocator();
    let mut findings = Findings { reduced: None, measure: None, snapshot: None };
    let measures = allocator.measures() && due.prompt;
    if !measures && !due.compress {
        return Ok(findings);
    }
    let with_input = |f: &mut dyn FnMut(&ScoreInput<'_>) -> Result<()>| {
        f(&ScoreInput {
            layer,
            shape,
            seen: view.seen,
            budget: view.budget,
            held: view.held,
            entries: view.entries,
            positions: &view.entries.positions,
            tracks: &view.entries.tracks,
            window: (observes.window > 0).then_some(window),
            window_queries,
            heads_differ: policy.makes_ragged_heads(),
            profile: policy.profile(),
            ops: config.ops.as_ref(),
        })
    };
    let compute = |other: Option<&dyn Scorer>| {
        let scorer = other.unwrap_or(policy.scorer());
        let mut scores = None;
        with_input(&mut |input| {
            scores = Some(scorer.score(input)?);
            Ok(())
        })?;
        let found = scores.as_ref().map(Tensor::dims);
        let expected = [view.seen.len(), shape.kv_heads, view.entries.columns()];
        match scores {
            Some(scores) if scores.dims() == expected => Ok(scores.cast(DType::F32)),
            _ => {
                let reason = format!("returned {found:?}, expected {expected:?}");
                Err(Error::Stage { stage: "scorer", name: scorer.name().to_owned(), reason })
            }
        }
    };
    let scores = LazyScores::new(&compute);

    if measures {
        let mut measure = Vec::new();
        with_input(&mut |input| {
            measure = allocator.measure(input)?;
            Ok(())
        })?;
        let rows = view.seen.len();
        if measure.len() != rows || measure.iter().any(|x| !x.is_finite()) {
            let reason =
                format!("measured {measure:?}, expected a finite number for each of {rows} rows");
            let name = allocator.name().to_owned();
            return Err(Error::Stage { stage: "allocator", name, reason });
        }
        findings.measure = Some(measure);
        if due.compress {
            findings.snapshot = Some(Snapshot {
                scores: scores.get()?.clone(),
                arrived: view.arrived.to_vec(),
                seen: view.seen.to_vec(),
                budget: view.budget.to_vec(),
            });
        }
        return Ok(findings);
    }
    if let Some(keep) = allocation(context, view, &scores, context.measures)? {
        findings.reduced = Some(reduce(context, view, scores.get()?, &keep)?);
    }
    Ok(findings)
}

/// Compresses a layer whose scores are known, with what was measured of the layers that have arrived; `more` are
/// still to come. `None` if it is within its budget.
pub(super) fn compress_among_layers(
    context: Context<'_>,
    view: View<'_>,
    scores: &Tensor<3>,
    measures: &[Option<Vec<f64>>],
    more: bool,
) -> Result<Option<Compressed>> {
    let policy = context.policy;
    let scores = widened(scores, view.entries.columns());
    let none = |_: Option<&dyn Scorer>| {
        Err(Error::Stage {
            stage: "allocator",
            name: policy.allocator().name().to_owned(),
            reason: "asked for other scores than the policy's when layers are compressed together"
                .into(),
        })
    };
    let known = LazyScores::new(&none).known(scores.clone());
    let Some(mut keep) = allocation(context, view, &known, measures)? else { return Ok(None) };
    if more {
        // Shares fall as layers arrive, but rounded ones may rise again by one.
        keep.iter_mut().for_each(|keep| *keep += 1);
    }
    // The scores go where their entries go.
    let mut entries = view.entries.clone();
    entries.tracks = entries.tracks.with(Track::Scores, scores.clone());
    let view = View { entries: &entries, ..view };
    let mut compressed = reduce(context, view, &scores, &keep)?;
    (compressed.entries.tracks, compressed.scores) =
        compressed.entries.tracks.without(Track::Scores);
    Ok(Some(compressed))
}

/// The scores with zeros before them: a store may lay entries out with more fillers than it was given.
fn widened(scores: &Tensor<3>, columns: usize) -> Tensor<3> {
    let [batch, heads, width] = scores.dims();
    if width >= columns {
        return scores.clone();
    }
    let fillers =
        Tensor::zeros([batch, heads, columns - width], (&scores.device(), scores.dtype()));
    Tensor::cat(vec![fillers, scores.clone()], 2)
}

/// How many entries each head keeps; `None` if all of them hold no more.
fn allocation(
    context: Context<'_>,
    view: View<'_>,
    scores: &LazyScores<'_>,
    measures: &[Option<Vec<f64>>],
) -> Result<Option<Vec<usize>>> {
    let Context { layer, shape, policy, .. } = context;
    let allocator = policy.allocator();
    let heads = shape.kv_heads;
    let input = AllocateInput {
        layer,
        shape,
        budget: view.budget,
        seen: view.seen,
        held: view.held,
        protect: policy.protect(),
        measures,
        profile: policy.profile(),
        scores,
    };
    let fail = |found: &[usize], what: &str| {
        let reason = format!("returned {found:?}, expected at least 1 for each of {what}");
        Err(Error::Stage { stage: "allocator", name: allocator.name().to_owned(), reason })
    };
    let rows = view.seen.len();
    let mut keep = match allocator.allocate(&input)? {
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
    };
    let entries = distinct(view.entries, view.held);
    for (head, keep) in keep.iter_mut().enumerate() {
        // A row that only received padding waits for its own tokens, as it would alone.
        if view.arrived[head / heads] == 0 {
            *keep = entries[head].max(*keep);
        }
    }
    Ok(entries.iter().zip(&keep).any(|(held, keep)| held > keep).then_some(keep))
}

/// Entries of each head: tokens that share one count once.
pub(super) fn distinct(entries: &Entries, held: &[usize]) -> Vec<usize> {
    entries.sharing.as_ref().map_or_else(|| held.to_vec(), Sharing::all_entries)
}

fn reduce(
    context: Context<'_>,
    view: View<'_>,
    scores: &Tensor<3>,
    keep: &[usize],
) -> Result<Compressed> {
    let Context { layer, shape, policy, config, .. } = context;
    let reducer = policy.reducer();
    let rounds = policy.store().packs_heads();
    let Reduced { entries, counts, state } = reducer.reduce(ReduceInput {
        layer,
        shape,
        entries: view.entries.clone(),
        held: view.held,
        keep,
        protect: policy.protect(),
        prompt: view.prompt,
        check: config.input_check.applies(view.prompt),
        scores,
        state: view.state,
        rounds,
        ops: config.ops.as_ref(),
    })?;
    let widest = counts.iter().copied().max().unwrap_or(0);
    let emptied = || counts.iter().zip(view.held).any(|(&left, &held)| left == 0 && held > 0);
    let columns = entries.columns();
    let fits = columns == widest || rounds && columns > widest;
    if counts.len() != view.held.len() || emptied() || !fits {
        let reason = format!(
            "returned {} columns and counts {counts:?}, expected at least 1 for each of {} heads and as many \
             columns as the most",
            entries.columns(),
            view.held.len()
        );
        return Err(Error::Stage { stage: "reducer", name: reducer.name().to_owned(), reason });
    }
    Ok(Compressed { entries, counts, state, scores: None })
}
