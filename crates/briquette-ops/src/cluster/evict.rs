use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};

use crate::{
    entries::{AttentionStatistics, Clustering},
    error::Result,
    evict_limits::EvictLimits,
    host::{HostInput, View},
    merge::weakest,
};

const INPUT: HostInput = HostInput("evict_cluster");

/// Clusters of a layer in no order, and one new token a head, of which the weakest cluster is to
/// go: it is merged into the one that it is most redundant with, or evicted with all its tokens,
/// and the new token has its row. No other row moves. Rows of a head behind its clusters may be
/// free: where the new token takes one, no cluster goes.
///
/// Tokens are in the order of their positions, those that a head lacks first. `tokens` are their
/// columns, without the new token's.
#[derive(Debug)]
pub struct EvictClusterInput<'a> {
    /// Key directions of the clusters of all heads, one head after another, `[total, head_dim]`.
    pub keys: &'a mut Tensor<2>,
    /// Their values, `[total, head_dim]`, of the type of `keys`.
    pub values: &'a mut Tensor<2>,
    /// Offset of the first cluster of each batch row and kv head, and `total` at the end,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// The clusters of the tokens, none of which is in no cluster.
    pub clustering: &'a mut Clustering,
    /// Position of each token, −1 at columns without one, `[batch, kv_heads, tokens]`.
    pub positions: &'a mut Tensor<3, Int>,
    /// Attention statistics of each token, which are replaced, as wide as `positions`.
    pub statistics: &'a mut AttentionStatistics,
    /// Their new numbers, the new token's last, of the same kinds and heads, `tokens + 1` wide.
    pub counted: AttentionStatistics,
    /// Score of each token, the new one's last, `[batch, kv_heads, tokens + 1]`, f32.
    pub scores: Tensor<3>,
    /// Keys of the new token, not yet of unit length, `[batch, kv_heads, 1, head_dim]`, of the
    /// type of `keys`.
    pub new_keys: Tensor<4>,
    /// Its values, `[batch, kv_heads, 1, head_dim]`, of the type of `keys`.
    pub new_values: Tensor<4>,
    /// Its positions, the highest of each head, `[batch, kv_heads, 1]`.
    pub new_positions: Tensor<3, Int>,
    /// Number of rows behind the clusters of each head that are free, per batch row and kv head,
    /// rows first; empty if none is. They count among [`Clustering::cluster_counts`], and no token
    /// is in them.
    pub free_rows: &'a [usize],
    /// Whether the new token takes the first free row of a head, so that no cluster goes, per batch
    /// row and kv head; empty if no row is free.
    pub takes_free: &'a [bool],
    /// Number of first clusters of each head, by the positions of their representatives, that stay
    /// whatever their scores; others may be merged into them.
    pub sinks: usize,
    /// Number of last clusters, the new token's with them, that stay as they are, per batch row and
    /// kv head, rows first, at least 1.
    pub recent: &'a [usize],
    /// The most tokens that a head remembers afterwards, at most as many as it has columns, per
    /// batch row and kv head. Where these are as many as its clusters none is merged.
    pub most_tokens: &'a [usize],
    /// The redundancy above which a cluster is merged: cos(keys) · cos(values) (EMS, Eq. 5).
    pub threshold: f64,
    /// The numbers of this token and of those that follow it, where a launch is recorded and
    /// repeated for them; `None` where it is not.
    pub limits: Option<&'a EvictLimits>,
}

