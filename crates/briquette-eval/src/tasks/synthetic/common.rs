//! Defaults and sizes that synthetic tasks share.

use crate::grid::Question;

/// Both, before and after: what `ask` is if a run file does not say.
pub(super) fn both() -> Vec<Question> {
    vec![Question::Before, Question::After]
}

/// Tokens an answer may take: `least`, or half as many again as the right answer.
pub(super) fn answer_room(least: usize, right: usize) -> usize {
    least.max(right + right.div_ceil(2))
}
