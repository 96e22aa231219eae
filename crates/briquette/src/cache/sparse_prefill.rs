use std::sync::Arc;

use crate::{CacheShape, Error, Result, ops::HeadPattern};

/// Attention over prompts of which each query head computes a part of the weights. What stages observe of it is that part;
/// decoded tokens attend to all that is held.
///
/// MInference ([Jiang et al., 2024](https://arxiv.org/abs/2407.02490)) has a pattern for each head, which a search on one
/// sample finds ([`closest_patterns`](crate::ops::closest_patterns)); XAttention
/// ([Xu et al., 2025](https://arxiv.org/abs/2503.16428)) the same for all.
#[derive(Clone, Debug, PartialEq)]
pub struct SparsePrefill {
    patterns: Patterns,
}

#[derive(Clone, Debug, PartialEq)]
enum Patterns {
    /// All heads of all layers.
    One(HeadPattern),
    /// `[layers][query_heads]`
    Each(Arc<[Vec<HeadPattern>]>),
}

impl SparsePrefill {
    /// The same pattern in all heads.
    pub fn of_all(pattern: HeadPattern) -> Self {
        Self { patterns: Patterns::One(pattern) }
    }

    /// A pattern for each query head of each layer, `[layers][query_heads]`.
    pub fn of_heads(patterns: Vec<Vec<HeadPattern>>) -> Self {
        Self { patterns: Patterns::Each(patterns.into()) }
    }

    /// MInference before a search: 1 000 columns and 6 096 distances in every head, what its code gives heads that its search
    /// finds nothing better for.
    pub fn minference() -> Self {
        Self::of_all(HeadPattern::VerticalSlash { vertical: 1000, slash: 6096 })
    }

    /// XAttention as CompressKV runs it beside itself (appendix E): a stride of 8 and a threshold of 0.9.
    pub fn xattention() -> Self {
        Self::of_all(HeadPattern::Antidiagonal { stride: 8, threshold: 0.9 })
    }

    /// Those of a layer, `[query_heads]`.
    pub(super) fn patterns(&self, layer: usize, shape: CacheShape) -> Vec<HeadPattern> {
        match &self.patterns {
            Patterns::One(pattern) => vec![*pattern; shape.query_heads],
            Patterns::Each(layers) => layers[layer].clone(),
        }
    }

    /// Refuses numbers no pattern can have, and patterns of a model of another shape.
    pub(super) fn check(&self, shape: CacheShape) -> Result<()> {
        let refused = |value: String, must_be: String| {
            Err(Error::InvalidParameter { parameter: "prefill", value, must_be })
        };
        let all = match &self.patterns {
            Patterns::One(pattern) => std::slice::from_ref(pattern).to_vec(),
            Patterns::Each(layers) => {
                let heads: Vec<usize> = layers.iter().map(Vec::len).collect();
                if heads != vec![shape.query_heads; shape.layers] {
                    let CacheShape { layers, query_heads, .. } = shape;
                    let must_be = format!("{query_heads} patterns in each of {layers} layers");
                    return refused(format!("patterns of {heads:?} heads"), must_be);
                }
                layers.concat()
            }
        };
        match all.iter().find_map(|pattern| Some((pattern, pattern.breaks()?))) {
            Some((pattern, must_be)) => refused(format!("{pattern:?}"), must_be.into()),
            None => Ok(()),
        }
    }
}