impl EvictClusterInput<'_> {
    /// Bounds of the score of a token in the weight of its cluster: one without a score must not
    /// make a cluster of weight zero, and sums must be finite.
    pub const WEIGHTS: (f32, f32) = (1e-12, 1e30);

    /// Number of clusters of a head, free rows left out.
    pub fn clusters(&self, head: usize) -> usize {
        let free = self.free_rows.get(head).copied().unwrap_or(0);
        self.clustering.cluster_counts[head].saturating_sub(free)
    }

    /// Whether the new token takes a free row of a head.
    pub fn takes_free(&self, head: usize) -> bool {
        self.takes_free.get(head).copied().unwrap_or(false)
    }

    /// Numbers of first and of last clusters of a head that stay.
    pub fn protected(&self, head: usize) -> (usize, usize) {
        let keep = self.clusters(head);
        let recent = self.recent[head].min(keep);
        (self.sinks.min(keep - recent), recent)
    }

    /// Whether the weakest cluster of a head may be merged into another.
    pub fn may_merge(&self, head: usize) -> bool {
        let clusters = self.clusters(head);
        !self.takes_free(head)
            && self.most_tokens[head] > clusters
            && self.protected(head).1 < clusters
    }

    /// Refuses numbers per head that do not fit.
    ///
    /// # Errors
    /// [`OpError::Value`](crate::OpError::Value).
    pub fn check_heads(&self) -> Result<()> {
        let [batch, heads, tokens] = self.positions.dims();
        let value = |what, found, fits, expected: String| INPUT.value(what, found, fits, expected);
        let lists = batch * heads;
        let Clustering { cluster_counts, clustered_tokens, unclustered, .. } = &*self.clustering;
        for (what, list) in [
            ("the length of cluster_counts", &cluster_counts[..]),
            ("the length of clustered_tokens", clustered_tokens),
            ("the length of unclustered", unclustered),
            ("the length of recent", self.recent),
            ("the length of most_tokens", self.most_tokens),
        ] {
            value(what, list.len(), list.len() == lists, lists.to_string())?;
        }
        let (free, takes) = (self.free_rows.len(), self.takes_free.len());
        let expected = format!("0 or {lists}");
        value("the length of free_rows", free, free == 0 || free == lists, expected)?;
        value("the length of takes_free", takes, takes == free, free.to_string())?;
        for head in 0..lists {
            let [clusters, most, own] =
                [self.clusters(head), self.most_tokens[head], unclustered[head]];
            let takes = usize::from(self.takes_free(head));
            let rows = cluster_counts[head];
            value(
                "the free rows of a head",
                rows - clusters,
                clusters + takes <= rows,
                "1 or more".into(),
            )?;
            let before = clustered_tokens[head];
            value("clusters", clusters, clusters > 0, "1 or more".into())?;
            value("recent", self.recent[head], self.recent[head] > 0, "1 or more".into())?;
            value("unclustered", own, own == 0, "none".into())?;
            let range = clusters..=tokens;
            value("clustered_tokens", before, range.contains(&before), format!("{range:?}"))?;
            let range = clusters + takes..=tokens;
            value("most_tokens", most, range.contains(&most), format!("{range:?}"))?;
        }
        Ok(())
    }
}

/// Reads all of it back, and goes through it head by head.
pub(super) fn evict_cluster(input: EvictClusterInput<'_>) -> Result<()> {
    input.check_heads()?;
    let mut layer = Layer::read(&input)?;
    for head in 0..input.recent.len() {
        layer.evict(head, &input);
    }
    layer.write(input);
    Ok(())
}

/// A layer on the host.
struct Layer {
    /// Rows of all heads, and those of the new tokens.
    keys: View<f32>,
    values: View<f32>,
    /// Rows that are others now.
    written: Written,
    new_keys: Vec<f32>,
    new_values: Vec<f32>,
    new_positions: Vec<i64>,
    positions: Vec<i64>,
    scores: Vec<f32>,
    cluster_of_token: Vec<i64>,
    norms: Vec<f32>,
    representatives: Vec<i64>,
    tokens_by_cluster: Vec<i64>,
    padding_columns: Vec<i64>,
    /// The new statistics: of all columns, and of those that stay.
    counted: Vec<f32>,
    statistics: Vec<f32>,
    /// Kinds of statistics, and heads of each for a kv head.
    kinds_and_group: [usize; 2],
}

