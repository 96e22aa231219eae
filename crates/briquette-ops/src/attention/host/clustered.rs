//! Entries that tokens share.

use burn::tensor::{DType, Tensor};
use pulp::Simd;

use super::layer::{HostKv, HostTail};
use crate::{
    attention::{decode::ClusteredKv, rotary::RotaryTables},
    error::Result,
    host::{
        HostInput, View,
        rows::{add_all, dot, turn},
    },
};

const INPUT: HostInput = HostInput("clustered_attention");

/// Directions and values of clusters, and the tokens that share them.
pub(super) struct Clusters {
    directions: View<f32>,
    values: View<f32>,
    /// Of each list: columns in the order of their clusters, those that are padding first.
    tokens_by_cluster: Vec<usize>,
    cluster_of_token: Vec<usize>,
    norms: View<f32>,
    padding: Vec<usize>,
    offsets: Vec<usize>,
    rotary: Option<Rotary>,
    tail: HostTail,
    dims: [usize; 3],
    width: usize,
}

/// Cosines and sines of the positions of each token and each row of the tail.
struct Rotary {
    cosines: View<f32>,
    sines: View<f32>,
    /// Rows of positions for a list.
    positions: Vec<usize>,
    /// Lists that share a row of positions.
    shared_by: usize,
}

impl Clusters {
    pub(super) fn read(kv: &ClusteredKv) -> Result<Self> {
        let [batch, kv_heads, width] = kv.tokens_by_cluster.dims();
        let [total, head_dim] = kv.directions.dims();
        let (lists, last) = (batch * kv_heads, width.saturating_sub(1));
        INPUT.shape("values", kv.values.dims(), [total, head_dim])?;
        INPUT.shape("cluster_of_token", kv.cluster_of_token.dims(), [batch, kv_heads, width])?;
        INPUT.shape("norms", kv.norms.dims(), [batch, kv_heads, width])?;
        INPUT.shape("padding_columns", kv.padding_columns.dims(), [lists])?;
        INPUT.shape("offsets", kv.offsets.dims(), [lists + 1])?;
        let capacity = kv.tail.keys.dims()[2];
        INPUT.shape("tail_keys", kv.tail.keys.dims(), [batch, kv_heads, capacity, head_dim])?;
        let columns = width + kv.tail.entries;
        let rotary = |tables: &RotaryTables| Rotary::read(tables, kv_heads, columns, head_dim);
        let clusters = Self {
            directions: INPUT.view(&kv.directions)?,
            values: INPUT.view(&kv.values)?,
            tokens_by_cluster: INPUT.at_most("tokens_by_cluster", &kv.tokens_by_cluster, last)?,
            cluster_of_token: INPUT.at_most("cluster_of_token", &kv.cluster_of_token, total)?,
            norms: INPUT.view(&kv.norms)?,
            padding: INPUT.at_most("padding_columns", &kv.padding_columns, width)?,
            offsets: INPUT.ascending("offsets", &kv.offsets, total)?,
            rotary: kv.rotary.as_ref().map(rotary).transpose()?,
            tail: HostTail::read(INPUT, &kv.tail)?,
            dims: [batch, kv_heads, head_dim],
            width,
        };
        for list in 0..lists {
            let rows = clusters.offsets[list + 1];
            let last = clusters.tokens(list).map(|(_, row)| row).max();
            let row = last.unwrap_or(0);
            let fits = last.is_none_or(|row| row < rows);
            INPUT.value("cluster_of_token", row, fits, format!("below {rows}"))?;
        }
        Ok(clusters)
    }

    /// The tokens of a list, those of a cluster beside each other: their columns, and the row of
    /// their cluster.
    fn tokens(&self, list: usize) -> impl Iterator<Item = (usize, usize)> {
        let tokens = &self.tokens_by_cluster[list * self.width..(list + 1) * self.width];
        let clusters = &self.cluster_of_token[list * self.width..(list + 1) * self.width];
        let offset = self.offsets[list];
        let held = &tokens[self.first(list)..];
        held.iter().map(move |&column| (column, offset + clusters[column]))
    }

