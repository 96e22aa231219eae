use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Eviction, Store, StoreBuilder, StoreOptions, StoreQuery,
    dense::write_tracks,
    layout::Layout,
    segmented::{Body, Packing, Segmented, no_tail},
    slots::misfit,
};
use crate::{
    Result,
    device::buffer_bytes,
    ops::{
        AttentionOutput, AttentionStatistics, ClusterOrder, ClusteredKv, Clustering, Entries,
        EvictClusterInput, KvLayout, Selection, Tail, gather_rows, iota, offset_per_head,
        padding_mask,
    },
    prefix::Parts,
    reduce::InPlace,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_clustering, visit_tracks},
};

/// Clusters of tokens that share a key direction and a value (EMS): a cluster is one row of keys
/// and one of values; a token is a column with its cluster, the norm of its own key and its
/// position.
///
/// Tokens that have come since the last compression lie as they are behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clustered {}

impl StoreBuilder for Clustered {
    fn name(&self) -> &str {
        "clustered"
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn packs_heads(&self) -> bool {
        true
    }

    fn holds_clusters(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(Segmented::<ClusteredBody>::new(options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(Segmented::<ClusteredBody>::restore(options, parts)?)))
    }
}

#[derive(Clone, Debug)]
struct ClusteredBody {
    /// Offsets of the rows of each head.
    rows: Layout,
    /// Key directions of all clusters, `[all clusters, head_dim]`.
    keys: Tensor<2>,
    /// `[all clusters, head_dim]`
    values: Tensor<2>,
    /// `[batch, kv_heads, columns]`, −1 at padding.
    positions: Tensor<3, Int>,
    tracks: AttentionStatistics,
    clustering: Clustering,
    bytes: usize,
}

impl ClusteredBody {
    fn bytes_held(&self, options: &StoreOptions) -> usize {
        let Clustering {
            cluster_of_token,
            norms,
            representatives,
            tokens_by_cluster,
            padding_columns,
            ..
        } = &self.clustering;
        let of = |x: &Tensor<3, Int>| buffer_bytes(x, options.rows);
        buffer_bytes(&self.keys, options.rows)
            + buffer_bytes(&self.values, options.rows)
            + self.tracks.stacked().map_or(0, |tracks| buffer_bytes(tracks, options.rows))
            + self.rows.bytes(options.rows)
            + [cluster_of_token, representatives, tokens_by_cluster, &self.positions]
                .map(of)
                .iter()
                .sum::<usize>()
            + buffer_bytes(norms, options.rows)
            + buffer_bytes(padding_columns, options.rows)
    }
}

impl Body for ClusteredBody {
    const CLUSTERED: bool = true;

    const EVICTS: bool = true;

    fn can_evict(&self, held: &[usize]) -> bool {
        held == self.clustering.clustered_tokens
    }

    fn token_columns(&self) -> Option<usize> {
        Some(self.columns())
    }

    fn evict(
        &mut self,
        token: Entries,
        eviction: &Eviction,
        counted: AttentionStatistics,
        options: &StoreOptions,
    ) -> Result<Option<Tensor<2>>> {
        let InPlace::Cluster { threshold } = eviction.reduction else {
            return Err(misfit("reduces tokens one by one, and these are in clusters"));
        };
        let Self { rows, keys, values, positions, tracks, clustering, .. } = self;
        options.ops.evict_cluster(EvictClusterInput {
            keys,
            values,
            offsets: rows.offsets(),
            clustering,
            positions,
            tracks,
            counted,
            scores: eviction.scores.clone(),
            new_keys: token.keys,
            new_values: token.values,
            new_positions: token.positions,
            sinks: eviction.sinks,
            recent: &eviction.recent,
            most_tokens: &eviction.most_tokens,
            threshold,
        })?;
        Ok(None)
    }