/// Rows of clusters, and the keys and values that they have from now on.
#[derive(Default)]
struct Written {
    rows: Vec<i64>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Written {
    fn push(&mut self, row: usize, key: &[f32], value: &[f32]) {
        self.rows.push(row as i64);
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }

    /// Writes them over those of all clusters.
    fn write(self, keys: &mut Tensor<2>, values: &mut Tensor<2>) {
        let (device, count) = (keys.device(), self.rows.len());
        let rows = Tensor::<1, Int>::from_data(TensorData::new(self.rows, [count]), &device);
        for (all, numbers) in [(keys, self.keys), (values, self.values)] {
            let data = TensorData::new(numbers, [count, all.dims()[1]]);
            let new = Tensor::from_data(data, (&device, all.dtype()));
            let rows = rows.clone();
            all.inplace(|all| all.select_assign(0, rows, new, IndexingUpdateOp::Assign));
        }
    }
}

/// A token of a head.
#[derive(Clone, Copy)]
struct Token {
    /// Its column before.
    column: usize,
    position: i64,
    cluster: usize,
    norm: f32,
    score: f32,
    /// Whether it represents its cluster.
    represents: bool,
}

impl Layer {
    fn read(input: &EvictClusterInput<'_>) -> Result<Self> {
        let clustering = &*input.clustering;
        let [batch, heads, tokens] = input.positions.dims();
        let counted =
            input.counted.stacked().map_or_else(|| Ok(Vec::new()), |x| INPUT.floats(x))?;
        let statistics = vec![0.0; counted.len() / (tokens + 1) * tokens];
        let kinds_and_group = match input.counted.stacked() {
            None => [0, 1],
            Some(counted) => [counted.dims()[0] / batch, counted.dims()[1] / heads],
        };
        Ok(Self {
            keys: INPUT.view(input.keys)?,
            values: INPUT.view(input.values)?,
            written: Written::default(),
            new_keys: INPUT.floats(&input.new_keys)?,
            new_values: INPUT.floats(&input.new_values)?,
            new_positions: INPUT.ints(&input.new_positions)?,
            positions: INPUT.ints(input.positions)?,
            scores: INPUT.floats(&input.scores)?,
            cluster_of_token: INPUT.ints(&clustering.cluster_of_token)?,
            norms: INPUT.floats(&clustering.norms)?,
            representatives: INPUT.ints(&clustering.representatives)?,
            tokens_by_cluster: vec![0; batch * heads * tokens],
            padding_columns: vec![0; batch * heads],
            counted,
            statistics,
            kinds_and_group,
        })
    }

    fn write(self, input: EvictClusterInput<'_>) {
        let EvictClusterInput { keys, values, clustering, positions, statistics, .. } = input;
        let device = positions.device();
        let ints = |x: Vec<i64>, like: &Tensor<3, Int>| {
            Tensor::from_data(TensorData::new(x, like.dims()), (&device, like.dtype()))
        };
        // Nobody else holds them when they are written to.
        drop((self.keys, self.values));
        self.written.write(keys, values);
        *positions = ints(self.positions, positions);
        let norms = TensorData::new(self.norms, clustering.norms.dims());
        let padding = &clustering.padding_columns;
        let padding_columns = TensorData::new(self.padding_columns, padding.dims());
        *clustering = Clustering {
            clustered_tokens: input.most_tokens.to_vec(),
            cluster_of_token: ints(self.cluster_of_token, &clustering.cluster_of_token),
            representatives: ints(self.representatives, &clustering.representatives),
            tokens_by_cluster: ints(self.tokens_by_cluster, &clustering.tokens_by_cluster),
            norms: Tensor::from_data(norms, (&device, DType::F32)),
            padding_columns: Tensor::from_data(padding_columns, (&device, padding.dtype())),
            cluster_counts: std::mem::take(&mut clustering.cluster_counts),
            unclustered: std::mem::take(&mut clustering.unclustered),
        };
        *statistics = std::mem::take(statistics).map(|statistics| {
            let data = TensorData::new(self.statistics, statistics.dims());
            Tensor::from_data(data, (&device, DType::F32))
        });
    }

    /// The tokens of a head, the new one in a cluster of its own behind the others.
    fn tokens(
        &self,
        head: usize,
        width: usize,
        [rows, clusters]: [usize; 2],
        first: i64,
    ) -> Vec<Token> {
        let height = self.representatives.len() / self.padding_columns.len();
        let represent = &self.representatives[(head + 1) * height - rows..][..clusters];
        let places = head * width..(head + 1) * width;
        let score = |column| self.scores[head * (width + 1) + column];
        let held = places.clone().filter(|&place| self.positions[place] >= 0).map(|place| {
            let column = place - places.start;
            let cluster = self.cluster_of_token[place] as usize;
            Token {
                column,
                position: self.positions[place],
                cluster,
                norm: self.norms[place],
                score: score(column),
                represents: represent[cluster] + first == column as i64,
            }
        });
        let new = Token {
            column: width,
            position: self.new_positions[head],
            cluster: clusters,
            norm: 1.0,
            score: score(width),
            represents: true,
        };
        held.chain([new]).collect()
    }

