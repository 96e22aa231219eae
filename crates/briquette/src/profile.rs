//! Measurements of a model made ahead of time: which heads retrieve, which layers suffer from a
//! small cache, statistics of its queries, and patterns of its attention.
//!
//! `briquette calibrate` makes the file; HeadKV, CompressKV, Q-Filter, TriAttention, DuoAttention
//! and MInference read it.

use std::{fmt::Display, path::Path};

use serde::{Deserialize, Serialize};

use crate::{CacheShape, Error, QueryStatistics, Result, files, head_patterns, ops::HeadPattern};

/// Head scores and layer errors of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Profile {
    /// Checkpoint it was made from, for people.
    pub model: String,
    /// Prompts, lengths, seed and date of the measurement, for people.
    pub made: String,
    /// Fingerprint of the checkpoint it was made from: of configuration, tokenizer and all weights.
    /// The caller compares it; absent if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// Shape of the model's cache. A cache of another shape refuses the profile.
    pub shape: CacheShape,
    /// Retrieval scores of the query heads.
    pub heads: HeadScores,
    /// Relative error of each layer's attention output, after the output projection, under a small
    /// cache (CompressKV, Eq. 6 to 12), normalised to sum to one: `[layers]`.
    pub layer_errors: Vec<f64>,
    /// Statistics of its queries; absent from older profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries: Option<QueryStatistics>,
    /// Pattern of sparse attention of each query head, by MInference's search,
    /// `[layers][query_heads]`; absent without a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patterns: Option<Vec<Vec<HeadPattern>>>,
}

impl Profile {
    /// A profile of what CompressKV and HeadKV read. It names no model, and has no statistics of
    /// queries and no patterns.
    pub fn new(shape: CacheShape, heads: HeadScores, layer_errors: Vec<f64>) -> Self {
        let (model, made) = Default::default();
        let (weights, queries, patterns) = (None, None, None);
        Self { model, made, weights, shape, heads, layer_errors, queries, patterns }
    }

    /// Sets the statistics of its queries.
    pub fn with_queries(self, queries: QueryStatistics) -> Self {
        Self { queries: Some(queries), ..self }
    }
}

/// Retrieval scores of the query heads by three measures; each `[layers][query_heads]`, not
/// negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HeadScores {
    /// Attention on the whole answer span while the answer is generated (CompressKV: semantic
    /// retrieval heads).
    pub semantic: Vec<Vec<f64>>,
    /// Rate at which the most attended token is the answer token being copied (Wu et al., 2024:
    /// retrieval heads).
    pub copy_paste: Vec<Vec<f64>>,
    /// Attention on answer tokens that are among the most attended (HeadKV).
    pub headkv: Vec<Vec<f64>>,
}

/// One of the measures of [`HeadScores`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeadScoreKind {
    /// [`HeadScores::semantic`]
    #[default]
    Semantic,
    /// [`HeadScores::copy_paste`]
    CopyPaste,
    /// [`HeadScores::headkv`]
    Headkv,
}

impl HeadScoreKind {
    /// Every measure.
    pub const ALL: [Self; 3] = [Self::Semantic, Self::CopyPaste, Self::Headkv];
}

impl HeadScores {
    /// Returns the scores of one kind, `[layers][query_heads]`.
    pub fn get(&self, kind: HeadScoreKind) -> &[Vec<f64>] {
        match kind {
            HeadScoreKind::Semantic => &self.semantic,
            HeadScoreKind::CopyPaste => &self.copy_paste,
            HeadScoreKind::Headkv => &self.headkv,
        }
    }
}

impl Profile {
    /// Reads a profile from JSON.
    ///
    /// # Errors
    /// [`Error::ProfileFile`] if it cannot be read or understood, or [`Error::InvalidProfile`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let origin = path.display().to_string();
        let text = files::read_text(path).map_err(|error| failed(&origin, error))?;
        Self::parse(&text, &origin)
    }

    /// Reads a profile from JSON text.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_json(text: &str) -> Result<Self> {
        Self::parse(text, "JSON")
    }

    fn parse(text: &str, origin: &str) -> Result<Self> {
        let profile: Self = serde_json::from_str(text).map_err(|error| failed(origin, error))?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the profile as JSON.
    ///
    /// # Errors
    /// [`Error::ProfileFile`] if a number has no JSON form.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| failed(&self.model, error))
    }

    /// Checks that every table has the dimensions of the shape and holds finite numbers that are
    /// not negative.
    ///
    /// # Errors
    /// [`Error::InvalidProfile`].
    pub fn check(&self) -> Result<()> {
        self.shape.check()?;
        let CacheShape { layers, query_heads, .. } = self.shape;
        let fail =
            |reason: String| Err(Error::InvalidProfile { model: self.model.clone(), reason });
        let usable = |x: &f64| x.is_finite() && *x >= 0.0;
        for kind in HeadScoreKind::ALL {
            let table = self.heads.get(kind);
            if table.len() != layers || table.iter().any(|heads| heads.len() != query_heads) {
                let heads = table.first().map_or(0, Vec::len);
                return fail(format!(
                    "its {kind:?} scores are {} layers × {heads} heads, its shape says {layers} × {query_heads}",
                    table.len()
                ));
            }
            if !table.iter().flatten().all(usable) {
                return fail(format!("a {kind:?} score is negative or not finite"));
            }
        }
        if self.layer_errors.len() != layers {
            return fail(format!(
                "it has {} layer errors for {layers} layers",
                self.layer_errors.len()
            ));
        }
        if !self.layer_errors.iter().all(usable) {
            return fail("a layer error is negative or not finite".into());
        }
        if let Some(reason) = self.queries.as_ref().and_then(|it| it.mistake(self.shape)) {
            return fail(reason);
        }
        let Some(patterns) = &self.patterns else { return Ok(()) };
        if let Some(heads) = head_patterns::other_heads(patterns, self.shape) {
            return fail(format!(
                "its patterns are of {heads:?} heads, its shape says {layers} layers of {query_heads}"
            ));
        }
        match head_patterns::impossible(patterns.iter().flatten()) {
            Some((pattern, must_be)) => fail(format!("{pattern:?} is not {must_be}")),
            None => Ok(()),
        }
    }

    /// Checks that it was made for caches of this shape.
    ///
    /// # Errors
    /// [`Error::ProfileShape`].
    pub fn check_shape(&self, shape: CacheShape) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        Err(Error::ProfileShape { model: self.model.clone(), profile: self.shape, cache: shape })
    }
}

fn failed(origin: &str, error: impl Display) -> Error {
    Error::ProfileFile { origin: origin.to_owned(), message: error.to_string() }
}