    /// Clusters by the positions of their representatives.
    fn ordered(&self, options: &StoreOptions) -> Result<Self> {
        let clustering = &self.clustering;
        let [batch, heads, height] = clustering.representatives.dims();
        let counts = &clustering.cluster_counts;
        let missing = |width: usize| counts.iter().map(move |count| width - count);
        let padding = padding_mask(
            missing(height),
            [batch, heads, height],
            &clustering.representatives.device(),
        );
        let representatives = clustering.representatives.clone().mask_fill(padding, -1);
        let Selection { indices, counts: columns } = Selection::by_position(representatives);

        let [keys, values] = self.pad(no_tail(options), options)?;
        let width = keys.dims()[2];
        let rows =
            Selection { indices: indices.clone() + (width - height) as i64, counts: columns };
        let rows = rows.widened(width);
        let both = [gather_rows(keys, &rows), gather_rows(values, &rows)];
        let [keys, values] = self.rows.pack(both, options.ops.as_ref())?;

        let place = iota([batch, heads, height], &indices.device());
        let number = Tensor::<3, Int>::zeros([batch, heads, height], &indices.device());
        let number = number.scatter(2, indices.clone(), place, IndexingUpdateOp::Add);
        let forth: Vec<i64> = missing(height).map(|missing| missing as i64).collect();
        let back: Vec<i64> = forth.iter().map(|missing| -missing).collect();
        let cluster = offset_per_head(clustering.cluster_of_token.clone(), &forth);
        let cluster = offset_per_head(number.gather(2, cluster), &back);
        let nothing = self.positions.clone().lower_scalar(0);
        let labels = cluster.clone().mask_fill(nothing.clone(), -1);
        let ClusterOrder { tokens_by_cluster, .. } = options.ops.sort_by_cluster(labels, height)?;
        Ok(Self {
            keys,
            values,
            clustering: Clustering {
                cluster_of_token: cluster.mask_fill(nothing, 0),
                representatives: clustering.representatives.clone().gather(2, indices),
                tokens_by_cluster,
                ..clustering.clone()
            },
            ..self.clone()
        })
    }

