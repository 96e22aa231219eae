//! Measurements of a model, made ahead of time.

use std::fmt;

/// Scores of heads and errors of layers.
#[derive(Clone, Default, PartialEq)]
pub struct Profile {
    /// Attention on the whole answer, `[layers][query_heads]`.
    pub semantic: Vec<Vec<f64>>,
    /// Frequency with which the answer token being copied was the most attended,
    /// `[layers][query_heads]`.
    pub copy_paste: Vec<Vec<f64>>,
    /// Attention on answer tokens among the most attended, `[layers][query_heads]`.
    pub headkv: Vec<Vec<f64>>,
    /// The error of each layer's attention under a small cache, `[layers]`.
    pub layer_errors: Vec<f64>,
    /// The direction that queries share, `[layers][kv_heads][head_dim]`.
    pub directions: Vec<Vec<Vec<f64>>>,
    /// The mean query without position, `[layers][query_heads][head_dim]`.
    pub means: Vec<Vec<Vec<f64>>>,
    /// The mean length of its pairs of channels, `[layers][query_heads][head_dim / 2]`.
    pub lengths: Vec<Vec<Vec<f64>>>,
    /// Reach of heads into the past, `[layers][kv_heads]`.
    pub reach: Vec<Vec<f64>>,
}

/// One of the scores of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadScore {
    /// [`Profile::semantic`]
    Semantic,
    /// [`Profile::copy_paste`]
    CopyPaste,
    /// [`Profile::headkv`]
    HeadKv,
}

impl Profile {
    /// Scores of one kind, `[layers][query_heads]`.
    pub fn heads(&self, kind: HeadScore) -> &[Vec<f64>] {
        match kind {
            HeadScore::Semantic => &self.semantic,
            HeadScore::CopyPaste => &self.copy_paste,
            HeadScore::HeadKv => &self.headkv,
        }
    }
}

impl fmt::Debug for Profile {
    /// Its numbers would hide everything else in the message of a failed test.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile of {} layers", self.layer_errors.len())
    }
}
