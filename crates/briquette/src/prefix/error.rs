use std::path::PathBuf;

use crate::shape::CacheShape;

/// An error of saving or loading a prefix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PrefixError {
    /// The file cannot be read.
    #[error("cannot read the prefix {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file cannot be written. What was there before is still there.
    #[error("cannot write the prefix {}: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
    /// The file is cut off, or is no safetensors file.
    #[error("{} is cut off or no safetensors file: {reason}", path.display())]
    Container { path: PathBuf, reason: String },
    /// The file is a safetensors file, but no prefix.
    #[error("{} holds no prefix", path.display())]
    NotAPrefix { path: PathBuf },
    /// The prefix was written in another version of the format.
    #[error("{} is a prefix of format {found}, but this build reads format {expected}", path.display())]
    Version { path: PathBuf, found: String, expected: u32 },
    /// The checksum is not that of the contents.
    #[error("{} was altered: its contents do not match their checksum", path.display())]
    Altered { path: PathBuf },
    /// A part of the file contradicts the rest of it.
    #[error("the prefix does not fit together: {part} {reason}")]
    Contents { part: String, reason: String },
    /// The prefix is of a model with other dimensions.
    #[error("the prefix is for {found:?}, but the cache is {given:?}")]
    OtherShape { found: CacheShape, given: CacheShape },
    /// The prefix is of another model of the same shape.
    #[error("the prefix is of the model {}, but the cache is for {}", named(found), named(given))]
    OtherModel { found: Option<String>, given: Option<String> },
    /// The prefix was compressed under another policy.
    #[error(
        "the prefix was made under the policy `{found}`, which differs from the policy `{given}` of the cache"
    )]
    OtherPolicy { found: String, given: String },
    /// The prefix is of a cache with another configuration.
    #[error("the prefix has {what} {found}, but the cache has {given}")]
    OtherConfig { what: &'static str, found: String, given: String },
    /// The cache has seen no token.
    #[error("the cache has seen no token: there is nothing to keep")]
    Empty,
    /// The layers of the cache have not seen the same tokens.
    #[error(
        "layer {layer} has seen {found:?} tokens, but layer 0 has seen {first:?}: a step is not complete"
    )]
    LayersApart { layer: usize, found: Vec<usize>, first: Vec<usize> },
    /// A custom store has no file form, or cannot select or append rows.
    #[error("the store `{store}` does not say how it is written to a file, or how its rows change")]
    Store { store: String },
    /// A cache of several rows, or of none, was to be forked into rows.
    #[error("only a cache of one row can be given to several: this one has {rows}")]
    Rows { rows: usize },
}

impl PrefixError {
    /// An error of the [`Contents`](Self::Contents).
    pub(crate) fn contents(part: &str, reason: impl Into<String>) -> Self {
        Self::Contents { part: part.to_owned(), reason: reason.into() }
    }
}

fn named(model: &Option<String>) -> String {
    model.as_ref().map_or_else(|| "no name".to_owned(), |model| format!("`{model}`"))
}
