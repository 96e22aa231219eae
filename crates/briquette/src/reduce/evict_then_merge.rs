use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{InPlace, Reduced, Reducer};
use crate::{
    Error, LayerView, Result,
    budget::{Budget, Protect},
    check,
    ops::{
        AssignClustersInput, AssignClustersOutput, ClusterOrder, ClusterTable, EvictClusterInput,
        MergeInput, MergedRows, NearestInput, NearestOutput, ReorderTokensInput,
        ReorderTokensOutput, RowWeightsInput, SelectInput, Selection, Split, bucketed_width, iota,
        norm, offset_per_head, select_entries, slice_per_head, slice_rows_per_head, unit,
    },
    ops::{AttentionStatistics, Clustering, Entries, Statistic},
    stage::{AttentionRequest, is_default},
};

/// Evicts what matters least and merges what matters a little into what matters most: EMS (Li et
/// al., 2024, section 4.2, Eq. 5).
///
/// Of a head's `B` entries the last tokens keep one each; the others belong to representatives, the
/// tokens with the highest scores. The next (`gamma` − 1) · B tokens are merged into the
/// representative they are most redundant with, R = cos(keys) · cos(values), and the rest are
/// evicted. A token whose R is at most `tau` falls into the zero class, which is eviction too. Keys
/// are merged as unit vectors, weighted by score, and each token keeps the norm of its own key and
/// its own position. Values are merged as they are.
///
/// In decoding the tokens that leave the window become representatives, and the representatives
/// that matter least are merged with all their tokens. At most (`gamma` − 1) · B tokens besides the
/// representatives are kept; those that matter least are dropped first.
///
/// The device makes all decisions. The host knows how many entries a head keeps, but only an upper
/// bound of its tokens. There are columns for that many, and empty ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EvictThenMerge {
    /// Number of tokens kept, as a multiple of the budget: 1 merges nothing, infinity evicts
    /// nothing before merging (Table 7).
    #[serde(with = "crate::stage::infinite")]
    pub gamma: f64,
    /// The redundancy above which a token is merged: 1 merges nothing.
    pub tau: f64,
    /// Position at which merged keys are encoded, if the policy holds keys before encoding.
    #[serde(default)]
    pub rotate: Rotate,
    /// Measure of redundancy of two tokens (Table 8).
    #[serde(default, skip_serializing_if = "is_default")]
    pub redundancy: Redundancy,
    /// Weights of tokens when they are merged.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weights: MergeWeights,
}

impl Default for EvictThenMerge {
    /// Defaults of the paper: γ = 4, τ = 0.6.
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

/// Measure of redundancy of two tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Redundancy {
    /// The product of the cosines of their keys and of their values.
    #[default]
    KeysAndValues,
    /// The cosine of their keys.
    Keys,
    /// The cosine of their values.
    Values,
}

/// Weights of tokens when they are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MergeWeights {
    /// The score they are ranked by.
    #[default]
    Score,
    /// The attention they have received from all queries.
    Attention,
}

/// Position at which the key of a merged token is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Rotate {
    /// Its own.
    #[default]
    Own,
    /// That of its representative.
    Center,
}

impl EvictThenMerge {
    /// Maximum number of tokens that `entries` clusters keep besides their representatives.
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

    fn observes(&self) -> AttentionRequest {
        match self.weights {
            MergeWeights::Score => AttentionRequest::nothing(),
            MergeWeights::Attention => AttentionRequest::column_sums(),
        }
    }

    fn makes_clusters(&self) -> bool {
        true
    }

    fn columns(&self, entries: usize) -> usize {
        entries.saturating_add(self.others(entries))
    }

    fn reduces_in_place(&self) -> bool {
        self.redundancy == Redundancy::default() && self.weights == MergeWeights::default()
    }

    fn in_place(&self, _: &LayerView<'_>) -> Result<InPlace> {
        Ok(InPlace::Cluster { threshold: self.tau })
    }

