use burn::tensor::{Bool, DType, IndexingUpdateOp, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reduced, Reducer};
use crate::{
    Error, Result,
    cache::{
        Entries, Sharing, Track, Tracks,
        sharing::{Table, aligned, aligned_rows, counted, moved},
    },
    check,
    ops::{
        AccumulateInput, ClassifyInput, Groups, MergeInput, Nearest, NearestInput, RegroupInput,
        Regrouped, SelectInput, Selection, Split, few_widths_from, norm, unit,
    },
};

/// Evicts what matters least and merges what matters a little into what matters most: EMS.
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
#[serde(deny_unknown_fields)]
pub struct EvictThenMerge {
    /// Tokens remembered, in budgets: 1 merges nothing.
    pub gamma: f64,
    /// The redundancy above which a token is merged: 1 merges nothing.
    pub tau: f64,
    /// At which position merged keys are encoded, if the policy holds keys before encoding.
    #[serde(default)]
    pub rotate: Rotate,
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
        check::factor("reduce.gamma", self.gamma)?;
        check::share("reduce.tau", self.tau)
    }

    fn makes_shared_entries(&self) -> bool {
        true
    }

    fn columns(&self, entries: usize) -> usize {
        entries + self.others(entries)
    }

    fn encodes_at_center(&self) -> bool {
        self.rotate == Rotate::Center
    }

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced> {
        if input.check {
            check_scores(&input)?;
        }
        let table = Table::of(&input.entries, input.ops);
        let table = table.unwrap_or_else(|| Table::of_own(&input.entries, input.held));
        let counts = Counts::new(self, &input, &table.entries);
        let nothing = input.entries.positions.clone().lower_scalar(0);
        let step = Step { tau: self.tau, input: &input, table: &table, counts: &counts, nothing };
        let classes = step.classes()?;
        let tokens = step.tokens(&classes)?;
        let Classes { keys, values, .. } = classes;
        let Tokens { positions, tracks, sharing } = tokens;
        let entries = Entries { keys, values, positions, tracks, sharing: Some(sharing) };
        Ok(Reduced { entries, counts: counts.tokens, state: None })
    }
}

/// Refuses scores that cannot be ordered.
fn check_scores(input: &ReduceInput<'_>) -> Result<()> {
    let nothing = input.entries.positions.clone().lower_scalar(0);
    let nan = input.scores.clone().is_nan().int().mask_fill(nothing, 0).sum();
    match nan.try_into_vec_as::<i64>()?.first() {
        Some(&count) if count > 0 => {
            let (layer, count) = (input.layer, count as usize);
            Err(Error::NotFinite { what: "scores", layer, count })
        }
        _ => Ok(()),
    }
}

/// What the host knows of the heads: one number a batch row and kv head, rows first.
struct Counts {
    /// Entries of the window, which stay as they are: the last.
    recent: Vec<usize>,
    /// Those before.
    older: Vec<usize>,
    /// How many of them stay and may be merged into.
    centers: Vec<usize>,
    /// How many of the others are merged if they find a center.
    merging: Vec<usize>,
    /// Entries that are left.
    entries: Vec<usize>,
    /// Tokens that are left, at most.
    tokens: Vec<usize>,
}

impl Counts {
    fn new(reducer: &EvictThenMerge, input: &ReduceInput<'_>, entries: &[usize]) -> Self {
        let of_heads = |f: &dyn Fn(usize) -> usize| (0..entries.len()).map(f).collect::<Vec<_>>();
        let keep = input.keep;
        let recent = of_heads(&|head| {
            let recent = input.protect.recent.tokens(keep[head]);
            recent.min(keep[head]).min(entries[head])
        });
        let older = of_heads(&|head| entries[head] - recent[head]);
        let centers = of_heads(&|head| older[head].min(keep[head] - recent[head]));
        let merging = of_heads(&|head| match centers[head] {
            0 => 0,
            centers => (older[head] - centers).min(reducer.others(keep[head])),
        });
        let entries = of_heads(&|head| centers[head] + recent[head]);
        let tokens =
            of_heads(&|head| input.held[head].min(entries[head] + reducer.others(keep[head])));
        Self { recent, older, centers, merging, entries, tokens }
    }
}

