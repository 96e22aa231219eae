use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{
    Eviction, Store, StoreBuilder, StoreOptions, StoreQuery,
    layout::Layout,
    segmented::{Body, Packing, Segmented, no_tail},
    slots::misfit,
    tokens::Tokens,
};
use crate::{
    Result,
    columns::behind_zeros,
    device::buffer_bytes,
    ops::{
        AttentionOutput, AttentionStatistics, ClusterOrder, ClusteredKv, Clustering, Entries,
        EvictClusterInput, KvLayout, Selection, Tail, gather_rows, iota, offset_per_head,
        padding_mask, send,
    },
    prefix::Parts,
    reduce::InPlace,
    rows::{select_list, select_rows},
    state::{StateTensor, StateVisitor, visit_clustering},
};

/// Clusters of tokens that share a key direction and a value (EMS). A cluster is one row of keys
/// and one of values; a token is a column with its cluster, the norm of its own key and its
/// position.
///
/// Tokens that have come since the last compression follow the clusters unchanged.
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
    /// The layout is that of the clusters.
    tokens: Tokens,
    /// Key directions of all clusters, `[all clusters, head_dim]`.
    keys: Tensor<2>,
    /// `[all clusters, head_dim]`
    values: Tensor<2>,
    clustering: Clustering,
    /// Number of free rows behind the clusters of each head, which `clustering` counts too; empty
    /// if no row is free.
    free_rows: Vec<usize>,
    bytes: usize,
}

impl ClusteredBody {
    /// Number of clusters of each head.
    fn cluster_counts(&self) -> Vec<usize> {
        let rows = self.clustering.cluster_counts.iter().enumerate();
        rows.map(|(head, rows)| rows - self.free_rows.get(head).unwrap_or(&0)).collect()
    }

    /// Inserts `missing` empty columns before the others.
    fn widen(&mut self, missing: usize) {
        if missing == 0 {
            return;
        }
        let Tokens { positions, statistics, .. } = &mut self.tokens;
        let [batch, heads, _] = positions.dims();
        let dims = [batch, heads, missing];
        let device = positions.device();
        let wider = |x: &mut Tensor<3, Int>, before: Tensor<3, Int>| {
            x.inplace(|x| Tensor::cat(vec![before.cast(x.dtype()), x], 2));
        };
        wider(positions, Tensor::full(dims, -1, &device));
        *statistics = std::mem::take(statistics).map(|statistic| behind_zeros(statistic, missing));
        let Clustering { cluster_of_token, norms, tokens_by_cluster, padding_columns, .. } =
            &mut self.clustering;
        wider(cluster_of_token, Tensor::zeros(dims, &device));
        norms.inplace(|norms| behind_zeros(norms, missing));
        tokens_by_cluster.inplace(|columns| columns + missing as i64);
        wider(tokens_by_cluster, iota(dims, &device));
        padding_columns.inplace(|columns| columns + missing as i64);
    }

    /// Marks a free row as taken in each head that takes one.
    fn take_free(&mut self, takes_free: &[bool]) {
        let heads = self.free_rows.iter_mut().zip(takes_free);
        heads.for_each(|(free, &takes)| *free -= usize::from(takes));
    }

    fn bytes_held(&self, options: &StoreOptions) -> usize {
        let (rows, of) = (options.rows, &self.clustering);
        let ints = [&of.cluster_of_token, &of.representatives, &of.tokens_by_cluster];
        self.rows().map(|x| buffer_bytes(x, rows)).iter().sum::<usize>()
            + ints.map(|x| buffer_bytes(x, rows)).iter().sum::<usize>()
            + buffer_bytes(&of.norms, rows)
            + buffer_bytes(&of.padding_columns, rows)
            + self.tokens.bytes(rows)
    }

    /// With the bytes it takes now.
    fn measured(self, options: &StoreOptions) -> Self {
        Self { bytes: self.bytes_held(options), ..self }
    }
}

impl Body for ClusteredBody {
    const CLUSTERED: bool = true;
    const COUNTS_TAIL: bool = false;

    fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    fn tokens_mut(&mut self) -> &mut Tokens {
        &mut self.tokens
    }

    fn rows(&self) -> [&Tensor<2>; 2] {
        [&self.keys, &self.values]
    }

    fn can_evict(&self, held: &[usize]) -> bool {
        held == self.clustering.clustered_tokens
    }

    fn token_columns(&self) -> Option<usize> {
        Some(self.tokens.width())
    }

    fn entry_counts(&self, _: &[usize]) -> Vec<usize> {
        self.cluster_counts()
    }

    fn free_rows(&self, _: &[usize]) -> usize {
        self.free_rows.iter().sum()
    }

    fn add_rows(&mut self, rows: &[usize], columns: usize, options: &StoreOptions) -> bool {
        let clusters = self.cluster_counts();
        let is_whole = self.clustering.unclustered.iter().all(|&own| own == 0);
        let fits = rows.iter().zip(&clusters).all(|(rows, clusters)| rows >= clusters);
        if !is_whole || !fits {
            return false;
        }
        let StoreOptions { shape, batch, ref device, .. } = *options;
        let heads = shape.kv_heads;
        let layout = Layout::new(batch, heads, rows, None, device);
        let before = &self.clustering.cluster_counts;
        let old_height = self.clustering.representatives.dims()[2];
        let height = rows.iter().copied().max().unwrap_or(0);
        let (mut first, mut of_rows, mut of_columns) = (0, Vec::new(), Vec::new());
        for ((&rows, &clusters), before) in rows.iter().zip(&clusters).zip(before) {
            // What stands in a free row does not matter: copies of the last cluster.
            of_rows.extend((0..rows).map(|row| (first + row.min(clusters - 1)) as i64));
            of_columns.extend((0..height).map(|column| {
                let cluster = (column + rows).saturating_sub(height).min(clusters - 1);
                (old_height - before + cluster) as i64
            }));
            first += before;
        }
        let of_rows = TensorData::new(of_rows, [layout.total()]);
        let of_rows: Tensor<1, Int> = send("rows of clusters", of_rows, device);
        let [keys, values] = self.rows().map(|x| x.clone().select(0, of_rows.clone()));
        let of_columns = TensorData::new(of_columns, [batch, heads, height]);
        let of_columns: Tensor<3, Int> = send("representatives", of_columns, device);
        self.clustering.cluster_counts = rows.to_vec();
        self.clustering.representatives.inplace(|all| all.gather(2, of_columns));
        self.free_rows =
            rows.iter().zip(&clusters).map(|(rows, clusters)| rows - clusters).collect();
        (self.tokens.layout, self.keys, self.values) = (layout, keys, values);
        self.widen(columns.saturating_sub(self.tokens.width()));
        self.bytes = self.bytes_held(options);
        true
    }

    fn count_token(&mut self, takes_free: &[bool], held: &[usize]) {
        self.take_free(takes_free);
        self.clustering.clustered_tokens = held.to_vec();
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
        let Self { tokens, keys, values, clustering, free_rows, .. } = self;
        let Tokens { layout, positions, statistics } = tokens;
        let takes_free: &[bool] = if free_rows.is_empty() { &[] } else { &eviction.takes_free };
        options.ops.evict_cluster(EvictClusterInput {
            keys,
            values,
            offsets: layout.offsets(),
            clustering,
            positions,
            statistics,
            counted,
            scores: eviction.scores.clone(),
            new_keys: token.keys,
            new_values: token.values,
            new_positions: token.positions,
            sinks: eviction.sinks,
            recent: &eviction.recent,
            most_tokens: &eviction.most_tokens,
            free_rows,
            takes_free,
            threshold,
            limits: eviction.limits.as_ref(),
        })?;
        self.take_free(&eviction.takes_free);
        Ok(None)
    }

