//! Operations of a decode step of EMS on its clusters: the token that has come is put behind it,
//! every token gets the entry it is in now, and what is known of it goes where it goes.

use anyhow::Result;
use briquette::{ops::Ops, score::Pool};
use briquette_ops::{
    AssignClustersInput, ExtendInput, GlobalLocalInput, MergedRows, ReorderTokensInput,
    RowWeightsInput,
};
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::bench::{Bench, Case, difference};

/// Tokens an entry.
const GAMMA: usize = 4;

/// The table of as many heads, all alike, on the device.
struct Table {
    heads: usize,
    clusters: usize,
    cluster_of_token: Tensor<3, Int>,
    representatives: Tensor<3, Int>,
    norms: Tensor<3>,
    positions: Tensor<3, Int>,
    scores: Tensor<3>,
}

impl Table {
    /// Token `j` belongs to cluster `j % clusters`, whose representative is its first.
    fn new(bench: &Bench, heads: usize, clusters: usize) -> Self {
        let tokens = GAMMA * clusters;
        let count = |width: usize| {
            let list = Tensor::<1, Int>::arange(0..width as i64, &bench.device);
            list.reshape([1, 1, width]).repeat(&[1, heads, 1])
        };
        let noise = || bench.noise([1, heads, tokens, 1], DType::F32).abs().squeeze_dim(3);
        Self {
            heads,
            clusters,
            cluster_of_token: count(clusters).repeat(&[1, 1, GAMMA]),
            representatives: count(clusters),
            norms: noise(),
            positions: count(tokens),
            scores: noise(),
        }
    }

    fn tokens(&self) -> usize {
        GAMMA * self.clusters
    }

    fn case(&self, row: &'static str, numbers: usize) -> Case<'static> {
        let Self { heads, clusters, .. } = self;
        Case {
            row,
            shape: format!("{} tokens of {clusters} clusters, {heads} heads", self.tokens()),
            bytes: (4 * heads * numbers) as f64,
            operations: 0.0,
        }
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let rows =
        ["extend/step", "classify/step", "regroup/step", "row-weights/step", "global-local/step"];
    if !rows.iter().any(|row| bench.wants(row)) {
        return Ok(());
    }
    let table = Table::new(bench, bench.size(128, 3), bench.size(256, 16));
    let (tokens, clusters) = (table.tokens(), table.clusters);

    let counts = vec![[tokens, clusters, 1]; table.heads];
    let extend = |ops: &dyn Ops| {
        ops.extend(ExtendInput {
            cluster_of_token: table.cluster_of_token.clone(),
            norms: table.norms.clone(),
            representatives: table.representatives.clone(),
            counts: &counts,
            columns: tokens + 1,
            rows: clusters + 1,
        })
    };
    let case = table.case("extend/step", 4 * tokens + 2 * clusters);
    one(bench, case, |ops| Ok(vec![extend(ops)?.norms]));

    let of_clusters = vec![clusters; table.heads];
    // One row is merged, the second.
    let of_rows = |count: usize| vec![count; table.heads];
    let (one_row, none, fewer) = (of_rows(1), of_rows(0), of_rows(clusters - 1));
    let merged = table.representatives.clone().narrow(2, 1, 1);
    let kept: Vec<i64> = (0..clusters as i64).filter(|&row| row != 1).collect();
    let stay = TensorData::new(kept, [1, 1, clusters - 1]);
    let stay = Tensor::<3, Int>::from_data(stay, &bench.device).repeat(&[1, table.heads, 1]);
    let assign_clusters = |ops: &dyn Ops| {
        ops.assign_clusters(AssignClustersInput {
            rows: table.cluster_of_token.clone(),
            height: clusters,
            kept_rows: stay.clone(),
            cluster_counts: &fewer,
            merged: Some(MergedRows {
                rows: merged.clone(),
                counts: &one_row,
                nearest: merged.clone(),
                cluster_offset: &none,
                similarity: table.scores.clone().narrow(2, 0, 1),
                threshold: 0.5,
            }),
            representatives: stay.clone(),
            positions: table.positions.clone(),
            scores: table.scores.clone(),
        })
    };
    let case = table.case("classify/step", 6 * tokens + clusters);
    one(bench, case, |ops| Ok(vec![assign_clusters(ops)?.ranks]));

    let of_tokens = vec![tokens; table.heads];
    let lengths = table.scores.clone().narrow(2, 0, clusters);
    let reorder_tokens = |ops: &dyn Ops| {
        ops.reorder_tokens(ReorderTokensInput {
            columns: table.positions.clone(),
            clusters: table.cluster_of_token.clone(),
            order: table.positions.clone(),
            counts: &of_tokens,
            representatives: table.representatives.clone(),
            cluster_counts: &of_clusters,
            rows: table.cluster_of_token.clone(),
            norms: table.norms.clone(),
            lengths: lengths.clone(),
            positions: table.positions.clone(),
            statistics: Default::default(),
        })
    };
    let case = table.case("regroup/step", 11 * tokens + clusters);
    one(bench, case, |ops| Ok(vec![reorder_tokens(ops)?.norms]));
    scores(bench, &table);
    Ok(())
}

/// Weights of clusters and ranks of tokens.
fn scores(bench: &mut Bench, table: &Table) {
    let (tokens, clusters) = (table.tokens(), table.clusters);
    one(bench, table.case("row-weights/step", 3 * tokens + clusters), |ops| {
        Ok(vec![ops.row_weights(RowWeightsInput {
            rows: table.cluster_of_token.clone(),
            positions: table.positions.clone(),
            scores: table.scores.clone(),
            height: clusters,
            bounds: (1e-12, 1e30),
        })?])
    });
    // Read once for the level, once for the scores.
    one(bench, table.case("global-local/step", 7 * tokens), |ops| {
        Ok(vec![ops.global_local(GlobalLocalInput {
            sums: table.scores.clone(),
            past: table.norms.clone(),
            current: table.scores.clone(),
            kv_heads: table.heads,
            window: 32,
            pool: Some(Pool::avg(7)),
        })?])
    });
}

/// Times a call, and compares what it returns with what tensor operations do.
pub(crate) fn one<const D: usize>(
    bench: &mut Bench,
    case: Case<'_>,
    call: impl Fn(&dyn Ops) -> Result<Vec<Tensor<D>>> + Sync,
) {
    if !bench.wants(case.row) {
        return;
    }
    bench.run_both(
        &case,
        1,
        |ops, _| call(ops),
        |found, expected| {
            found.into_iter().zip(expected).try_fold((0.0, 0.0), |(most, of), (found, expected)| {
                let (off, largest) = difference(found, expected)?;
                Ok((f64::max(most, off), f64::max(of, largest)))
            })
        },
    );
}
