use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{CacheShape, Error, Profile, Result, check, head_patterns, ops::HeadPattern};

/// Sparse attention over prompts: each query head computes a part of the weights. Stages observe
/// only that part; decoded tokens attend to all entries.
///
/// MInference ([Jiang et al., 2024](https://arxiv.org/abs/2407.02490)) has a pattern for each head,
/// found by a search on one sample ([`closest_patterns`](crate::ops::closest_patterns));
/// `briquette calibrate --patterns` writes them into the [profile](Profile). XAttention ([Xu et
/// al., 2025](https://arxiv.org/abs/2503.16428)) has the same pattern for all heads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub struct SparsePrefill {
    patterns: Patterns,
}

#[derive(Clone, Debug, PartialEq)]
enum Patterns {
    /// One pattern for all heads of all layers.
    One(HeadPattern),
    /// A pattern per head, `[layers][query_heads]`.
    Each(Arc<[Vec<HeadPattern>]>),
    /// Those of the profile.
    Profile,
}

/// Form in a policy file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Named(Name),
    One(HeadPattern),
    Each(Vec<Vec<HeadPattern>>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    MInference,
    XAttention,
    Profile,
}

impl From<Form> for SparsePrefill {
    fn from(form: Form) -> Self {
        match form {
            Form::Named(Name::MInference) => Self::minference(),
            Form::Named(Name::XAttention) => Self::xattention(),
            Form::Named(Name::Profile) => Self::of_profile(),
            Form::One(pattern) => Self::of_all(pattern),
            Form::Each(patterns) => Self::of_heads(patterns),
        }
    }
}

impl From<SparsePrefill> for Form {
    fn from(prefill: SparsePrefill) -> Self {
        match prefill.patterns {
            Patterns::One(pattern) => Self::One(pattern),
            Patterns::Each(patterns) => Self::Each(patterns.to_vec()),
            Patterns::Profile => Self::Named(Name::Profile),
        }
    }
}

impl SparsePrefill {
    /// Creates a sparse prefill with the same pattern in all heads.
    pub fn of_all(pattern: HeadPattern) -> Self {
        Self { patterns: Patterns::One(pattern) }
    }

    /// Creates a sparse prefill with a pattern for each query head of each layer,
    /// `[layers][query_heads]`.
    pub fn of_heads(patterns: Vec<Vec<HeadPattern>>) -> Self {
        Self { patterns: Patterns::Each(patterns.into()) }
    }

    /// Creates a sparse prefill with the patterns of the model's profile: MInference after its
    /// search.
    pub fn of_profile() -> Self {
        Self { patterns: Patterns::Profile }
    }

    /// Creates MInference before a search: 1 000 columns and 6 096 distances in every head. Its
    /// code gives this pattern to heads for which the search finds nothing better.
    pub fn minference() -> Self {
        Self::of_all(HeadPattern::VerticalSlash { vertical: 1000, slash: 6096 })
    }

    /// Creates XAttention with the settings of CompressKV's appendix E: a stride of 8 and a
    /// threshold of 0.9.
    pub fn xattention() -> Self {
        Self::of_all(HeadPattern::Antidiagonal { stride: 8, threshold: 0.9 })
    }

    /// Returns the patterns of a layer, `[query_heads]`.
    pub(crate) fn patterns(
        &self,
        layer: usize,
        shape: CacheShape,
        profile: Option<&Profile>,
    ) -> Vec<HeadPattern> {
        let dense = || vec![HeadPattern::Dense; shape.query_heads];
        match &self.patterns {
            Patterns::Profile => {
                // No cache takes a policy without them.
                let searched = profile.and_then(|profile| profile.patterns.as_ref());
                searched.map_or_else(dense, |each| each[layer].clone())
            }
            Patterns::One(pattern) => vec![*pattern; shape.query_heads],
            Patterns::Each(layers) => layers[layer].clone(),
        }
    }

    /// Refuses numbers that no pattern can have.
    pub(super) fn check(&self) -> Result<()> {
        let impossible = match &self.patterns {
            Patterns::One(pattern) => head_patterns::impossible([pattern]),
            Patterns::Each(layers) => head_patterns::impossible(layers.iter().flatten()),
            Patterns::Profile => None,
        };
        match impossible {
            Some((pattern, must_be)) => check::refuse(PARAMETER, format!("{pattern:?}"), must_be),
            None => Ok(()),
        }
    }

    pub(super) fn reads_profile(&self) -> bool {
        matches!(self.patterns, Patterns::Profile)
    }

    /// Refuses a profile without patterns.
    pub(super) fn check_profile(&self, profile: &Profile) -> Result<()> {
        if !self.reads_profile() || profile.patterns.is_some() {
            return Ok(());
        }
        let reason = "it has no patterns of sparse attention: `briquette calibrate --patterns LENGTH` searches them";
        Err(Error::InvalidProfile { model: profile.model.clone(), reason: reason.into() })
    }

    /// Refuses patterns of a model of another shape.
    pub(super) fn check_shape(&self, shape: CacheShape) -> Result<()> {
        let Patterns::Each(each) = &self.patterns else { return Ok(()) };
        let Some(heads) = head_patterns::other_heads(each, shape) else { return Ok(()) };
        let CacheShape { layers, query_heads, .. } = shape;
        let must_be = format!("{query_heads} patterns in each of {layers} layers");
        check::refuse(PARAMETER, format!("patterns of {heads:?} heads"), must_be)
    }
}

/// Name of a pattern in a policy file.
const PARAMETER: &str = "sparse_prefill";
