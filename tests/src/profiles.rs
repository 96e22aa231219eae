//! A profile of a model that does not exist.

use std::sync::Arc;

use briquette::{CacheShape, HeadScores, Profile, QueryStatistics};

/// A profile with a different score for nearly every head and a different error for every layer.
pub fn profile(shape: CacheShape) -> Arc<Profile> {
    let scores = |step: usize| -> Vec<Vec<f64>> {
        let score = |layer, head| (1 + (7 * layer + step * head) % 11) as f64 / 100.0;
        (0..shape.layers)
            .map(|layer| (0..shape.query_heads).map(|head| score(layer, head)).collect())
            .collect()
    };
    let heads = HeadScores { semantic: scores(3), copy_paste: scores(5), headkv: scores(4) };
    let layer_errors = (0..shape.layers).map(|layer| 0.1 + 0.3 * layer as f64).collect();
    Arc::new(Profile::new(shape, heads, layer_errors).with_queries(queries(shape)))
}

/// Statistics of queries that differ from head to head.
fn queries(shape: CacheShape) -> QueryStatistics {
    let number = |layer: usize, head: usize, channel: usize| {
        ((3 * layer + 5 * head + 7 * channel) % 13) as f64 / 16.0 - 0.375
    };
    let table = |heads: usize, width: usize, least: f64| -> Vec<Vec<Vec<f64>>> {
        let of_head = |layer, head| {
            (0..width).map(|channel| number(layer, head, channel).max(least)).collect()
        };
        (0..shape.layers)
            .map(|layer| (0..heads).map(|head| of_head(layer, head)).collect())
            .collect()
    };
    let reach = |layer| (0..shape.kv_heads).map(|head| 0.5 + number(layer, head, 0)).collect();
    QueryStatistics {
        directions: table(shape.kv_heads, shape.head_dim, -1.0),
        means: table(shape.query_heads, shape.head_dim, -1.0),
        lengths: table(shape.query_heads, shape.head_dim / 2, 0.0625),
        reach: (0..shape.layers).map(reach).collect(),
    }
}