fn most(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// For each head a number that is one of all heads less one of its own.
fn less(number: usize, counts: &[usize]) -> Vec<i64> {
    counts.iter().map(|&count| number as i64 - count as i64).collect()
}

/// The weights of tokens: one of no score must not make a class of weight zero, and sums must be finite.
const WEIGHTS: (f64, f64) = (1e-12, 1e30);

/// One call, on the device. Rows are those of the entries, slots those of the entries before the window.
struct Step<'a> {
    tau: f64,
    input: &'a ReduceInput<'a>,
    table: &'a Table,
    counts: &'a Counts,
    /// Where columns hold no token, `[batch, kv_heads, columns]`.
    nothing: Tensor<3, Bool>,
}

/// What entries become.
struct Classes {
    /// Directions of keys, `[batch, kv_heads, entries, head_dim]`.
    keys: Tensor<4>,
    /// `[batch, kv_heads, entries, head_dim]`
    values: Tensor<4>,
    /// The column of the center of each, as they were; 0 at fillers. `[batch, kv_heads, entries]`
    columns: Tensor<3, Int>,
    /// For each row there was the entry it is in now, counted from the first of its head and from 1; 0 where it is
    /// evicted. `[batch, kv_heads, rows]`
    entry: Tensor<3, Int>,
}

/// What tokens become.
struct Tokens {
    positions: Tensor<3, Int>,
    tracks: Tracks,
    sharing: Sharing,
}

/// Which of the entries go where.
struct Merged {
    /// Slots of the entries to be merged, `[batch, kv_heads, merging]`.
    slots: Tensor<3, Int>,
    /// The center each goes to, counted from the first of its head and from 1; 0 if it goes nowhere.
    entry: Tensor<3, Int>,
}

