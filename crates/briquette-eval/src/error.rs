use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What stands in the way of an evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy or the cache.
    #[error(transparent)]
    Cache(#[from] briquette::Error),
    /// The model or its tokenizer.
    #[error(transparent)]
    Model(#[from] briquette_models::Error),
    /// A file or folder that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file or folder that cannot be written.
    #[error("cannot write {path}: {message}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// A haystack folder without text.
    #[error("haystack {dir}: its {files} .txt files hold no text")]
    EmptyHaystack {
        /// The folder.
        dir: PathBuf,
        /// Files found in it.
        files: usize,
    },
    /// A prompt too short for what it must hold.
    #[error(
        "{length} tokens cannot hold the needle task: introduction, {needles} needles, question and answer take \
         {fixed}"
    )]
    PromptTooShort {
        /// Tokens asked for.
        length: usize,
        /// Tokens needed beside the haystack.
        fixed: usize,
        /// Needles asked for.
        needles: usize,
    },
    /// A prompt and its answer beyond the context of the model.
    #[error(
        "{length} tokens of prompt and answer do not fit the model's context of {context} tokens"
    )]
    ContextTooShort {
        /// Tokens asked for.
        length: usize,
        /// Tokens of context.
        context: usize,
    },
    /// More needles than words.
    #[error("{needles} needles asked for, the list has words for {words}")]
    TooManyNeedles {
        /// Needles asked for.
        needles: usize,
        /// Words of the list.
        words: usize,
    },
    /// An axis of the grid without a value, or with one outside its range.
    #[error("{axis}: {reason}")]
    Grid {
        /// The option.
        axis: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A change to a policy written on the command line that cannot be applied.
    #[error("policy `{text}`: {reason}")]
    PolicyText {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}
