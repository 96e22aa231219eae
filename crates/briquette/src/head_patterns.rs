//! Tables of patterns of sparse attention, `[layers][query_heads]`.

use crate::{CacheShape, ops::HeadPattern};

/// The heads of each layer, where they are not those of a cache of this shape.
pub(crate) fn other_heads(patterns: &[Vec<HeadPattern>], shape: CacheShape) -> Option<Vec<usize>> {
    let heads: Vec<usize> = patterns.iter().map(Vec::len).collect();
    (heads != vec![shape.query_heads; shape.layers]).then_some(heads)
}

/// The first pattern with numbers that none can have, and the condition that it breaks.
pub(crate) fn impossible<'a>(
    patterns: impl IntoIterator<Item = &'a HeadPattern>,
) -> Option<(&'a HeadPattern, &'static str)> {
    patterns.into_iter().find_map(|pattern| Some((pattern, pattern.breaks()?)))
}