impl Step<'_> {
    fn dims(&self, width: usize) -> [usize; 3] {
        let [batch, heads, _] = self.table.rows.dims();
        [batch, heads, width]
    }

    /// 0, 1, 2 … for every head.
    fn places(&self, width: usize) -> Tensor<3, Int> {
        counted(self.dims(width), &self.table.rows.device())
    }

    /// Of all entries one number each becomes one a slot.
    fn slots(&self, of_rows: Tensor<3, Int>) -> Tensor<3, Int> {
        let older = most(&self.counts.older);
        let first = less(of_rows.dims()[2] - older, &self.counts.recent);
        aligned(of_rows, &first, older)
    }

    /// Rows of slots.
    fn rows(&self, slots: Tensor<3, Int>) -> Tensor<3, Int> {
        let rows = self.table.centers.dims()[2];
        moved(slots, &less(rows - most(&self.counts.older), &self.counts.recent))
    }

    fn classes(&self) -> Result<Classes> {
        let Self { input, table, counts, .. } = self;
        let (ops, rows) = (input.ops, table.centers.dims()[2]);
        let no_window = vec![0; counts.older.len()];
        let scores = input.scores.clone().gather(2, self.slots(table.centers.clone()));
        let Split { kept, rest } = ops.split(SelectInput {
            layer: input.layer,
            scores: &scores,
            held: &counts.older,
            keep: &counts.centers,
            sinks: input.protect.sinks,
            recent: &no_window,
            check: false,
        })?;
        let merging = self.merging(&scores, rest)?;

        // An entry is a key, a value, the column of its center, and the weight of its tokens.
        let all = Entries {
            keys: input.entries.keys.clone(),
            values: input.entries.values.clone(),
            positions: table.centers.clone(),
            tracks: Tracks::default().with(Track::Scores, self.weights()),
            sharing: None,
        };
        let pick = |rows: Tensor<3, Int>, counts: &[usize]| {
            let selection = Selection { indices: rows, counts: counts.to_vec() };
            all.clone().select(&selection, ops)
        };
        // Centers, and from where they end the window.
        let recent = most(&counts.recent);
        let mut left = Vec::new();
        if kept.width() > 0 {
            left.push(self.rows(kept.indices.clone()));
        }
        if recent > 0 {
            let last = moved(self.places(recent), &less(rows, &counts.recent));
            left.push(last.clamp(0, rows as i64 - 1));
        }
        let entries = most(&counts.entries);
        let first = |&recent: &usize| (kept.width() + recent) as i64 - entries as i64;
        let in_line: Vec<i64> = counts.recent.iter().map(first).collect();
        let left = pick(aligned(Tensor::cat(left, 2), &in_line, entries), &counts.entries);
        let last = input.entries.columns() as i64 - 1;
        let columns = left.positions.clone().clamp(0, last);
        let (keys, values, merged) = match merging {
            None => (unit(left.keys).cast(all.keys.dtype()), left.values, None),
            Some(merging) => {
                let from = pick(self.rows(merging.indices.clone()), &merging.counts);
                let back: Vec<i64> = in_line.iter().map(|first| -first).collect();
                let (keys, values, merged) = self.merge(left, &back, kept.width(), from, merging);
                (keys, values, Some(merged))
            }
        };
        Ok(Classes { keys, values, columns, entry: self.entry_of_rows(&kept, merged) })
    }

    /// Of the entries that are not kept those to be merged, as slots; `None` if there are none.
    fn merging(&self, scores: &Tensor<3>, rest: Selection) -> Result<Option<Selection>> {
        let Self { input, counts, .. } = self;
        if most(&counts.merging) == 0 {
            return Ok(None);
        }
        if counts.merging == rest.counts {
            return Ok(Some(rest));
        }
        let best = input.ops.select(SelectInput {
            layer: input.layer,
            scores: &scores.clone().gather(2, rest.indices.clone()),
            held: &rest.counts,
            keep: &counts.merging,
            sinks: 0,
            recent: &vec![0; counts.merging.len()],
            check: false,
        })?;
        let indices = rest.indices.gather(2, best.indices);
        Ok(Some(Selection { indices, counts: best.counts }))
    }

    /// The weight of each row: the scores of its tokens, `[batch, kv_heads, rows]`.
    fn weights(&self) -> Tensor<3> {
        let scores = self.input.scores.clone().clamp(WEIGHTS.0, WEIGHTS.1);
        let scores = scores.mask_fill(self.nothing.clone(), 0.0);
        if self.input.entries.sharing.is_none() {
            return scores;
        }
        let rows = self.table.centers.dims()[2];
        let sums = self.input.ops.accumulate(AccumulateInput {
            weights: Tensor::ones(scores.dims(), (&scores.device(), DType::F32)),
            x: scores.unsqueeze_dim::<4>(3),
            slot: self.table.rows.clone(),
            span: 1,
            slots: rows,
        });
        sums.reshape(self.dims(rows))
    }

    /// Keys and values of what is `left` when what is like its `centers` has been merged into them; these begin in each
    /// head at a row of its own.
    fn merge(
        &self,
        left: Entries,
        first: &[i64],
        centers: usize,
        from: Entries,
        merging: Selection,
    ) -> (Tensor<4>, Tensor<4>, Merged) {
        let ops = self.input.ops;
        let missing = less(centers, &self.counts.centers);
        let to = |rows: &Tensor<4>| aligned_rows(rows.clone(), first, centers, ops);
        let Nearest { similarity, index } = ops.nearest(NearestInput {
            pairs: vec![
                (from.keys.clone(), to(&left.keys)),
                (from.values.clone(), to(&left.values)),
            ],
            fillers: missing.iter().map(|&missing| missing as usize).collect(),
        });
        let goes = similarity.greater_scalar(self.tau);
        let stays = match merging.fillers() {
            None => goes.bool_not(),
            Some(fillers) => goes.bool_not().bool_or(fillers),
        };
        let weight = |of: &Entries| {
            let weight = of.tracks.get(Track::Scores).cloned();
            weight.unwrap_or_else(|| Tensor::ones(of.positions.dims(), &index.device()))
        };
        let (keys, values) = ops.merge(MergeInput {
            own: weight(&left),
            weights: weight(&from).mask_fill(stays.clone(), 0.0),
            keys: left.keys,
            values: left.values,
            other_keys: from.keys,
            other_values: from.values,
            slot: moved(index.clone(), first),
            directions: true,
        });
        let entry = moved(index, &missing.iter().map(|missing| 1 - missing).collect::<Vec<_>>());
        (keys, values, Merged { slots: merging.indices, entry: entry.mask_fill(stays, 0) })
    }

    /// See [`Classes::entry`].
    fn entry_of_rows(&self, kept: &Selection, merged: Option<Merged>) -> Tensor<3, Int> {
        let Self { table, counts, .. } = self;
        let (older, width) = (most(&counts.older), most(&counts.recent));
        let mut entry = Tensor::<3, Int>::zeros(self.dims(older), &table.rows.device());
        // No two go to one place.
        let add = IndexingUpdateOp::Add;
        if kept.width() > 0 {
            let first = counts.centers.iter().map(|&count| 1 + count as i64 - kept.width() as i64);
            let number = moved(self.places(kept.width()), &first.collect::<Vec<_>>());
            entry = entry.scatter(2, kept.indices.clone(), number, add);
        }
        if let Some(Merged { slots, entry: number }) = merged {
            entry = entry.scatter(2, slots, number, add);
        }
        if width > 0 {
            let first: Vec<i64> = counts.centers.iter().map(|&count| 1 + count as i64).collect();
            entry = Tensor::cat(vec![entry, moved(self.places(width), &first)], 2);
        }
        let rows = table.centers.dims()[2] as i64;
        let first = counts.recent.iter().map(|&recent| (older + recent) as i64 - rows);
        aligned(entry, &first.collect::<Vec<_>>(), rows as usize)
    }

    fn tokens(&self, classes: &Classes) -> Result<Tokens> {
        let Self { input, table, counts, .. } = self;
        let ops = input.ops;
        let (of_columns, ranks) = ops.classify(ClassifyInput {
            rows: table.rows.clone(),
            entry: classes.entry.clone(),
            centers: classes.columns.clone(),
            entries: &counts.entries,
            positions: input.entries.positions.clone(),
            scores: input.scores.clone(),
        });

        // The columns left, at most: those that hold nothing any more come first.
        let left = self.left(&ranks)?;
        let mut of_left = of_columns.gather(2, left.indices.clone());
        if let Some(fillers) = left.fillers() {
            of_left = of_left.mask_fill(fillers, -1);
        }
        let Groups { order, members, none } = ops.group(of_left.clone(), most(&counts.entries))?;
        let Regrouped { positions, entry, centers, norms, tracks } = ops.regroup(RegroupInput {
            columns: left.indices,
            classes: of_left,
            order,
            counts: &counts.tokens,
            centers: classes.columns.clone(),
            entries: &counts.entries,
            rows: table.rows.clone(),
            norms: table.norms.clone(),
            lengths: norm(input.entries.keys.clone()).squeeze_dim(3),
            positions: input.entries.positions.clone(),
            tracks: input.entries.tracks.clone(),
        });
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
        let Self { input, counts, .. } = self;
        let columns = ranks.dims()[2];
        // A head may hold one more in every step, until it holds as many as it may.
        let wanted = most(&counts.tokens);
        let wanted = if input.rounds { few_widths_from(wanted) } else { wanted };
        if counts.tokens == input.held {
            let first = vec![columns as i64 - wanted as i64; counts.tokens.len()];
            let indices = aligned(self.places(columns), &first, wanted);
            return Ok(Selection { indices, counts: counts.tokens.clone() });
        }
        let left = input.ops.select(SelectInput {
            layer: input.layer,
            scores: ranks,
            held: input.held,
            keep: &counts.tokens,
            sinks: 0,
            recent: &vec![0; counts.tokens.len()],
            check: false,
        })?;
        Ok(left.widened(wanted))
    }
}
