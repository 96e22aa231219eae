/// The reason why a step is not run or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// The cache refused a call.
    #[error(transparent)]
    Cache(#[from] briquette::Error),
    /// The device refused a replay.
    #[error("the device could not replay a step: {0}")]
    Replay(String),
    /// Tokens of another shape.
    #[error("tokens are {found:?}, steps take {expected:?}")]
    Tokens { found: [usize; 2], expected: [usize; 2] },
}
