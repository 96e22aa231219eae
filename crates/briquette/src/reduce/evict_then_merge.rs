use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{Reduced, Reducer};
use crate::{
    Error, LayerView, Result,
    budget::{Budget, Protect},
    check,
    observes::Observes,
    ops::{
        ClassifyInput, ClassifyOutput, Groups, MergeInput, MergedRows, NearestInput, NearestOutput,
        RegroupInput, RegroupOutput, RowWeightsInput, SelectInput, Selection, Split, Table,
        aligned, aligned_rows, counted, few_widths_from, moved, norm, select_entries, unit,
    },
    ops::{Entries, Sharing, Track, Tracks},
    spec::is_default,
};

/// Evicts what matters least and merges what matters a little into what matters most: EMS (Li et al., 2024, section 4.2,
/// Eq. 5).
///
/// Of `B` entries the last tokens keep one each; the others are centers, those with the highest scores. The next
/// (`gamma` − 1) · B are merged into the center they are most redundant with, R = cos(keys) · cos(values), and the rest
/// is evicted. Where R is at most `tau` the token goes to the zero class, which is eviction too. Keys are merged as
/// unit vectors, weighted by score, and each token keeps the norm of its own key and its own position; values are
/// merged as they are.
///
/// In decoding the tokens that leave the window become centers, and the centers that matter least are merged
/// with all their tokens. No more than (`gamma` − 1) · B tokens besides the centers are remembered: those that matter
/// least are forgotten first.
///
/// All of it is decided on the device. The host knows how many entries a head keeps, but of tokens only how many there may
/// be: there are columns for as many, and those that hold none come first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EvictThenMerge {
    /// Tokens remembered, in budgets: 1 merges nothing, infinity evicts nothing before merging (Table 7).
    #[serde(with = "crate::infinite")]
    pub gamma: f64,
    /// The redundancy above which a token is merged: 1 merges nothing.
    pub tau: f64,
    /// At which position merged keys are encoded, if the policy holds keys before encoding.
    #[serde(default)]
    pub rotate: Rotate,
    /// What makes two tokens redundant (Table 8).
    #[serde(default, skip_serializing_if = "is_default")]
    pub redundancy: Redundancy,
    /// What tokens weigh when they are merged.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weights: MergeWeights,
}

impl Default for EvictThenMerge {
    /// The paper's: γ = 4, τ = 0.6.
    fn default() -> Self {
        Self {
            gamma: 4.0,
            tau: 0.6,
            rotate: Rotate::default(),
            redundancy: Redundancy::default(),
            weights: MergeWeights::default(),
        }
    }
}

/// What makes two tokens redundant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// The product of the cosines of their keys and of their values.
    #[default]
    KeysAndValues,
    /// The cosine of their keys.
    Keys,
    /// The cosine of their values.
    Values,
}

/// What tokens weigh when they are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeWeights {
    /// The score they are ranked by.
    #[default]
    Score,
    /// The attention they have received from all queries.
    Attention,
}

/// At which position the key of a merged token is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotate {
    /// Its own.
    #[default]
    Own,
    /// That of its center.
    Center,
}

impl EvictThenMerge {
    /// Tokens besides the centers that are remembered beside `entries` entries.
    fn others(&self, entries: usize) -> usize {
        // Infinity becomes the largest whole number.
        ((self.gamma - 1.0) * entries as f64) as usize
    }
}

impl Reducer for EvictThenMerge {
    fn name(&self) -> &str {
        "evict-then-merge"
    }

    fn summary(&self) -> String {
        format!("{}, γ {}, τ {}", self.name(), self.gamma, self.tau)
    }

    fn check(&self) -> Result<()> {
        if self.gamma != f64::INFINITY {
            check::factor("reduce.gamma", self.gamma)?;
        }
        check::share("reduce.tau", self.tau)
    }

    fn check_budget(&self, budget: Budget, _: Protect) -> Result<()> {
        match budget {
            Budget::Bytes(_) if self.gamma == f64::INFINITY => {
                check::refuse("reduce.gamma", self.gamma, "finite under a budget in bytes")
            }
            _ => Ok(()),
        }
    }

    fn observes(&self) -> Observes {
        match self.weights {
            MergeWeights::Score => Observes::nothing(),
            MergeWeights::Attention => Observes::column_sums(),
        }
    }

