//! Statistics of the queries of a model, measured ahead of time on text without answers.

use serde::{Deserialize, Serialize};

use crate::CacheShape;

/// Statistics of queries and keys of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct QueryStatistics {
    /// Direction that the queries of a head share (Q-Filter): the first right singular vector of
    /// the queries, positions encoded, turned so that they point along it on average. It is the
    /// mean over the query heads that share a kv head: `[layers][kv_heads][head_dim]`.
    pub directions: Vec<Vec<Vec<f64>>>,
    /// Mean query before its position is encoded (TriAttention): `[layers][query_heads][head_dim]`.
    pub means: Vec<Vec<Vec<f64>>>,
    /// Mean length of each pair of channels that a rotary embedding turns together, channel c with
    /// channel c + head_dim / 2 (TriAttention): `[layers][query_heads][head_dim / 2]`.
    pub lengths: Vec<Vec<Vec<f64>>>,
    /// Distance that a head looks back (DuoAttention, on the fly). The mean query and the mean key
    /// of a text are each repeated 500 times and encoded; the distance is the area under the
    /// cumulated attention of the last query, from 0 (the last token alone) to 1 (the first). The
    /// mean over the group, `[layers][kv_heads]`.
    pub reach: Vec<Vec<f64>>,
}

impl QueryStatistics {
    /// Returns why the tables do not fit a shape, or hold numbers that are not finite; `None` if
    /// they do.
    pub(crate) fn mistake(&self, shape: CacheShape) -> Option<String> {
        let CacheShape { layers, query_heads, kv_heads, head_dim } = shape;
        let of_heads = |name: &str, table: &[Vec<Vec<f64>>], heads: usize, width: usize| {
            let fits = table.len() == layers
                && table.iter().all(|layer| layer.len() == heads)
                && table.iter().flatten().all(|head| head.len() == width);
            let finite = table.iter().flatten().flatten().all(|x| x.is_finite());
            let wanted = format!("{layers} × {heads} × {width} finite numbers");
            (!fits || !finite).then(|| format!("its {name} of queries are not {wanted}"))
        };
        let reach_fits = self.reach.len() == layers
            && self.reach.iter().all(|layer| layer.len() == kv_heads)
            && self.reach.iter().flatten().all(|x| x.is_finite());
        of_heads("directions", &self.directions, kv_heads, head_dim)
            .or_else(|| of_heads("means", &self.means, query_heads, head_dim))
            .or_else(|| of_heads("lengths", &self.lengths, query_heads, head_dim / 2))
            .or_else(|| {
                let wanted = format!("{layers} × {kv_heads} finite numbers");
                (!reach_fits).then(|| format!("its reach of heads is not {wanted}"))
            })
    }
}
