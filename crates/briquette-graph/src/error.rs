/// The reason why a step is not run or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cache refused a call.
    #[error(transparent)]
    Cache(#[from] briquette::Error),
    /// The device refused a replay.
    #[error("the device could not replay a step: {0}")]
    Replay(String),
    /// A step did what cannot be recorded, reading from the device or sending to it among that: reset the cache.
    #[error("a step could not be recorded, and its cache is to be reset: {0}")]
    Recording(String),
    /// A step that was recorded left the cache where a replay would not find it: reset the cache.
    #[error("a recorded step moved {tensors} tensors of the cache: reset it")]
    Moved {
        /// How many tensors.
        tensors: usize,
    },
    /// Tokens of another shape.
    #[error("tokens are {found:?}, steps take {expected:?}")]
    Tokens {
        /// The shape given.
        found: [usize; 2],
        /// One token a row.
        expected: [usize; 2],
    },
}