    fn makes_shared_entries(&self) -> bool {
        true
    }

    fn columns(&self, entries: usize) -> usize {
        entries.saturating_add(self.others(entries))
    }

    fn encodes_at_center(&self) -> bool {
        self.rotate == Rotate::Center
    }

    fn steps_alike(&self) -> bool {
        true
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let scores = view.scores(self.name())?;
        if view.check {
            check_scores(view, scores)?;
        }
        let table = Table::of(view.entries, view.ops)?;
        let table = table.unwrap_or_else(|| Table::of_own(view.entries, view.held));
        let counts = Counts::new(self, view, keep, &table.entries);
        let step = Step { reducer: self, view, scores, table: &table, counts: &counts };
        let classes = step.classes()?;
        let tokens = step.tokens(&classes)?;
        let Classes { keys, values, .. } = classes;
        let Tokens { positions, tracks, sharing } = tokens;
        let entries = Entries { keys, values, positions, tracks, sharing: Some(sharing) };
        Ok(Reduced { entries, counts: counts.tokens, state: None })
    }
}

/// Refuses scores that cannot be ordered.
fn check_scores(view: &LayerView<'_>, scores: &Tensor<3>) -> Result<()> {
    let nothing = view.entries.positions.clone().lower_scalar(0);
    let nan = scores.clone().is_nan().int().mask_fill(nothing, 0).sum();
    match nan.try_into_vec_as::<i64>()?.first() {
        Some(&count) if count > 0 => {
            let (layer, count) = (view.layer, count as usize);
            Err(Error::NotFinite { what: "scores", layer, count })
        }
        _ => Ok(()),
    }
}

/// What the host knows of the heads: one number a batch row and kv head, rows first.
struct Counts {
    /// Entries of the window, which stay as they are: the last.
    recent: Vec<usize>,
    /// How many of those before stay and may be merged into.
    centers: Vec<usize>,
    /// How many of the others are merged if they find one.
    merging: Vec<usize>,
    /// Entries that are left.
    entries: Vec<usize>,
    /// Tokens that are left, at most.
    tokens: Vec<usize>,
}

impl Counts {
    fn new(
        reducer: &EvictThenMerge,
        view: &LayerView<'_>,
        keep: &[usize],
        entries: &[usize],
    ) -> Self {
        let of_heads = |f: &dyn Fn(usize) -> usize| (0..entries.len()).map(f).collect::<Vec<_>>();
        let recent = of_heads(&|head| {
            let recent = view.protect.recent_tokens(keep[head]);
            recent.min(keep[head]).min(entries[head])
        });
        let older = of_heads(&|head| entries[head] - recent[head]);
        let centers = of_heads(&|head| older[head].min(keep[head] - recent[head]));
        let merging = of_heads(&|head| match centers[head] {
            0 => 0,
            centers => (older[head] - centers).min(reducer.others(keep[head])),
        });
        let entries = of_heads(&|head| centers[head] + recent[head]);
        let tokens = of_heads(&|head| {
            view.held[head].min(entries[head].saturating_add(reducer.others(keep[head])))
        });
        Self { recent, centers, merging, entries, tokens }
    }
}

fn most(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// The weights of tokens: one of no score must not make a class of weight zero, and sums must be finite.
const WEIGHTS: (f32, f32) = (1e-12, 1e30);

/// One call, on the device.
struct Step<'a> {
    reducer: &'a EvictThenMerge,
    view: &'a LayerView<'a>,
    scores: &'a Tensor<3>,
    table: &'a Table,
    counts: &'a Counts,
}

/// What entries become.
struct Classes {
    /// Directions of keys, `[batch, kv_heads, entries, head_dim]`.
    keys: Tensor<4>,
    /// `[batch, kv_heads, entries, head_dim]`
    values: Tensor<4>,
    /// The column of the center of each, as they were, −1 at fillers, `[batch, kv_heads, entries]`.
    columns: Tensor<3, Int>,
    /// The row that each was, `[batch, kv_heads, entries]`.
    left: Tensor<3, Int>,
    /// The rows that others were, if there are any.
    merged: Option<Merged>,
}

/// What tokens become.
struct Tokens {
    positions: Tensor<3, Int>,
    tracks: Tracks,
    sharing: Sharing,
}

