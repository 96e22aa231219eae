//! Defaults and sizes that synthetic tasks share.

use crate::tasks::Question;

/// Both times of a question, before and after: the default of `ask`.
pub(super) fn both() -> Vec<Question> {
    vec![Question::Before, Question::After]
}

/// Tokens an answer may take: `least`, or half as many again as the right answer.
pub(super) fn answer_room(least: usize, right: usize) -> usize {
    least.max(right + right.div_ceil(2))
}
