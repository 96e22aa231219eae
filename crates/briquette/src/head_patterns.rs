//! Tables of patterns of sparse attention, `[layers][query_heads]`.

use crate::{CacheShape, ops::HeadPattern};

/// Returns the number of heads in each layer if they do not fit a cache of this shape; `None` if
/// they do.
pub(crate) fn other_heads(patterns: &[Vec<HeadPattern>], shape: CacheShape) -> Option<Vec<usize>> {
    let heads: Vec<usize> = patterns.iter().map(Vec::len).collect();
    (heads != vec![shape.query_heads; shape.layers]).then_some(heads)
}

/// Returns the first pattern with impossible numbers, and the condition that it breaks.
pub(crate) fn impossible<'a>(
    patterns: impl IntoIterator<Item = &'a HeadPattern>,
) -> Option<(&'a HeadPattern, &'static str)> {
    patterns.into_iter().find_map(|pattern| Some((pattern, pattern.breaks()?)))
}