/// Which of the entries may go where.
struct Merged {
    /// Rows of the entries to be merged.
    rows: Selection,
    /// The center each is most redundant with.
    nearest: NearestOutput,
    /// From what number on the centers of each head are counted there.
    first: Vec<usize>,
}

impl Step<'_> {
    fn classes(&self) -> Result<Classes> {
        let Self { view, table, counts, .. } = self;
        let ops = view.ops;
        // Centers and the window.
        let scores = self.scores.clone().gather(2, table.centers.clone());
        let Split { kept, rest } = ops.split(SelectInput {
            scores: &scores,
            lengths: &table.entries,
            keep: &counts.entries,
            sinks: view.protect.sinks,
            recent: &counts.recent,
            check: false,
        })?;
        let merging = self.merging(&scores, rest)?;

        // An entry is a key, a value, the column of its center, and the weight of its tokens.
        let all = Entries {
            keys: view.entries.keys.clone(),
            values: view.entries.values.clone(),
            positions: table.centers.clone(),
            tracks: Tracks::new([(Track::Scores, self.weights()?)]),
            sharing: None,
        };
        let left = select_entries(all.clone(), &kept, ops)?;
        let columns = left.positions.clone();
        let (keys, values, merged) = match merging {
            None => (unit(left.keys).cast(all.keys.dtype()), left.values, None),
            Some(rows) => {
                let from = select_entries(all, &rows, ops)?;
                let (keys, values, merged) = self.merge(left, from, rows)?;
                (keys, values, Some(merged))
            }
        };
        Ok(Classes { keys, values, columns, left: kept.indices, merged })
    }

    /// Of the rows that are not kept those to be merged; `None` if there are none.
    fn merging(&self, scores: &Tensor<3>, rest: Selection) -> Result<Option<Selection>> {
        let Self { view, counts, .. } = self;
        if most(&counts.merging) == 0 {
            return Ok(None);
        }
        if counts.merging == rest.counts {
            return Ok(Some(rest));
        }
        let best = view.ops.select(SelectInput {
            scores: &scores.clone().gather(2, rest.indices.clone()),
            lengths: &rest.counts,
            keep: &counts.merging,
            sinks: 0,
            recent: &vec![0; counts.merging.len()],
            check: false,
        })?;
        let indices = rest.indices.gather(2, best.indices);
        Ok(Some(Selection { indices, counts: best.counts }))
    }

    /// The weight of each row: the scores of its tokens, `[batch, kv_heads, rows]`.
    fn weights(&self) -> Result<Tensor<3>> {
        let Self { view, table, reducer, .. } = self;
        let positions = view.entries.positions.clone();
        let scores = match reducer.weights {
            MergeWeights::Score => self.scores.clone(),
            MergeWeights::Attention => {
                view.group_mean(view.track(Track::Sums, reducer.name())?.clone())
            }
        };
        if view.entries.sharing.is_none() {
            let scores = scores.clamp(WEIGHTS.0, WEIGHTS.1);
            return Ok(scores.mask_fill(positions.lower_scalar(0), 0.0));
        }
        Ok(view.ops.row_weights(RowWeightsInput {
            rows: table.rows.clone(),
            positions,
            scores,
            height: table.centers.dims()[2],
            bounds: WEIGHTS,
        })?)
    }

    /// Keys and values of what is `left` when what is like its centers has been merged into them: all but the window.
    fn merge(
        &self,
        left: Entries,
        from: Entries,
        rows: Selection,
    ) -> Result<(Tensor<4>, Tensor<4>, Merged)> {
        let Self { view, counts, .. } = self;
        let ops = view.ops;
        let (entries, centers) = (left.positions.dims()[2], most(&counts.centers));
        // Centers end where the window of their head begins; as many columns before it as the most has are looked at.
        let first: Vec<i64> = counts
            .recent
            .iter()
            .map(|&recent| (entries - recent) as i64 - centers as i64)
            .collect();
        let missing: Vec<usize> = counts.centers.iter().map(|&count| centers - count).collect();
        let to = |rows: &Tensor<4>| aligned_rows(rows.clone(), &first, centers);
        let keys = || (from.keys.clone(), to(&left.keys));
        let values = || (from.values.clone(), to(&left.values));
        let nearest = ops.nearest(NearestInput {
            pairs: match self.reducer.redundancy {
                Redundancy::KeysAndValues => vec![keys(), values()],
                Redundancy::Keys => vec![keys()],
                Redundancy::Values => vec![values()],
            },
            fillers: missing.clone(),
        })?;
        // What is no more like a center than that goes nowhere, nor does what is NaN.
        let goes = nearest.similarity.clone().greater_scalar(self.reducer.tau);
        let stays = match rows.fillers() {
            None => goes.bool_not(),
            Some(fillers) => goes.bool_not().bool_or(fillers),
        };
        let weight = |of: &Entries| {
            let weight = of.tracks.get(Track::Scores);
            weight.unwrap_or_else(|| Tensor::ones(of.positions.dims(), &of.positions.device()))
        };
        let (keys, values) = ops.merge(MergeInput {
            own: weight(&left),
            weights: weight(&from).mask_fill(stays, 0.0),
            keys: left.keys,
            values: left.values,
            other_keys: from.keys,
            other_values: from.values,
            slot: moved(nearest.index.clone(), &first),
            directions: true,
        })?;
        Ok((keys, values, Merged { rows, nearest, first: missing }))
    }

    fn tokens(&self, classes: &Classes) -> Result<Tokens> {
        let Self { view, table, counts, .. } = self;
        let ops = view.ops;
        let ClassifyOutput { classes: of_columns, ranks } = ops.classify(ClassifyInput {
            rows: table.rows.clone(),
            height: table.centers.dims()[2],
            left: classes.left.clone(),
            entries: &counts.entries,
            merged: classes.merged.as_ref().map(|merged| MergedRows {
                rows: merged.rows.indices.clone(),
                counts: &merged.rows.counts,
                nearest: merged.nearest.index.clone(),
                first: &merged.first,
                similarity: merged.nearest.similarity.clone(),
                threshold: self.reducer.tau,
            }),
            centers: classes.columns.clone(),
            positions: view.entries.positions.clone(),
            scores: self.scores.clone(),
        })?;

        // The columns left, at most: those that hold nothing any more come first.
        let left = self.left(&ranks)?;
        let mut of_left = of_columns.gather(2, left.indices.clone());
        if let Some(fillers) = left.fillers() {
            of_left = of_left.mask_fill(fillers, -1);
        }
        let Groups { order, members, none } = ops.group(of_left.clone(), most(&counts.entries))?;
        let RegroupOutput { positions, entry, centers, norms, tracks } =
            ops.regroup(RegroupInput {
                columns: left.indices,
                classes: of_left,
                order,
                counts: &counts.tokens,
                centers: classes.columns.clone(),
                entries: &counts.entries,
                rows: table.rows.clone(),
                norms: table.norms.clone(),
                lengths: norm(view.entries.keys.clone()).squeeze_dim(3),
                positions: view.entries.positions.clone(),
                tracks: view.entries.tracks.clone(),
            })?;
        Ok(Tokens {
            positions,
            tracks,
            sharing: Sharing {
                tokens: counts.tokens.clone(),
                entries: counts.entries.clone(),
                own: vec![0; counts.tokens.len()],
                entry,
                norms,
                centers,
                members,
                none,
            },
        })
    }

    /// The columns that may stay: those with the highest ranks.
    fn left(&self, ranks: &Tensor<3>) -> Result<Selection> {
        let Self { view, counts, .. } = self;
        let columns = ranks.dims()[2];
        // A head may hold one more in every step, until it holds as many as it may.
        let wanted = most(&counts.tokens);
        let wanted = if view.packs_heads { few_widths_from(wanted) } else { wanted };
        if counts.tokens == view.held {
            let first = vec![columns as i64 - wanted as i64; counts.tokens.len()];
            let places = counted(ranks.dims(), &ranks.device());
            let indices = aligned(places, &first, wanted);
            return Ok(Selection { indices, counts: counts.tokens.clone() });
        }
        let left = view.ops.select(SelectInput {
            scores: ranks,
            lengths: view.held,
            keep: &counts.tokens,
            sinks: 0,
            recent: &vec![0; counts.tokens.len()],
            check: false,
        })?;
        Ok(left.widened(wanted))
    }
}