    /// Clusters by the positions of their representatives, without free rows.
    fn ordered(&self, options: &StoreOptions) -> Result<Self> {
        let clustering = &self.clustering;
        let [batch, heads, height] = clustering.representatives.dims();
        let rows_before = &clustering.cluster_counts;
        let counts = self.cluster_counts();
        let dims = [batch, heads, height];
        let device = clustering.representatives.device();
        let missing = |counts: &[usize]| -> Vec<usize> {
            counts.iter().map(|count| height - count).collect()
        };
        let padding = padding_mask(missing(rows_before).into_iter(), dims, &device);
        let representatives = clustering.representatives.clone().mask_fill(padding, -1);
        let is_free = (!self.free_rows.is_empty()).then(|| {
            let used = self.free_rows.iter().map(|free| height - free);
            padding_mask(used, dims, &device).bool_not()
        });
        let representatives = match is_free {
            Some(is_free) => representatives.mask_fill(is_free, -1),
            None => representatives,
        };
        let Selection { indices, counts: columns } = Selection::by_position(representatives);

        let [keys, values] = self.pad(no_tail(options), options)?;
        let width = keys.dims()[2];
        let rows =
            Selection { indices: indices.clone() + (width - height) as i64, counts: columns };
        let rows = rows.widened(width);
        let both = [gather_rows(keys, &rows), gather_rows(values, &rows)];
        let before = Some(self.tokens.layout.clone());
        let layout = Layout::new(batch, heads, &counts, before, &device);
        let [keys, values] = layout.pack(both, options.ops.as_ref())?;

        let place = iota(dims, &indices.device());
        let number = Tensor::<3, Int>::zeros(dims, &indices.device());
        let number = number.scatter(2, indices.clone(), place, IndexingUpdateOp::Add);
        let offsets = |counts: &[usize], sign: i64| -> Vec<i64> {
            missing(counts).into_iter().map(|missing| sign * missing as i64).collect()
        };
        let (forth, back) = (offsets(rows_before, 1), offsets(&counts, -1));
        let cluster = offset_per_head(clustering.cluster_of_token.clone(), &forth);
        let cluster = offset_per_head(number.gather(2, cluster), &back);
        let nothing = self.tokens.positions.clone().lower_scalar(0);
        let labels = cluster.clone().mask_fill(nothing.clone(), -1);
        let ClusterOrder { tokens_by_cluster, .. } = options.ops.sort_by_cluster(labels, height)?;
        let ordered = Self {
            tokens: Tokens { layout, ..self.tokens.clone() },
            keys,
            values,
            free_rows: Vec::new(),
            clustering: Clustering {
                cluster_counts: counts,
                cluster_of_token: cluster.mask_fill(nothing, 0),
                representatives: clustering.representatives.clone().gather(2, indices),
                tokens_by_cluster,
                ..clustering.clone()
            },
            bytes: 0,
        };
        Ok(ordered.measured(options))
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
        let layout = Layout::new(batch, shape.kv_heads, &clustering.cluster_counts, before, device);
        let both = [entries.keys.cast(dtype), entries.values.cast(dtype)];
        let [keys, values] = layout.pack(both, ops.as_ref())?;
        let Entries { positions, statistics, .. } = entries;
        let tokens = Tokens { layout, positions, statistics };
        let body = Self { tokens, keys, values, clustering, free_rows: Vec::new(), bytes: 0 };
        Ok(Packing::Packed(body.measured(options)))
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
        let rotary = input.encode.as_ref().map(|encode| encode.rotary(self.keys.dtype()));
        if let Some(None) = rotary {
            return Ok(None);
        }
        input.decode(KvLayout::Clustered(ClusteredKv {
            directions: self.keys.clone(),
            values: self.values.clone(),
            tokens_by_cluster: self.clustering.tokens_by_cluster.clone(),
            cluster_of_token: self.clustering.cluster_of_token.clone(),
            norms: self.clustering.norms.clone(),
            padding_columns: self.clustering.padding_columns.clone().flatten(0, 1),
            offsets: self.tokens.layout.offsets(),
            rotary: rotary.flatten(),
            tail,
        }))
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        let Self { tokens, keys, values, clustering, free_rows, .. } = self;
        tokens.visit_state(visitor);
        // Where rows are free, tokens are counted by who knows which will be taken.
        visitor.number(free_rows.len());
        if free_rows.is_empty() {
            visitor.numbers(&clustering.clustered_tokens);
        }
        visitor.tensor(StateTensor::Float2(keys));
        visitor.tensor(StateTensor::Float2(values));
        visit_clustering(clustering, visitor);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn save(&self) -> Result<Parts> {
        let of = &self.clustering;
        let mut parts = Parts::default();
        parts.put_numbers("columns", [self.tokens.width()]);
        parts.put_numbers("centers", [of.representatives.dims()[2]]);
        parts.put_numbers("tokens", &of.clustered_tokens[..]);
        parts.put_numbers("entries", &of.cluster_counts[..]);
        parts.put_numbers("own", &of.unclustered[..]);
        parts.put("entry", &of.cluster_of_token)?;
        parts.put("centers", &of.representatives)?;
        parts.put("members", &of.tokens_by_cluster)?;
        parts.put("norms", &of.norms)?;
        parts.put("none", &of.padding_columns)?;
        parts.put("keys", &self.keys)?;
        parts.put("values", &self.values)?;
        self.tokens.put(&mut parts)?;
        Ok(parts)
    }

    fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, batch, ref device, .. } = *options;
        let heads = shape.kv_heads;
        let [columns, representatives] =
            [parts.take_number("columns")?, parts.take_number("centers")?];
        let mut list = |name| parts.take_list(name, batch * heads);
        let [clustered_tokens, cluster_counts, unclustered] =
            [list("tokens")?, list("entries")?, list("own")?];
        let layout = Layout::new(batch, heads, &cluster_counts, None, device);
        // Rows of a batch that were selected stay in the rectangle of all.
        let layout =
            if representatives > layout.width { layout.of_width(representatives)? } else { layout };
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
        let dims = [layout.total(), shape.head_dim];
        let body = Self {
            keys: parts.take_float("keys", dims, device)?,
            values: parts.take_float("values", dims, device)?,
            tokens: Tokens::take(layout, columns, &mut parts, options)?,
            clustering,
            free_rows: Vec::new(),
            bytes: 0,
        };
        parts.finish()?;
        Ok(body.measured(options))
    }

    fn select_rows(&self, rows: &[usize], options: &StoreOptions) -> Self {
        let of = self.clustering.clone();
        let batch = of.representatives.dims()[0];
        let ints = |x: Tensor<3, Int>| select_rows(x, rows);
        let list = |list: &[usize]| select_list(list, batch, rows);
        let (tokens, places) = self.tokens.select_rows(rows);
        let [keys, values] = self.rows().map(|x| x.clone().select(0, places.clone()));
        let body = Self {
            tokens,
            keys,
            values,
            clustering: Clustering {
                clustered_tokens: list(&of.clustered_tokens),
                cluster_counts: list(&of.cluster_counts),
                unclustered: list(&of.unclustered),
                cluster_of_token: ints(of.cluster_of_token),
                norms: select_rows(of.norms, rows),
                representatives: ints(of.representatives),
                tokens_by_cluster: ints(of.tokens_by_cluster),
                padding_columns: select_rows(of.padding_columns, rows),
            },
            free_rows: list(&self.free_rows),
            bytes: 0,
        };
        body.measured(options)
    }

    fn bytes_of(
        options: &StoreOptions,
        entries: usize,
        columns: usize,
        width: fn(usize) -> usize,
    ) -> usize {
        let heads = options.batch * options.shape.kv_heads;
        let ints = |numbers| heads * options.rows.bytes(numbers, options.int_bytes());
        let wide = width(columns);
        let norms = heads * options.rows.bytes(wide, DType::F32.size());
        let sums = [
            entries.saturating_mul(options.pair_bytes()),
            options.scalar_row_bytes(wide),
            options.most_padding(),
            // Cluster and index of each token, the representative of each cluster.
            2 * ints(wide),
            ints(width(entries)),
            norms,
            4 * heads * options.rows.most_padding(),
            // Padding columns of a head, and the offset of its rows.
            ints(1),
            options.offset_bytes(),
        ];
        sums.into_iter().fold(0, usize::saturating_add)
    }
}
