use std::path::PathBuf;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Reason why a command refuses what it is given, or a file it is to write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file that cannot be read or written, or the results of another command.
    #[error(transparent)]
    Eval(#[from] briquette_eval::Error),
    /// A file that is to be written is one that is read.
    #[error("{path} is read by this command, which would overwrite it")]
    OutputIsInput { path: PathBuf },
    /// Two results are to be written into one file.
    #[error("{path} is named for two outputs")]
    OutputTwice { path: PathBuf },
    /// A file that briquette did not write is where a result is to be written.
    #[error("{path} is there and was not written by briquette")]
    OutputForeign { path: PathBuf },
    /// Results where others are to be written.
    #[error("{path} holds the results of a run, or scores of one: name another folder")]
    ResultsThere { path: PathBuf },
    /// A path that a run file cannot hold.
    #[error(
        "the path {path:?} is not UTF-8, and stands in a run file here, which is text: give it another name, or make a \
         link to it"
    )]
    PathNotText { path: PathBuf },
    /// An option that names a field of predictions, where the answers of a run are scored.
    #[error("{option} is for files of predictions: answers of a run stand in its results")]
    OptionOfPredictions { option: &'static str },
    /// An option of results, where predictions are scored.
    #[error("{option} is for the answers of a run: scores of predictions go to --json")]
    OptionOfARun { option: &'static str },
    /// Weights that do not fit into the memory that a plan is for.
    #[error(
        "the weights on {device} take {weights}, its memory is {memory}: --quantize 8 or 4 makes them smaller, --memory \
         names another"
    )]
    WeightsTooLarge { device: String, weights: String, memory: String },
    /// A plan of policies that are all refused.
    #[error("none of the policies can be planned:\n{}", refusals.trim_end())]
    NothingPlanned { refusals: String },
    /// Results in the form of an older version.
    #[error(
        "{path} holds results of an older version of briquette, which this one does not continue: name another folder \
         or move it away"
    )]
    OldJournal { path: PathBuf },
}
