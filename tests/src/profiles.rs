//! A profile of a model that does not exist.

use std::sync::Arc;

use briquette::{CacheShape, HeadScores, Profile};

/// A profile with a different score for nearly every head and a different error for every layer.
pub fn profile(shape: CacheShape) -> Arc<Profile> {
    let scores = |step: usize| -> Vec<Vec<f64>> {
        let score = |layer, head| (1 + (7 * layer + step * head) % 11) as f64 / 100.0;
        (0..shape.layers)
            .map(|layer| (0..shape.query_heads).map(|head| score(layer, head)).collect())
            .collect()
    };
    Arc::new(Profile {
        model: "a test".into(),
        made: "by hand".into(),
        weights: None,
        shape,
        heads: HeadScores { semantic: scores(3), copy_paste: scores(5), headkv: scores(4) },
        layer_errors: (0..shape.layers).map(|layer| 0.1 + 0.3 * layer as f64).collect(),
        queries: None,
    })
}