    fn row<'a>(&self, rows: &'a [f32], row: usize) -> &'a [f32] {
        let head_dim = self.dims[2];
        &rows[row * head_dim..(row + 1) * head_dim]
    }
}

impl Rotary {
    fn read(
        RotaryTables { cosines, sines, positions }: &RotaryTables,
        kv_heads: usize,
        columns: usize,
        head_dim: usize,
    ) -> Result<Self> {
        let [rows, half] = cosines.dims();
        INPUT.shape("sines", sines.dims(), [rows, half])?;
        INPUT.value(
            "pairs of the tables",
            half,
            2 * half == head_dim,
            (head_dim / 2).to_string(),
        )?;
        let [batch, heads, _] = positions.dims();
        INPUT.shape("positions", positions.dims(), [batch, heads, columns])?;
        let shared = heads > 0 && kv_heads.is_multiple_of(heads);
        INPUT.value("heads of positions", heads, shared, format!("1 or {kv_heads}"))?;
        let table = |x: &Tensor<2>| INPUT.view(&x.clone().cast(DType::F32));
        // Padding stands at −1: any row of the table will do.
        let positions = positions.clone().clamp_min(0);
        Ok(Self {
            cosines: table(cosines)?,
            sines: table(sines)?,
            positions: INPUT.at_most("positions", &positions, rows.saturating_sub(1))?,
            shared_by: kv_heads / heads,
        })
    }

    /// Turns a key by the position of one of so many columns.
    #[inline(always)]
    fn turn(&self, list: usize, column: usize, columns: usize, key: &[f32], to: &mut [f32]) {
        let half = key.len() / 2;
        let position = self.positions[list / self.shared_by * columns + column];
        let cosines = &self.cosines[position * half..(position + 1) * half];
        let sines = &self.sines[position * half..(position + 1) * half];
        turn(cosines, sines, key, to);
    }
}

impl HostKv for Clusters {
    fn input(&self) -> HostInput {
        INPUT
    }

    fn dims(&self) -> [usize; 3] {
        self.dims
    }

    fn columns(&self) -> usize {
        self.width + self.tail.entries
    }

    fn first(&self, list: usize) -> usize {
        self.padding[list]
    }

    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, list: usize, queries: &[f32], scores: &mut [f32]) {
        let columns = self.columns();
        let norms = &self.norms[list * self.width..(list + 1) * self.width];
        let Some(rotary) = &self.rotary else {
            for (query, scores) in queries.chunks(self.dims[2]).zip(scores.chunks_mut(columns)) {
                let mut last = (usize::MAX, 0.0);
                for (column, row) in self.tokens(list) {
                    if last.0 != row {
                        last = (row, dot(simd, query, self.row(&self.directions, row)));
                    }
                    scores[column] = norms[column] * last.1;
                }
            }
            return self.tail.score(simd, (list, 0), queries, scores, columns);
        };
        let mut turned = vec![0.0; self.dims[2]];
        let of_token = |(column, row)| (column, self.row(&self.directions, row), norms[column]);
        let of_tail =
            (self.width..).zip(self.tail.keys(list)).map(|(column, key)| (column, key, 1.0));
        // One loop: its vector code would not be compiled into two.
        for (column, key, norm) in self.tokens(list).map(of_token).chain(of_tail) {
            rotary.turn(list, column, columns, key, &mut turned);
            for (query, scores) in queries.chunks(self.dims[2]).zip(scores.chunks_mut(columns)) {
                scores[column] = norm * dot(simd, query, &turned);
            }
        }
    }

    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, list: usize, weights: &[f32], output: &mut [f32]) {
        let columns = self.columns();
        let (start, end) = (self.offsets[list], self.offsets[list + 1]);
        let values = &self.values[start * self.dims[2]..end * self.dims[2]];
        let mut of_clusters = vec![0.0; end - start];
        for (output, weights) in output.chunks_mut(self.dims[2]).zip(weights.chunks(columns)) {
            // The weights of the tokens of a cluster come to its value together.
            of_clusters.fill(0.0);
            for (column, row) in self.tokens(list) {
                of_clusters[row - start] += weights[column];
            }
            add_all(simd, output, &of_clusters, values);
        }
        self.tail.weigh(simd, (list, 0), weights, output, columns);
    }
}
