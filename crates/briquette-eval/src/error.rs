use std::{
    error::Error as _,
    io, iter,
    path::{Path, PathBuf},
};

use briquette::files;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why an evaluation fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// The policy or the cache.
    #[error(transparent)]
    Cache(#[from] briquette::Error),
    /// The model or its tokenizer.
    #[error(transparent)]
    Model(#[from] briquette_models::Error),
    /// A file or folder that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// A file or folder that cannot be written.
    #[error("cannot write {path}: {message}")]
    Write { path: PathBuf, message: String },
    /// A haystack folder without text.
    #[error("haystack {dir}: its {files} .txt files hold no text")]
    EmptyHaystack { dir: PathBuf, files: usize },
    /// A prompt too short for what it must hold.
    #[error(
        "{length} tokens cannot hold the task {task}: all but the text that fills it takes at least {fixed}"
    )]
    PromptTooShort { task: &'static str, length: usize, fixed: usize },
    /// A parameter of a task without a value, or with one outside its range.
    #[error("task {task}: {parameter}: {reason}")]
    TaskParameter { task: &'static str, parameter: &'static str, reason: String },
    /// More words than the list and its pairs give.
    #[error("task {task}: {wanted} different words asked for, the list and its pairs give {words}")]
    TooManyWords { task: &'static str, wanted: usize, words: usize },
    /// A haystack used up by a task that takes no sentence twice.
    #[error(
        "task {task}: {length} tokens need more than the {sentences} sentences of the haystack {haystack}, and none may \
         come twice"
    )]
    HaystackUsedUp { task: &'static str, length: usize, haystack: String, sentences: usize },
    /// A prompt and its answer beyond the context of the model.
    #[error(
        "{length} tokens of prompt and answer do not fit the model's context of {context} tokens"
    )]
    ContextTooShort { length: usize, context: usize },
    /// More needles than words.
    #[error("{needles} needles asked for, the list has words for {words}")]
    TooManyNeedles { needles: usize, words: usize },
    /// A setting without a value, or with one outside its range.
    #[error("{name}: {reason}")]
    Setting { name: &'static str, reason: String },
    /// A policy whose name is not known, or that a run cannot have so.
    #[error("policy `{text}`: {reason}")]
    PolicyText { text: String, reason: String },
    /// A policy of one's own whose results could not be told from those of other code.
    #[error(
        "policy `{label}`: its {stage} `{name}` has no file form, and results do not tell whether its code is still the \
         same: name its version by `with_version`, and another whenever the code changes"
    )]
    PolicyVersion { label: String, stage: &'static str, name: String },
    /// A metric that does not exist.
    #[error("no metric is called `{name}`; there are {}", known.join(", "))]
    UnknownMetric { name: String, known: Vec<&'static str> },
    /// A metric that reads classes, for answers without any.
    #[error(
        "`{metric}` reads classes, the labels to choose from or the false answers, and there are none"
    )]
    NoClasses { metric: &'static str },
    /// Answers of a run that were kept without classes, and a metric that reads them.
    #[error(
        "{path}: `{metric}` reads classes, and the answers to `{task}` are kept without any; if the task has them, name \
         the metric in the run file and run it again, which asks nothing"
    )]
    KeptWithoutClasses { path: PathBuf, task: String, metric: &'static str },
    /// Results without an answer that could be scored.
    #[error("{path} holds no answers: its tasks ask nothing, or nothing is answered yet")]
    NoAnswers { path: PathBuf },
    /// A text without room for the windows asked for.
    #[error("{text} has {tokens} tokens; {windows} windows need {needed}")]
    TextTooShort { text: String, tokens: usize, windows: usize, needed: usize },
    /// A line of a file of data that cannot be used.
    #[error("{path}, line {line}: {message}")]
    DataLine { path: PathBuf, line: usize, message: String },
    /// A file of data with fewer samples than asked for, or none.
    #[error("{path}: {}", match (asked, found) {
        (1, 0) => "it holds no record that can be used".to_owned(),
        _ => format!("{asked} samples asked for, the file has {found}"),
    })]
    TooFewSamples { path: PathBuf, asked: usize, found: usize },
    /// A data set that the benchmark does not have.
    #[error("{benchmark} has no data set `{name}`; it has {}", known.join(", "))]
    UnknownDataset { benchmark: &'static str, name: String, known: Vec<&'static str> },
    /// A tokenizer that cuts a number in the haystack in another way than in the answer.
    #[error(
        "the number {number} is not cut into the same tokens in its needle and in the answer, so it cannot be told \
         which token a head copies"
    )]
    AnswerNotFound { number: String },
    /// More heads to mask than the model has.
    #[error("{asked} heads are to be masked, the model has {heads}")]
    TooManyHeads { asked: usize, heads: usize },
    /// A file that no run of ours wrote stands where results are to be kept.
    #[error("{path} was not written by briquette and is left as it is: name another place")]
    NoJournal { path: PathBuf },
    /// Results of another command stand where results are to be kept.
    #[error(
        "{path} holds results of `briquette {found}`, not of `briquette {given}`, and is left as it is: name another place"
    )]
    OtherCommand { path: PathBuf, found: String, given: String },
    /// Results were deleted, moved or replaced while a run wrote to them.
    #[error("{path} was deleted or replaced while results were written to it; they are lost")]
    JournalGone { path: PathBuf },
    /// Results were cut short by something else, or written to, while a run wrote to them.
    #[error(
        "{path} has {found} bytes, but {length} were written to it: something else changed it meanwhile"
    )]
    JournalChanged { path: PathBuf, found: u64, length: u64 },
    /// Results or a profile that were made with other weights, another tokenizer or another
    /// configuration.
    #[error(
        "{what} was made with other weights: theirs have the fingerprint {found}, those of this model have {given}; take \
         what belongs to the model or write elsewhere, or accept it with --other-weights"
    )]
    OtherWeights { what: String, found: String, given: String },
    /// A prefix of a plain text that a conversation is to go on behind.
    #[error(
        "the prefix {path} is of a plain text, which no user's message goes on with: leave --chat out, or make the prefix \
         with `briquette compress --chat`"
    )]
    PlainPrefix { path: PathBuf },
    /// A prefix that no conversation can go on behind: of a plain text, or written before prefixes
    /// held their conversation.
    #[error(
        "the prefix {path} holds no conversation to go on with: make one with `briquette compress --chat`, or in `briquette chat` with `/save FILE`"
    )]
    NoConversation { path: PathBuf },
    /// A conversation that a plain text is to go on behind.
    #[error("{path} holds a conversation, which `briquette chat --resume FILE` goes on with")]
    WholeConversation { path: PathBuf },
    /// A model that answers too few prompts for a profile to mean anything.
    #[error(
        "the model answers {right} of {prompts} prompts right, so its heads say little of retrieval: at least {least} \
         are asked for (--min-right); a prompt in the form that the model was trained on helps (--form, --chat)"
    )]
    TooFewRight { right: usize, prompts: usize, least: usize },
    /// Another run keeps its results in the same file.
    #[error("{path} is in use by another run")]
    JournalBusy { path: PathBuf },
    /// A damaged line of results.
    #[error(
        "{path}, line {line} is damaged: {message}; --repair sets such lines aside, and they are measured again"
    )]
    JournalLine { path: PathBuf, line: usize, message: String },
    /// A run file that cannot be understood.
    #[error("{path}: {message}")]
    RunFile { path: PathBuf, message: String },
    /// A sample with its answers beyond the context of the model.
    #[error(
        "task `{task}`, sample `{sample}`: {tokens} tokens of prompt and answers do not fit the context of `{model}`, \
         {context} tokens"
    )]
    SampleTooLong { task: String, sample: String, tokens: usize, model: String, context: usize },
    /// Two samples of a task that results could not tell apart.
    #[error("task `{task}` makes two samples called `{sample}`")]
    SampleTwice { task: String, sample: String },
    /// A part of a run that does not exist.
    #[error("`{text}` is no shard: write i/n with i from 1 to n, as 1/4")]
    Shard { text: String },
    /// Results of a run with other settings stand where this run would keep its own.
    #[error(
        "{path} holds results of another run: its {field} is {found}, here it is {given}; continue that run, or write \
         elsewhere"
    )]
    RunSettings { path: PathBuf, field: String, found: String, given: String },
    /// A policy or a task that is another than when its results were made.
    #[error(
        "{path} holds results of another {what}: it was changed since; give it another label, or write elsewhere"
    )]
    UnitChanged { path: PathBuf, what: String },
    /// Results that are not this shard's, whose answers were scored by other metrics.
    #[error(
        "{path} holds answers to `{task}` that were scored by other metrics than the run file names: run without --shard \
         first, which scores them anew and asks nothing, or leave `metric` as it was"
    )]
    ScoredOtherwise { path: PathBuf, task: String },
    /// Shards of a run where the whole run was wanted.
    #[error(
        "{dir} holds results of {files} shards: join them with `briquette merge`, or say with --shard which one to run"
    )]
    ShardsUnmerged { dir: PathBuf, files: usize },
    /// Results that differ where they should be one.
    #[error("{what}\n  {first}\n  {second}\nare not the same")]
    MergeConflict { what: String, first: String, second: String },
    /// A folder without results of a run.
    #[error("{dir} holds neither results.jsonl nor results-I-of-N.jsonl")]
    NoResults { dir: PathBuf },
    /// A tokenizer that knows nothing of a text.
    #[error("the tokenizer makes no token of this text: `{text}`")]
    NoTokens { text: String },
    /// A model gave numbers that are not finite.
    #[error(
        "{what} is not a finite number: the model overflows in this type, or its weights are damaged"
    )]
    NotFinite { what: &'static str },
    /// A unit of a run that failed.
    #[error("{unit}: {source}")]
    Unit { unit: String, source: Box<Error> },
    /// A line of results that cannot be read.
    #[error("{path}, line {line}: {message}")]
    ResultLine { path: PathBuf, line: usize, message: String },
}

impl Error {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.into(), source }
    }

    pub(crate) fn write(path: &Path, error: impl ToString) -> Self {
        Self::Write { path: path.into(), message: error.to_string() }
    }

    /// Whether an [`Interrupt`](briquette_models::Interrupt) ended the work, or the reading of a
    /// file.
    pub fn is_interrupt(&self) -> bool {
        match self {
            Self::Model(briquette_models::Error::Interrupted) => true,
            Self::Unit { source, .. } => source.is_interrupt(),
            _ => iter::successors(self.source(), |&error| error.source())
                .filter_map(|error| error.downcast_ref())
                .any(files::is_stop),
        }
    }
}
