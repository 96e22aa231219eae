use burn::tensor::DType;

use crate::{
    CacheShape, budget::Budget, nearest::meant_and_known, ops::OpError, prefix::PrefixError,
};

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Mistake of the caller, or failure of the device, with the numbers.
///
/// A call that returns an error has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// The dimensions of the cache contradict each other.
    #[error("invalid cache shape {shape:?}: {reason}")]
    InvalidShape { shape: CacheShape, reason: &'static str },
    /// A layer index beyond the cache.
    #[error("layer {layer} is out of range: the cache has {layers} layers")]
    LayerOutOfRange { layer: usize, layers: usize },
    /// A layer was called again before another had its call: an index is wrong, or a step failed.
    #[error(
        "layer {layer} has seen {seen} columns and is called again, but layer {behind} has seen {others}: give each layer its own index and call every layer once per step (after a failed step: `reset`, or make its calls in a `transaction`)"
    )]
    LayerOutOfStep { layer: usize, seen: usize, behind: usize, others: usize },
    /// Of a recurrent layer and another, one was called again before the other had its call.
    #[error(
        "{layer} has seen {seen} columns, but {behind} has seen {others}: call every layer once per step (after a failed step: `reset`, or make its calls in a `transaction`)"
    )]
    StateOutOfStep { layer: String, seen: usize, behind: String, others: usize },
    /// A tensor does not have the shape the cache was built for.
    #[error("{tensor} has shape {found:?}, expected {expected}")]
    TensorShape { tensor: &'static str, expected: String, found: Vec<usize> },
    /// The batch size changed between two calls.
    #[error(
        "the batch has {found} rows, but this cache holds {expected} (`select_rows`, `append_rows` and `reset` change the batch)"
    )]
    BatchChanged { expected: usize, found: usize },
    /// A data type that the cache cannot hold or compute with.
    #[error("{what} has data type {dtype:?}, expected {expected}")]
    DataType { what: &'static str, dtype: DType, expected: String },
    /// A tensor lives on another device than the cache.
    #[error("{tensor} is on device {found}, but the cache is on {expected}")]
    WrongDevice { tensor: &'static str, expected: String, found: String },
    /// A tensor holds NaN or infinite numbers.
    #[error("{what} at layer {layer}: {count} numbers are NaN or infinite")]
    NotFinite { what: &'static str, layer: usize, count: usize },
    /// A prompt, or one row of a padded prompt, without a token.
    #[error("empty prompt: row {row} has {columns} columns, {padding} of them padding")]
    EmptyPrompt { row: usize, columns: usize, padding: usize },
    /// The padding has another number of rows than the batch.
    #[error("padding is given for {found} rows, but the batch has {expected}")]
    PaddingRows { expected: usize, found: usize },
    /// More columns arrived than the prompt declared.
    #[error(
        "layer {layer}: {new} more columns would make {total} of a prompt declared with {declared}: declare the whole prompt once, with all its chunks",
        total = arrived + new
    )]
    PromptOverrun { layer: usize, declared: usize, arrived: usize, new: usize },
    /// A prompt was begun before the last one had arrived everywhere.
    #[error(
        "layer {layer} has received {arrived} of the {declared} columns of the prompt before: send the rest, or call `abandon_prompt` or `reset`"
    )]
    PromptUnfinished { layer: usize, arrived: usize, declared: usize },
    /// A call brought another number of decoded tokens than was declared.
    #[error("layer {layer}: {new} columns came, but `begin_decode` declared {declared}")]
    DraftColumns { layer: usize, declared: usize, new: usize },
    /// A policy cannot hold decoded tokens back.
    #[error("policy `{policy}` takes no draft: {reason}")]
    DraftRefused { policy: String, reason: &'static str },
    /// Columns cannot be taken back, because what lies there was compressed, moved or packed since.
    #[error(
        "cannot go back to {columns} columns: those below {least} have been compressed, packed or observed since (`fork` or `transaction` keep an earlier state)"
    )]
    TruncateTooFar { columns: usize, least: usize },
    /// An abandoned prompt cannot be taken back, because entries from before it have changed.
    #[error(
        "layer {layer} has received {arrived} columns of the prompt, which have changed its entries from before (by a compression, or by padding): call `reset`, or make the calls of a prompt in a `transaction`"
    )]
    PromptNotReversible { layer: usize, arrived: usize },
    /// A batch row that the cache does not have.
    #[error("row {row} is out of range: the batch has {rows} rows")]
    RowOutOfRange { row: usize, rows: usize },
    /// Rows of another cache cannot join a batch.
    #[error(
        "the {what} of the rows to append is {found}, but that of the batch is {expected}: {cure}"
    )]
    RowsDiffer { what: &'static str, found: String, expected: String, cure: &'static str },
    /// The budget cannot hold what the policy protects.
    #[error(
        "a budget of {budget} keeps {tokens} tokens, fewer than the {sinks} sinks and {recent} recent tokens that are always kept"
    )]
    BudgetTooSmall { budget: Budget, tokens: usize, sinks: usize, recent: usize },
    /// The budget holds what the policy protects and nothing else, so that its scores have no
    /// effect.
    #[error(
        "a budget of {budget} keeps {tokens} tokens, all taken by the {sinks} sinks and {recent} recent tokens that are always kept, so the scores of `{policy}` choose none: give at least {least}",
        least = tokens + 1
    )]
    BudgetAllProtected {
        policy: String,
        budget: Budget,
        tokens: usize,
        sinks: usize,
        recent: usize,
    },
    /// A policy that compresses has no budget.
    #[error(
        "policy `{policy}` compresses, but has no budget: write `[budget]` with `tokens = 256` or `ratio = 0.25` into its file, or give it one"
    )]
    BudgetMissing { policy: String },
    /// A policy that never compresses was given a budget.
    #[error("policy `{policy}` drops no token, so it takes no budget, and {budget} is given")]
    BudgetUnused { policy: String, budget: Budget },
    /// A merging reducer cannot reach the budget, because tokens that it must not merge separate
    /// the others.
    #[error(
        "a budget of {budget} keeps {target} entries, but with {sinks} sinks, the last {recent} and {heavy} more tokens left as they are, merging reaches {reachable} at best"
    )]
    MergeBudget {
        budget: Budget,
        target: usize,
        sinks: usize,
        recent: usize,
        heavy: usize,
        reachable: usize,
    },
    /// Layers of a prompt came out of order, where budgets depend on earlier layers.
    #[error(
        "layer {layer} received the prompt before layer {missing}: `{allocator}` shares budgets out among layers in their order"
    )]
    LayerOrder { layer: usize, missing: usize, allocator: String },
    /// A budget in bytes is too small for a single token.
    #[error(
        "a budget of {} holds no token: {rows} rows of this cache need at least {least} bytes",
        Budget::Bytes(*bytes)
    )]
    BytesTooFew { bytes: u64, rows: usize, least: usize },
    /// A parameter is outside its range.
    #[error("{parameter} is {value}, but must be {must_be}")]
    InvalidParameter { parameter: &'static str, value: String, must_be: String },
    /// A position is beyond the end of the position encoding.
    #[error("position {position} is beyond the position encoding, which holds {max} positions")]
    PositionOverflow { position: usize, max: usize },
    /// A policy needs queries, and a call gave none.
    #[error("policy `{policy}` {needs}: call `update_with`, which takes the queries too")]
    QueriesMissing { policy: String, needs: &'static str },
    /// A policy that computes attention itself was asked for entries.
    #[error(
        "policy `{policy}` computes a part of the attention over prompts: call `attend`, for a model's own attention would compute all of it"
    )]
    AttentionOwned { policy: String },
    /// A cache per layer cannot follow a policy that looks at all layers.
    #[error("policy `{policy}` needs one cache for all layers ({what}): use `KvCache::layer`")]
    LayersTogether { policy: String, what: &'static str },
    /// A layer was read before it held anything.
    #[error("layer {layer} holds nothing that could be read: give it tokens first")]
    NothingHeld { layer: usize },
    /// A policy needs queries or keys before they are rotated, and the model rotates them itself.
    #[error(
        "policy `{policy}` {needs}, but queries and keys come rotated (`position::Rotated`): say how with `Rotated::by(&rope)`, or give `attend` the encoding instead and take it out of the model"
    )]
    RotatedKeys { policy: String, needs: &'static str },
    /// A policy needs queries or keys before their rotation, and the rotation cannot be taken back.
    #[error(
        "the encoding {encoding} cannot be taken back: implement `PositionEncoding::decode_below`"
    )]
    EncodingNotReversible { encoding: String },
    /// No method has this name.
    #[error("`{name}` is no method{}", meant_and_known(name, known))]
    UnknownMethod { name: String, known: Vec<String> },
    /// A change in the text of a policy cannot be made.
    #[error("policy `{text}`: {reason}")]
    PolicyText { text: String, reason: String },
    /// A policy file cannot be read or understood.
    #[error("policy {origin}: {}{message}", at(*place))]
    PolicyFile { origin: String, place: Option<(usize, usize)>, message: String },
    /// A policy file was read, but its policy is refused.
    #[error("policy {origin}: {}{refusal}", at(*place))]
    PolicyOfFile {
        origin: String,
        place: Option<(usize, usize)>,
        #[source]
        refusal: Box<Error>,
    },
    /// A policy with a custom stage has no file form.
    #[error("policy `{policy}` has the custom {stage} `{name}`, which has no file form")]
    NotSerializable { policy: String, stage: &'static str, name: String },
    /// A profile file cannot be read or understood.
    #[error("profile {origin}: {message}")]
    ProfileFile { origin: String, message: String },
    /// The tables of a profile contradict its shape.
    #[error("the profile of `{model}` is not valid: {reason}")]
    InvalidProfile { model: String, reason: String },
    /// A profile is of a model of another shape.
    #[error("the profile of `{model}` is for {profile:?}, but the cache is {cache:?}")]
    ProfileShape { model: String, profile: CacheShape, cache: CacheShape },
    /// A store cannot hold the entries as the other stages make them.
    #[error(
        "policy `{policy}`: `{stage}` leaves {needs}, which the store `{store}` cannot hold as such"
    )]
    StoreMismatch { policy: String, stage: String, needs: &'static str, store: String },
    /// A setter of [`Policy`](crate::Policy) was called on a policy without such a parameter.
    #[error("`{setter}` does not apply to policy `{policy}`, which has {has}")]
    SetterMismatch { policy: String, setter: &'static str, has: String },
    /// A policy reads a profile and has none.
    #[error(
        "policy `{policy}`: its {stage} `{name}` reads a profile of the model, and there is none: `briquette calibrate` makes one"
    )]
    ProfileMissing { policy: String, stage: &'static str, name: String },
    /// A token was decoded before the second pass over the prompt that the policy compresses by.
    #[error(
        "policy `{policy}` compresses by a second pass over the prompt, and none was made before this token: make it with `KvCache::reconstruction` and `KvCache::compress_by`, or take another policy"
    )]
    SecondPassMissing { policy: String },
    /// A policy reads output projections, and those of the model are missing or have other shapes.
    #[error(
        "policy `{policy}` reads the output projections of {layers} layers, [{inputs}, hidden] in layer {layer}, and was given {found:?} (give them with `CacheConfig::with_output_weights`)"
    )]
    OutputWeights {
        policy: String,
        layers: usize,
        layer: usize,
        inputs: usize,
        found: Vec<[usize; 2]>,
    },
    /// A budget text cannot be understood.
    #[error(
        "cannot read the budget `{text}`: {reason}; write 256 (tokens), 25% or 0.25 (of the tokens seen), or 512KiB (bytes)"
    )]
    BudgetText { text: String, reason: String },
    /// No device of this name can be opened.
    #[error("device `{name}`: {reason}; this build has: {available}")]
    Device { name: String, reason: String, available: String },
    /// Compiled kernels cannot be kept in this folder.
    #[error("compiled kernels cannot be kept in {dir}: {reason}")]
    KeepCompiled { dir: String, reason: String },
    /// A stage failed, or returned something that the cache cannot use.
    #[error("{stage} `{name}`: {reason}")]
    Stage { stage: &'static str, name: String, reason: String },
    /// A call would leave the cache with more bytes than its
    /// [ceiling](crate::CacheConfig::with_memory_ceiling).
    #[error(
        "the cache would hold {needed} bytes, more than its ceiling of {ceiling} (it holds {held})"
    )]
    MemoryCeiling { ceiling: usize, held: usize, needed: usize },
    /// A cache cannot share a prefill with others.
    #[error("cache {cache} of those that share a prefill: {reason}")]
    SharedPrefill { cache: usize, reason: String },
    /// A prefix cannot be saved or loaded.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// An operation refused its input.
    #[error(transparent)]
    Operation(OpError),
    /// The device failed while executing.
    #[error("the device failed: {0}")]
    Execution(String),
}

/// Returns the beginning of a message about a place in a file.
fn at(place: Option<(usize, usize)>) -> String {
    place.map_or_else(String::new, |(line, column)| format!("line {line}, column {column}: "))
}

impl Error {
    pub(crate) fn stage(stage: &'static str, name: &str, reason: impl Into<String>) -> Self {
        Self::Stage { stage, name: name.to_owned(), reason: reason.into() }
    }

    /// Converts the failure of an operation in a layer.
    pub(crate) fn of_layer(error: OpError, layer: usize) -> Self {
        match error {
            OpError::NotANumber { count, .. } => Self::NotFinite { what: "scores", layer, count },
            error => error.into(),
        }
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Execution { reason, .. } => Self::Execution(reason),
            error => Self::Operation(error),
        }
    }
}

impl From<burn::tensor::TensorReadError> for Error {
    fn from(error: burn::tensor::TensorReadError) -> Self {
        Self::Execution(error.to_string())
    }
}
