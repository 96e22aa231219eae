//! Texts as the scorers see them.

mod bag;
pub(super) mod chinese;
mod normalize;
mod pattern;
mod python;

pub(super) use bag::Bag;
pub(super) use normalize::{normalize, words};
pub(super) use pattern::pattern;
pub(super) use python::{ascii_digits, first_line, is_space, space_out, split, word_runs};