    fn evict(&mut self, head: usize, input: &EvictClusterInput<'_>) {
        let [_, heads, width] = input.positions.dims();
        let channels = input.keys.dims()[1];
        let Clustering { cluster_counts, clustered_tokens, .. } = &*input.clustering;
        let (rows, clusters) = (cluster_counts[head], input.clusters(head));
        let takes_free = input.takes_free(head);
        let (sinks, recent) = input.protected(head);
        let most = input.most_tokens[head];
        let first = (width - clustered_tokens[head]) as i64;
        let mut tokens = self.tokens(head, width, [rows, clusters], first);

        // The cluster that goes, by the scores and positions of representatives.
        let mut represents = vec![(f32::NAN, -1); clusters + 1];
        for token in tokens.iter().filter(|token| token.represents) {
            represents[token.cluster] = (token.score, token.position);
        }
        let (scores, positions): (Vec<f32>, Vec<i64>) = represents.into_iter().unzip();
        let goes = match takes_free {
            true => clusters,
            false => weakest(&scores, &positions, clusters + 1, sinks, recent),
        };

        // The cluster that it goes to.
        let offset: usize = cluster_counts[..head].iter().sum();
        let row = |cluster: usize| (offset + cluster) * channels..(offset + cluster + 1) * channels;
        let mut ages: Vec<usize> = (0..=clusters).collect();
        ages.sort_unstable_by_key(|&cluster| positions[cluster]);
        let mut best = (input.threshold, None);
        let may_merge = input.may_merge(head);
        let [key, value] = [&self.keys, &self.values].map(|rows| Compared::new(&rows[row(goes)]));
        for &cluster in ages[..clusters + 1 - recent].iter().filter(|_| may_merge) {
            let cosines =
                [key.cosine(&self.keys[row(cluster)]), value.cosine(&self.values[row(cluster)])];
            let redundancy = (cosines[0] * cosines[1]).min(1.0);
            if cluster != goes && redundancy > best.0 {
                best = (redundancy, Some(cluster));
            }
        }
        if let (_, Some(target)) = best {
            let weight = |of: usize| -> f64 {
                let (least, most) = EvictClusterInput::WEIGHTS;
                let of_cluster = tokens.iter().filter(|token| token.cluster == of);
                of_cluster.map(|token| f64::from(token.score.max(least).min(most))).sum()
            };
            let weights = [weight(target), weight(goes)];
            let keys = [target, goes].map(|cluster| unit(&self.keys[row(cluster)]));
            let values = [target, goes].map(|cluster| double(&self.values[row(cluster)]));
            let direction = unit_of(&weighted(&keys, weights));
            let sum = weights[0] + weights[1];
            let value: Vec<f64> = weighted(&values, weights).iter().map(|x| x / sum).collect();
            self.written.push(offset + target, &single(&direction), &single(&value));
            for token in tokens.iter_mut().filter(|token| token.cluster == goes) {
                (token.cluster, token.represents) = (target, false);
            }
        }
        tokens.retain(|token| takes_free || token.cluster != goes);

        // The new token has the row of the one that is gone.
        let new = head * channels..(head + 1) * channels;
        let key = double(&self.new_keys[new.clone()]);
        self.written.push(offset + goes, &single(&unit_of(&key)), &self.new_values[new]);
        if let Some(token) = tokens.last_mut() {
            (token.cluster, token.norm) = (goes, length(&key) as f32);
        }
        if tokens.len() > most {
            let others: Vec<usize> =
                (0..tokens.len()).filter(|&place| !tokens[place].represents).collect();
            let scores: Vec<f32> = others.iter().map(|&place| tokens[place].score).collect();
            let ages: Vec<i64> = others.iter().map(|&place| tokens[place].position).collect();
            let forgotten = weakest(&scores, &ages, others.len(), 0, 0);
            tokens.remove(others[forgotten]);
        }
        let clusters = clusters + usize::from(takes_free);
        self.lay_out(head, heads, width, [rows, clusters], most, &tokens);
    }