    /// The clustering describes all entries: those of the reducer, and the padding that was moved
    /// in.
    fn pack(
        mut entries: Entries,
        _: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Result<Packing<Self>> {
        let Some(clustering) = entries.clustering.take() else {
            return Ok(Packing::AsTheyAre(Box::new(entries)));
        };
        let StoreOptions { shape, batch, dtype, ref device, ref ops, .. } = *options;
        let rows = Layout::new(batch, shape.kv_heads, &clustering.cluster_counts, before, device);
        let both = [entries.keys.cast(dtype), entries.values.cast(dtype)];
        let [keys, values] = rows.pack(both, ops.as_ref())?;
        let body = Self {
            keys,
            values,
            rows,
            positions: entries.positions,
            tracks: entries.tracks,
            clustering,
            bytes: 0,
        };
        Ok(Packing::Packed(Self { bytes: body.bytes_held(options), ..body }))
    }

    fn layout(&self) -> &Layout {
        &self.rows
    }

    fn pad(&self, tail: Tail, options: &StoreOptions) -> Result<[Tensor<4>; 2]> {
        self.rows.pad([self.keys.clone(), self.values.clone()], tail, options.ops.as_ref())
    }

    fn clustering(&self) -> Option<Clustering> {
        Some(self.clustering.clone())
    }

    /// Directions and values are read once per cluster; keys without their position are encoded on
    /// the way.
    fn attend(
        &self,
        (tail, _): (Tail, Option<Tensor<1, Int>>),
        input: &StoreQuery<'_>,
        _: bool,
    ) -> Result<Option<AttentionOutput>> {
        let rotary = match &input.encode {
            None => None,
            Some(encode) => match encode.rotary(self.keys.dtype()) {
                None => return Ok(None),
                rotary => rotary,
            },
        };
        input.decode(KvLayout::Clustered(ClusteredKv {
            directions: self.keys.clone(),
            values: self.values.clone(),
            tokens_by_cluster: self.clustering.tokens_by_cluster.clone(),
            cluster_of_token: self.clustering.cluster_of_token.clone(),
            norms: self.clustering.norms.clone(),
            padding_columns: self.clustering.padding_columns.clone().flatten(0, 1),
            offsets: self.rows.offsets(),
            rotary,
            tail,
        }))
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.positions.clone()
    }

    fn tracks(&self) -> AttentionStatistics {
        self.tracks.clone()
    }

    fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    fn set_tracks(&mut self, tracks: AttentionStatistics) {
        write_tracks(&mut self.tracks, tracks, 0);
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        let Self { rows, keys, values, positions, tracks, clustering, .. } = self;
        rows.visit_state(visitor);
        visitor.tensor(StateTensor::Float2(keys));
        visitor.tensor(StateTensor::Float2(values));
        visitor.tensor(StateTensor::Int3(positions));
        visit_tracks(tracks, visitor);
        visit_clustering(clustering, visitor);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn save(&self) -> Result<Parts> {
        let Clustering {
            clustered_tokens,
            cluster_counts,
            unclustered,
            cluster_of_token,
            norms,
            representatives,
            tokens_by_cluster,
            padding_columns,
        } = &self.clustering;
        let mut parts = Parts::default();
        parts.put_numbers("columns", [self.columns()]);
        parts.put_numbers("centers", [representatives.dims()[2]]);
        parts.put_numbers("tokens", &clustered_tokens[..]);
        parts.put_numbers("entries", &cluster_counts[..]);
        parts.put_numbers("own", &unclustered[..]);
        for (name, x) in [
            ("entry", cluster_of_token),
            ("centers", representatives),
            ("members", tokens_by_cluster),
        ] {
            parts.put(name, x)?;
        }
        parts.put("norms", norms)?;
        parts.put("none", padding_columns)?;
        parts.put("keys", &self.keys)?;
        parts.put("values", &self.values)?;
        parts.put("positions", &self.positions)?;
        statistics::save(&self.tracks, &mut parts)?;
        Ok(parts)
    }

    fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = *options;
        let heads = shape.kv_heads;
        let [columns, representatives] =
            [parts.take_number("columns")?, parts.take_number("centers")?];
        let mut list = |name| parts.take_list(name, batch * heads);
        let [clustered_tokens, cluster_counts, unclustered] =
            [list("tokens")?, list("entries")?, list("own")?];
        let rows = Layout::new(batch, heads, &cluster_counts, None, device);
        let mut of = |name, width| parts.take_int(name, [batch, heads, width], None, device);
        let clustering = Clustering {
            clustered_tokens,
            cluster_counts,
            unclustered,
            cluster_of_token: of("entry", columns)?,
            representatives: of("centers", representatives)?,
            tokens_by_cluster: of("members", columns)?,
            norms: parts.take_float("norms", [batch, heads, columns], device)?,
            padding_columns: parts.take_int("none", [batch, heads], None, device)?,
        };
        let dims = [rows.total(), shape.head_dim];
        let empty = statistics::zeros(observes, shape, batch, columns, device);
        let body = Self {
            keys: parts.take_float("keys", dims, device)?,
            values: parts.take_float("values", dims, device)?,
            positions: parts.take_int("positions", [batch, heads, columns], None, device)?,
            tracks: statistics::restore(empty, &mut parts, device)?,
            rows,
            clustering,
            bytes: 0,
        };
        parts.finish()?;
        Ok(Self { bytes: body.bytes_held(options), ..body })
    }

    fn repeated(&self, options: &StoreOptions) -> Self {
        let rows = options.batch;
        let ints = |x: &Tensor<3, Int>| x.clone().repeat_dim(0, rows);
        let Clustering {
            clustered_tokens,
            cluster_counts,
            unclustered,
            cluster_of_token,
            norms,
            representatives,
            tokens_by_cluster,
            padding_columns,
        } = &self.clustering;
        let body = Self {
            rows: self.rows.repeated(rows),
            keys: self.keys.clone().repeat_dim(0, rows),
            values: self.values.clone().repeat_dim(0, rows),
            positions: ints(&self.positions),
            tracks: statistics::repeated(self.tracks.clone(), rows),
            clustering: Clustering {
                clustered_tokens: clustered_tokens.repeat(rows),
                cluster_counts: cluster_counts.repeat(rows),
                unclustered: unclustered.repeat(rows),
                cluster_of_token: ints(cluster_of_token),
                norms: norms.clone().repeat_dim(0, rows),
                representatives: ints(representatives),
                tokens_by_cluster: ints(tokens_by_cluster),
                padding_columns: padding_columns.clone().repeat_dim(0, rows),
            },
            bytes: 0,
        };
        Self { bytes: body.bytes_held(options), ..body }
    }

    fn bytes_of(options: &StoreOptions, entries: usize, columns: usize) -> usize {
        let heads = options.batch * options.shape.kv_heads;
        let ints = |numbers| heads * options.rows.bytes(numbers, options.int_bytes());
        let wide = Layout::most_width(columns);
        let norms = heads * options.rows.bytes(wide, DType::F32.size());
        let sums = [
            entries.saturating_mul(options.pair_bytes()),
            options.scalar_row_bytes(wide),
            options.most_padding(),
            // Cluster and index of each token, the representative of each cluster.
            2 * ints(wide),
            ints(Layout::most_width(entries)),
            norms,
            4 * heads * options.rows.most_padding(),
            // Padding columns of a head, and the offset of its rows.
            ints(1),
            options.offset_bytes(),
        ];
        sums.into_iter().fold(0, usize::saturating_add)
    }
}
