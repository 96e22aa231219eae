use burn::tensor::DType;

use crate::{CacheShape, budget::Budget, ops::OpError, prefix::PrefixError};

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Mistake of the caller, or failure of the device, with the numbers.
///
/// A call that returns an error has changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dimensions of the cache contradict each other.
    #[error("invalid cache shape {shape:?}: {reason}")]
    InvalidShape {
        /// Shape that was passed.
        shape: CacheShape,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A layer index beyond the cache.
    #[error("layer {layer} is out of range: the cache has {layers} layers")]
    LayerOutOfRange {
        /// Index that was passed.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// A tensor does not have the shape the cache was built for.
    #[error("{tensor} has shape {found:?}, expected {expected}")]
    TensorShape {
        /// Name of the argument.
        tensor: &'static str,
        /// The shape that was expected, as text.
        expected: String,
        /// Shape that was passed.
        found: Vec<usize>,
    },
    /// The batch size changed between two calls.
    #[error(
        "the batch has {found} rows, but this cache holds {expected} (reset it to change the batch)"
    )]
    BatchChanged {
        /// Rows the cache holds.
        expected: usize,
        /// Rows that were passed.
        found: usize,
    },
    /// A data type that the cache cannot hold or compute with.
    #[error("{what} has data type {dtype:?}, expected {expected}")]
    DataType {
        /// Name of the argument.
        what: &'static str,
        /// Type of the argument.
        dtype: DType,
        /// Accepted types.
        expected: String,
    },
    /// A tensor lives on another device than the cache.
    #[error("{tensor} is on device {found}, but the cache is on {expected}")]
    WrongDevice {
        /// Name of the argument.
        tensor: &'static str,
        /// The device of the cache.
        expected: String,
        /// The device of the tensor.
        found: String,
    },
    /// A tensor holds NaN or infinite numbers.
    #[error("{what} at layer {layer}: {count} numbers are NaN or infinite")]
    NotFinite {
        /// Name of the tensor.
        what: &'static str,
        /// The layer of the call.
        layer: usize,
        /// Number of values that are NaN or infinite.
        count: usize,
    },
    /// A prompt, or one row of a padded prompt, without a token.
    #[error("empty prompt: row {row} has {columns} columns, {padding} of them padding")]
    EmptyPrompt {
        /// The batch row.
        row: usize,
        /// Columns of the prompt.
        columns: usize,
        /// Columns of padding.
        padding: usize,
    },
    /// The padding has another number of rows than the batch.
    #[error("padding is given for {found} rows, but the batch has {expected}")]
    PaddingRows {
        /// Rows of the batch.
        expected: usize,
        /// Entries of the padding.
        found: usize,
    },
    /// More columns arrived than the prompt declared.
    #[error(
        "layer {layer}: {new} more columns would make {total} of a prompt declared with {declared}",
        total = arrived + new
    )]
    PromptOverrun {
        /// The layer.
        layer: usize,
        /// Columns declared.
        declared: usize,
        /// Columns that had arrived.
        arrived: usize,
        /// Columns of this call.
        new: usize,
    },
    /// A prompt was begun before the last one had arrived everywhere.
    #[error("layer {layer} has received {arrived} of the {declared} columns of the prompt before")]
    PromptUnfinished {
        /// The first layer concerned.
        layer: usize,
        /// Columns that had arrived.
        arrived: usize,
        /// Columns declared.
        declared: usize,
    },
    /// The budget cannot hold what the policy protects.
    #[error(
        "a budget of {budget} keeps {tokens} tokens, fewer than the {sinks} sinks and {recent} recent tokens that are always kept"
    )]
    BudgetTooSmall {
        /// Budget of the policy.
        budget: Budget,
        /// Budget in tokens.
        tokens: usize,
        /// Protected first tokens.
        sinks: usize,
        /// Protected last tokens.
        recent: usize,
    },
    /// A policy that compresses has no budget.
    #[error(
        "policy `{policy}` compresses, but has no budget: write `[budget]` with `tokens = 256` or `ratio = 0.25` into its file, or give it one"
    )]
    BudgetMissing {
        /// The policy.
        policy: String,
    },
    /// A policy that never compresses was given a budget.
    #[error("policy `{policy}` drops no token, so it takes no budget, and {budget} is given")]
    BudgetUnused {
        /// The policy.
        policy: String,
        /// The budget.
        budget: Budget,
    },
    /// A merging reducer cannot reach the budget, because tokens that it must not merge stand
    /// between the others.
    #[error(
        "a budget of {budget} keeps {target} entries, but with {sinks} sinks, the last {recent} and {heavy} more tokens left as they are, merging reaches {reachable} at best"
    )]
    MergeBudget {
        /// Budget of the policy.
        budget: Budget,
        /// Entries it allows.
        target: usize,
        /// First tokens that are not merged.
        sinks: usize,
        /// Last tokens that are not merged.
        recent: usize,
        /// Tokens of high attention that are not merged.
        heavy: usize,
        /// Number of entries when everything else is merged.
        reachable: usize,
    },
    /// Layers of a prompt came out of order, where budgets depend on earlier layers.
    #[error(
        "layer {layer} received the prompt before layer {missing}: `{allocator}` shares budgets out among layers in their order"
    )]
    LayerOrder {
        /// The layer of the call.
        layer: usize,
        /// The layer that should have come before it.
        missing: usize,
        /// The allocator.
        allocator: String,
    },
    /// A budget in bytes is too small for a single token.
    #[error(
        "a budget of {} holds no token: {rows} rows of this cache need at least {least} bytes",
        Budget::Bytes(*bytes)
    )]
    BytesTooFew {
        /// The budget.
        bytes: u64,
        /// Rows of the batch.
        rows: usize,
        /// Minimum number of bytes: they hold the protected tokens, at least one, and the slack
        /// decoding needs.
        least: usize,
    },
    /// A parameter is outside its range.
    #[error("{parameter} is {value}, but must be {must_be}")]
    InvalidParameter {
        /// The parameter, named as in the policy file.
        parameter: &'static str,
        /// Value that was passed.
        value: String,
        /// The range.
        must_be: String,
    },
    /// A position is beyond the end of the position encoding.
    #[error("position {position} is beyond the position encoding, which holds {max} positions")]
    PositionOverflow {
        /// The highest position of the call.
        position: usize,
        /// Positions the encoding holds.
        max: usize,
    },
    /// A policy needs queries or keys before they are rotated, and the model rotates them itself.
    #[error(
        "policy `{policy}` {needs}, but queries and keys come rotated (`position::Rotated`): give `attend` the encoding instead, and take it out of the model"
    )]
    RotatedKeys {
        /// The policy.
        policy: String,
        /// Reason that it needs them.
        needs: &'static str,
    },
    /// No method has this name.
    #[error("unknown method `{name}`; `briquette::methods` lists all {}", known.len())]
    UnknownMethod {
        /// Name that was passed.
        name: String,
        /// Names of all methods.
        known: Vec<String>,
    },
    /// A policy file cannot be read or understood.
    #[error("policy {origin}: {}{message}", at(*place))]
    PolicyFile {
        /// A path, or the format of a text.
        origin: String,
        /// Line and column, from 1, where they are known.
        place: Option<(usize, usize)>,
        /// Error message, with the path of the key.
        message: String,
    },
    /// A policy file was read, and what it says is refused.
    #[error("policy {origin}: {}{refusal}", at(*place))]
    PolicyOfFile {
        /// The path.
        origin: String,
        /// Line and column, from 1, of a parameter.
        place: Option<(usize, usize)>,
        /// Refusal of the policy's check.
        #[source]
        refusal: Box<Error>,
    },
    /// A policy with a custom stage has no file form.
    #[error("policy `{policy}` has the custom {stage} `{name}`, which has no file form")]
    NotSerializable {
        /// The policy.
        policy: String,
        /// The stage.
        stage: &'static str,
        /// The name of the custom stage.
        name: String,
    },
    /// A profile file cannot be read or understood.
    #[error("profile {origin}: {message}")]
    ProfileFile {
        /// A path, or the format of a text.
        origin: String,
        /// Error message, with the line where the format tells it.
        message: String,
    },
    /// The tables of a profile contradict its shape.
    #[error("the profile of `{model}` is not valid: {reason}")]
    InvalidProfile {
        /// The checkpoint it was made from.
        model: String,
        /// Description of the contradiction.
        reason: String,
    },
    /// A profile is of a model of another shape.
    #[error("the profile of `{model}` is for {profile:?}, but the cache is {cache:?}")]
    ProfileShape {
        /// The checkpoint it was made from.
        model: String,
        /// The shape it was made for.
        profile: CacheShape,
        /// The shape of the cache.
        cache: CacheShape,
    },
    /// A store cannot hold the entries as the other stages make them.
    #[error(
        "policy `{policy}`: `{stage}` leaves {needs}, which the store `{store}` cannot hold as such"
    )]
    StoreMismatch {
        /// The policy.
        policy: String,
        /// The allocator or reducer.
        stage: String,
        /// Property of its entries that the store lacks.
        needs: &'static str,
        /// The store.
        store: String,
    },
    /// A setter of [`Policy`](crate::Policy) was called on a policy without such a parameter.
    #[error("`{setter}` does not apply to policy `{policy}`, which has {has}")]
    SetterMismatch {
        /// The policy.
        policy: String,
        /// The setter.
        setter: &'static str,
        /// The stages it has, with their parameters.
        has: String,
    },
    /// A policy reads a profile and has none.
    #[error(
        "policy `{policy}`: its {stage} `{name}` reads a profile of the model, and there is none: `briquette calibrate` makes one"
    )]
    ProfileMissing {
        /// The policy.
        policy: String,
        /// The stage that reads it.
        stage: &'static str,
        /// The name of the stage.
        name: String,
    },
    /// A policy reads output projections, and those of the model are missing or have other shapes.
    #[error(
        "policy `{policy}` reads the output projections of {layers} layers, [{inputs}, hidden] each, and was given {found:?} (give them with `CacheConfig::with_output_weights`)"
    )]
    OutputWeights {
        /// The policy.
        policy: String,
        /// Layers of the cache.
        layers: usize,
        /// Query heads times channels.
        inputs: usize,
        /// Shapes of the output projections that were passed.
        found: Vec<[usize; 2]>,
    },
    /// A budget text cannot be understood.
    #[error(
        "cannot read the budget `{text}`: {reason}; write 256 (tokens), 25% or 0.25 (of the tokens seen), or 512KiB (bytes)"
    )]
    BudgetText {
        /// The text.
        text: String,
        /// Reason that it cannot be understood.
        reason: String,
    },
    /// No device of this name can be opened.
    #[error("device `{name}`: {reason}; this build has: {available}")]
    Device {
        /// Name that was passed.
        name: String,
        /// Why it cannot be opened.
        reason: String,
        /// The backends of this build.
        available: String,
    },
    /// A stage failed, or returned something that the cache cannot use.
    #[error("{stage} `{name}`: {reason}")]
    Stage {
        /// Stage, such as `scorer` or `allocator`.
        stage: &'static str,
        /// Name of the stage.
        name: String,
        /// Description of the failure.
        reason: String,
    },
    /// A call would leave the cache with more bytes than its
    /// [ceiling](crate::CacheConfig::with_memory_ceiling).
    #[error(
        "the cache would hold {needed} bytes, more than its ceiling of {ceiling} (it holds {held})"
    )]
    MemoryCeiling {
        /// Maximum number of bytes it may hold.
        ceiling: usize,
        /// Bytes it holds.
        held: usize,
        /// Bytes it would hold, as far as the call has come.
        needed: usize,
    },
    /// A cache that cannot take in a prompt together with others.
    #[error("cache {cache} of those that share a prefill: {reason}")]
    SharedPrefill {
        /// Its place among the caches.
        cache: usize,
        /// Why it cannot.
        reason: String,
    },
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