    /// Writes the tokens of a head into its last columns.
    fn lay_out(
        &mut self,
        head: usize,
        heads: usize,
        width: usize,
        [rows, clusters]: [usize; 2],
        most: usize,
        tokens: &[Token],
    ) {
        let lists = self.padding_columns.len();
        let height = self.representatives.len() / lists;
        let (start, padding) = (head * width, width - tokens.len());
        self.padding_columns[head] = padding as i64;
        for (column, place) in (start..start + padding).enumerate() {
            self.positions[place] = -1;
            self.cluster_of_token[place] = 0;
            self.norms[place] = 0.0;
            self.tokens_by_cluster[place] = column as i64;
        }
        // Where the next token of each cluster comes among those of all.
        let mut next = vec![start + padding; clusters + 1];
        tokens.iter().for_each(|token| next[token.cluster + 1] += 1);
        (0..clusters).for_each(|cluster| next[cluster + 1] += next[cluster] - start - padding);
        for (column, token) in (padding..).zip(tokens) {
            self.tokens_by_cluster[next[token.cluster]] = column as i64;
            next[token.cluster] += 1;
        }
        for (place, token) in (start + padding..).zip(tokens) {
            self.positions[place] = token.position;
            self.cluster_of_token[place] = token.cluster as i64;
            self.norms[place] = token.norm;
            if token.represents {
                let column = place - start + most - width;
                self.representatives[(head + 1) * height - rows + token.cluster] = column as i64;
            }
        }
        let [kinds, group] = self.kinds_and_group;
        let (row, of_row) = (head / heads, head % heads);
        for number in 0..kinds * group {
            let of_kind = number / group * (lists / heads) + row;
            let list = (of_kind * heads + of_row) * group + number % group;
            let to = &mut self.statistics[list * width..(list + 1) * width];
            let from = &self.counted[list * (width + 1)..(list + 1) * (width + 1)];
            to[..padding].fill(0.0);
            for (number, token) in to[padding..].iter_mut().zip(tokens) {
                *number = from[token.column];
            }
        }
    }
}

fn double(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| f64::from(x)).collect()
}

fn single(row: &[f64]) -> Vec<f32> {
    row.iter().map(|&x| x as f32).collect()
}

fn length(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The row at unit length; zero stays zero.
fn unit_of(row: &[f64]) -> Vec<f64> {
    let length = length(row).max(f64::from(f32::MIN_POSITIVE));
    row.iter().map(|x| x / length).collect()
}

fn unit(row: &[f32]) -> Vec<f64> {
    unit_of(&double(row))
}

/// A row that others are compared with.
struct Compared {
    row: Vec<f64>,
    /// The square of its length.
    square: f64,
}

/// Numbers that are multiplied together.
const LANES: usize = 4;

impl Compared {
    fn new(row: &[f32]) -> Self {
        let row = double(row);
        Self { square: row.iter().map(|x| x * x).sum(), row }
    }

    /// The cosine with another row, of a zero row zero.
    fn cosine(&self, other: &[f32]) -> f64 {
        let [mut product, mut square] = [[0.0; LANES]; 2];
        let (own, rest) = self.row.as_chunks::<LANES>();
        let (row, rest_of_row) = other.as_chunks::<LANES>();
        for (own, row) in own.iter().zip(row) {
            for lane in 0..LANES {
                let number = f64::from(row[lane]);
                product[lane] += own[lane] * number;
                square[lane] += number * number;
            }
        }
        let rest = rest.iter().zip(rest_of_row).map(|(own, &number)| (own, f64::from(number)));
        for (lane, (own, number)) in rest.enumerate() {
            product[lane] += own * number;
            square[lane] += number * number;
        }
        let lengths = f64::sqrt(self.square * square.iter().sum::<f64>());
        if lengths > 0.0 { product.iter().sum::<f64>() / lengths } else { 0.0 }
    }
}

fn weighted(rows: &[Vec<f64>; 2], weights: [f64; 2]) -> Vec<f64> {
    rows[0].iter().zip(&rows[1]).map(|(a, b)| a * weights[0] + b * weights[1]).collect()
}