    fn encodes_at_representative(&self) -> bool {
        self.rotate == Rotate::Center
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let scores = view.scores(self.name())?;
        if view.check {
            check_scores(view, scores)?;
        }
        let table = ClusterTable::of(view.entries, view.ops)?;
        let table =
            table.unwrap_or_else(|| ClusterTable::of_unclustered(view.entries, view.lengths));
        let counts = Counts::new(self, view, keep, &table.row_counts);
        let step = Step { reducer: self, view, scores, table: &table, counts: &counts };
        let entries = step.entries(step.clusters()?)?;
        Ok(Reduced::new(entries, counts.tokens))
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

/// Numbers of each head that the host knows: per batch row and kv head, rows first.
struct Counts {
    /// Clusters of the window, the last ones, which stay as they are.
    recent: Vec<usize>,
    /// Clusters before the window that stay and may be merged into.
    representatives: Vec<usize>,
    /// Other clusters that may be merged into those.
    merging: Vec<usize>,
    clusters: Vec<usize>,
    /// Maximum number of tokens that are kept.
    tokens: Vec<usize>,
}

impl Counts {
    fn new(
        reducer: &EvictThenMerge,
        view: &LayerView<'_>,
        keep: &[usize],
        row_counts: &[usize],
    ) -> Self {
        let of_heads =
            |f: &dyn Fn(usize) -> usize| (0..row_counts.len()).map(f).collect::<Vec<_>>();
        let recent = of_heads(&|head| {
            let recent = view.protect.recent_tokens(keep[head]);
            recent.min(keep[head]).min(row_counts[head])
        });
        let older = of_heads(&|head| row_counts[head] - recent[head]);
        let representatives = of_heads(&|head| older[head].min(keep[head] - recent[head]));
        let merging = of_heads(&|head| match representatives[head] {
            0 => 0,
            representatives => (older[head] - representatives).min(reducer.others(keep[head])),
        });
        let clusters = of_heads(&|head| representatives[head] + recent[head]);
        let heads = view.shape.kv_heads;
        let tokens = of_heads(&|head| {
            // Columns that may hold tokens may be more than tokens that were seen.
            let held = view.lengths[head].min(view.seen[head / heads]);
            held.min(clusters[head].saturating_add(reducer.others(keep[head])))
        });
        Self { recent, representatives, merging, clusters, tokens }
    }
}

fn most(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// One call, on the device.
struct Step<'a> {
    reducer: &'a EvictThenMerge,
    view: &'a LayerView<'a>,
    scores: &'a Tensor<3>,
    table: &'a ClusterTable,
    counts: &'a Counts,
}

/// Clusters after the merge.
struct MergedClusters {
    /// Directions of keys, `[batch, kv_heads, clusters, head_dim]`.
    keys: Tensor<4>,
    /// `[batch, kv_heads, clusters, head_dim]`
    values: Tensor<4>,
    /// Old column of the representative of each cluster, −1 at padding,
    /// `[batch, kv_heads, clusters]`.
    columns: Tensor<3, Int>,
    /// Rows that become clusters, ascending per head, after its padding,
    /// `[batch, kv_heads, clusters]`.
    kept_rows: Tensor<3, Int>,
    /// Rows that are merged into them, if there are any.
    merged: Option<Merged>,
}

/// Rows to be merged, and their nearest clusters.
struct Merged {
    rows: Selection,
    /// The cluster that each is most redundant with.
    nearest: NearestOutput,
    /// Number of padding rows before each head's first cluster in `nearest`.
    first: Vec<usize>,
}

impl Step<'_> {
    fn clusters(&self) -> Result<MergedClusters> {
        let Self { view, table, counts, .. } = self;
        let ops = view.ops;
        // Representatives and the window.
        let scores = self.scores.clone().gather(2, table.representatives.clone());
        let Split { kept, rest } = ops.split(SelectInput {
            scores: &scores,
            lengths: &table.row_counts,
            keep: &counts.clusters,
            sinks: view.protect.sinks,
            recent: &counts.recent,
            check: false,
        })?;
        let merging = self.merging(&scores, rest)?;

        // A row is a key, a value, the column of its representative, and the weight of its tokens.
        let all = Entries {
            keys: view.entries.keys.clone(),
            values: view.entries.values.clone(),
            positions: table.representatives.clone(),
            statistics: AttentionStatistics::new([(Statistic::Scores, self.weights()?)]),
            clustering: None,
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
        Ok(MergedClusters { keys, values, columns, kept_rows: kept.indices, merged })
    }

    /// Selects the rows to be merged among the `rest`, which is not kept; `None` if there are none.
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
        let bounds = EvictClusterInput::WEIGHTS;
        let scores = match reducer.weights {
            MergeWeights::Score => self.scores.clone(),
            MergeWeights::Attention => {
                view.group_mean(view.statistic(Statistic::Sums, reducer.name())?)
            }
        };
        if view.entries.clustering.is_none() {
            let scores = scores.clamp(bounds.0, bounds.1);
            return Ok(scores.mask_fill(positions.lower_scalar(0), 0.0));
        }
        Ok(view.ops.row_weights(RowWeightsInput {
            rows: table.rows.clone(),
            positions,
            scores,
            height: table.representatives.dims()[2],
            bounds,
        })?)
    }

    /// Merges the rows `from` into the representatives they are most redundant with, among the
    /// entries that are `left`; the window stays as it is. Returns the keys and values of these
    /// entries.
    fn merge(
        &self,
        left: Entries,
        from: Entries,
        rows: Selection,
    ) -> Result<(Tensor<4>, Tensor<4>, Merged)> {
        let Self { view, counts, .. } = self;
        let ops = view.ops;
        let (width, representatives) = (left.positions.dims()[2], most(&counts.representatives));
        // Representatives end where the window of their head begins; as many columns before it as
        // the most has are looked at.
        let begins = |&recent: &usize| (width - recent) as i64 - representatives as i64;
        let first: Vec<i64> = counts.recent.iter().map(begins).collect();
        let missing: Vec<usize> =
            counts.representatives.iter().map(|&count| representatives - count).collect();
        let to = |rows: &Tensor<4>| slice_rows_per_head(rows.clone(), &first, representatives);
        let keys = || (from.keys.clone(), to(&left.keys));
        let values = || (from.values.clone(), to(&left.values));
        let nearest = ops.nearest(NearestInput {
            pairs: match self.reducer.redundancy {
                Redundancy::KeysAndValues => vec![keys(), values()],
                Redundancy::Keys => vec![keys()],
                Redundancy::Values => vec![values()],
            },
            padding: missing.clone(),
        })?;
        // What is no more like a representative than that goes nowhere, nor does what is NaN.
        let goes = nearest.similarity.clone().greater_scalar(self.reducer.tau);
        let stays = match rows.padding_mask() {
            None => goes.bool_not(),
            Some(padding) => goes.bool_not().bool_or(padding),
        };
        let weight = |of: &Entries| {
            let weight = of.statistics.get(Statistic::Scores);
            weight.unwrap_or_else(|| Tensor::ones(of.positions.dims(), &of.positions.device()))
        };
        let (keys, values) = ops.merge(MergeInput {
            own: weight(&left),
            weights: weight(&from).mask_fill(stays, 0.0),
            keys: left.keys,
            values: left.values,
            other_keys: from.keys,
            other_values: from.values,
            slot: offset_per_head(nearest.index.clone(), &first),
            directions: true,
        })?;
        Ok((keys, values, Merged { rows, nearest, first: missing }))
    }

    /// Returns the clusters with the tokens that are left in them.
    fn entries(&self, clusters: MergedClusters) -> Result<Entries> {
        let Self { view, table, counts, .. } = self;
        let ops = view.ops;
        let MergedClusters { keys, values, columns, kept_rows, merged } = clusters;
        let AssignClustersOutput { clusters: of_columns, ranks } =
            ops.assign_clusters(AssignClustersInput {
                rows: table.rows.clone(),
                height: table.representatives.dims()[2],
                kept_rows,
                cluster_counts: &counts.clusters,
                merged: merged.as_ref().map(|merged| MergedRows {
                    rows: merged.rows.indices.clone(),
                    counts: &merged.rows.counts,
                    nearest: merged.nearest.index.clone(),
                    cluster_offset: &merged.first,
                    similarity: merged.nearest.similarity.clone(),
                    threshold: self.reducer.tau,
                }),
                representatives: columns.clone(),
                positions: view.entries.positions.clone(),
                scores: self.scores.clone(),
            })?;

        // The columns left, at most: those that hold nothing any more come first.
        let left = self.left(&ranks)?;
        let mut of_left = of_columns.gather(2, left.indices.clone());
        if let Some(padding) = left.padding_mask() {
            of_left = of_left.mask_fill(padding, -1);
        }
        let ClusterOrder { order, tokens_by_cluster, padding_columns } =
            ops.sort_by_cluster(of_left.clone(), most(&counts.clusters))?;
        let ReorderTokensOutput { positions, cluster_of_token, representatives, norms, statistics } =
            ops.reorder_tokens(ReorderTokensInput {
                columns: left.indices,
                clusters: of_left,
                order,
                counts: &counts.tokens,
                representatives: columns,
                cluster_counts: &counts.clusters,
                rows: table.rows.clone(),
                norms: table.norms.clone(),
                lengths: norm(view.entries.keys.clone()).squeeze_dim(3),
                positions: view.entries.positions.clone(),
                statistics: view.entries.statistics.clone(),
            })?;
        let clustering = Some(Clustering {
            clustered_tokens: counts.tokens.clone(),
            cluster_counts: counts.clusters.clone(),
            unclustered: vec![0; counts.tokens.len()],
            cluster_of_token,
            norms,
            representatives,
            tokens_by_cluster,
            padding_columns,
        });
        Ok(Entries { keys, values, positions, statistics, clustering })
    }

    /// Selects the columns that may stay: those with the highest ranks.
    fn left(&self, ranks: &Tensor<3>) -> Result<Selection> {
        let Self { view, counts, .. } = self;
        let columns = ranks.dims()[2];
        // A head may hold one more in every step, until it holds as many as it may.
        let wanted = most(&counts.tokens);
        let wanted = if view.packs_heads { bucketed_width(wanted) } else { wanted };
        if counts.tokens == view.lengths {
            let first = vec![columns as i64 - wanted as i64; counts.tokens.len()];
            let places = iota(ranks.dims(), &ranks.device());
            let indices = slice_per_head(places, &first, wanted);
            return Ok(Selection { indices, counts: counts.tokens.clone() });
        }
        let left = view.ops.select(SelectInput {
            scores: ranks,
            lengths: view.lengths,
            keep: &counts.tokens,
            sinks: 0,
            recent: &vec![0; counts.tokens.len()],
            check: false,
        })?;
        Ok(left.widened(wanted))
    }
}
