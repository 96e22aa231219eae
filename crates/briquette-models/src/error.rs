use std::path::{Path, PathBuf};

use burn::tensor::DType;

use briquette::CacheShape;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An obstacle to loading or running a model, with names and numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// The cache refused a call.
    #[error(transparent)]
    Cache(briquette::Error),
    /// The model gave its cache numbers that are none.
    #[error(
        "the model gives NaN or infinity at layer {layer} ({count} numbers of its {what}): its weights are damaged, or \
         overflow in this type"
    )]
    NumbersNotFinite { what: &'static str, layer: usize, count: usize },
    /// An [`Interrupt`](crate::Interrupt) was set; the cache is as it was before the call.
    #[error("it was interrupted")]
    Interrupted,
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// A path at which there is nothing.
    #[error(
        "there is no model folder or file {}, and nothing is downloaded: fetch it first, as by {}",
        path.display(),
        fetched_by(path)
    )]
    NoSuchModel { path: PathBuf },
    /// A folder or file that holds no model.
    #[error("{path} is neither a GGUF file nor a folder with config.json")]
    NoModel { path: PathBuf },
    /// A small text that stands in a clone for a large file.
    #[error(
        "{path} is a pointer of Git LFS, the file itself was not fetched: git lfs pull fetches it"
    )]
    LfsPointer { path: PathBuf },
    /// A JSON file that begins with a byte order mark, which JSON does not allow.
    #[error("{origin} begins with a byte order mark: save it as UTF-8 without one")]
    ByteOrderMark { origin: String },
    /// A JSON file that cannot be understood.
    #[error("{origin}: {message}")]
    Json { origin: String, message: String },
    /// The folder holds a model of an architecture that is not known.
    #[error("the model type is `{found}`, those read are {known}")]
    ModelType { found: String, known: String },
    /// A setting of the configuration that this implementation does not have.
    #[error("{key} = {found} is not supported, only {supported}")]
    UnsupportedSetting { key: &'static str, found: String, supported: &'static str },
    /// A setting of the configuration that makes no sense.
    #[error("{key} is {found}, but must be {must_be}")]
    InvalidSetting { key: &'static str, found: String, must_be: String },
    /// Two keys of the configuration say two things, and the model would be another by each.
    #[error("{key} = {found} contradicts {other} = {there}: keep the one that is meant")]
    Contradiction { key: &'static str, found: String, other: &'static str, there: String },
    /// Weights that were quantized by a method that is not read.
    #[error(
        "the weights are quantized by {method}, which is not read: take the checkpoint they were made from, with \
         --quantize 4 or 8 (Model::quantize_weights) if it is too large, or a GGUF file of the model"
    )]
    QuantizedWeights { method: String },
    /// The folder holds no file of weights.
    #[error(
        "{dir} holds neither model.safetensors nor pytorch_model.bin, nor the index of either \
         (model.safetensors.index.json, pytorch_model.bin.index.json): fetch the files of weights too"
    )]
    NoWeights { dir: PathBuf },
    /// Weights in the format of their authors, beside which there may be those of Hugging Face.
    #[error(
        "{path} is in the original format of Mistral or Meta, which is not read: fetch the files of Hugging Face's, \
         config.json, tokenizer.json and model*.safetensors"
    )]
    OriginalFormat { path: PathBuf },
    /// The index names a file that is not there.
    #[error(
        "shard {shard} is named in the index, but absent ({missing} of {shards} shards are): fetch what is missing \
         into the folder of the index"
    )]
    MissingShard { shard: PathBuf, missing: usize, shards: usize },
    /// The index names a file outside of its folder.
    #[error(
        "{index} names shard `{shard}`: shards lie in the folder of their index, move it there and name it without a \
         folder"
    )]
    ShardOutside { index: PathBuf, shard: String },
    /// The index places a tensor in a file that does not hold it.
    #[error(
        "the index places tensor `{tensor}` in {shard}, which does not hold it: index and shards are of two versions, \
         fetch all of one"
    )]
    NotInShard { tensor: String, shard: PathBuf },
    /// Two shards hold a tensor of the same name.
    #[error(
        "tensor `{tensor}` is in {first} and in {second}: shards are of two versions, fetch all of one"
    )]
    InTwoShards { tensor: String, first: PathBuf, second: PathBuf },
    /// A file that ends before its tensors do.
    #[error(
        "{path} is truncated: tensor `{tensor}` ends at byte {needed}, the file at byte {found}"
    )]
    Truncated { path: PathBuf, tensor: String, needed: u64, found: u64 },
    /// A file that is not a safetensors container, or a damaged one.
    #[error("{path} is not a readable safetensors file: {message}")]
    Container { path: PathBuf, message: String },
    /// A file that `torch.save` did not write, or a damaged one.
    #[error(
        "{path} is not a readable PyTorch file: {message}; fetch it again, or save it as safetensors in Python"
    )]
    Pytorch { path: PathBuf, message: String },
    /// A PyTorch file whose tensors are not in its outermost dictionary.
    #[error(
        "{path} holds tensors below `{key}`: they are read from the outermost dictionary, as transformers does. In \
         Python, save the state of the model alone: torch.save(model.state_dict(), ...)"
    )]
    PytorchNested { path: PathBuf, key: String },
    /// A PyTorch file that holds something that is made by running code.
    #[error(
        "{path} holds a `{kind}` in `{key}`, which is no tensor and would be made by running code: nothing was run. \
         Take the file as safetensors, or save the tensors alone"
    )]
    PytorchObject { path: PathBuf, key: String, kind: String },
    /// A file that is not a GGUF file, or a damaged one.
    #[error("{path} is not a readable GGUF file: {message}")]
    Gguf { path: PathBuf, message: String },
    /// A part of a GGUF file that was split is not beside the others.
    #[error(
        "part {number} of {count} of a GGUF file is absent, {part}: fetch all of them into one folder"
    )]
    MissingPart { part: PathBuf, number: u64, count: u64 },
    /// A folder with several GGUF files, none of which was named.
    #[error("{dir} holds {count} GGUF files, {first} among them: name the one to read")]
    SeveralGguf { dir: PathBuf, count: usize, first: PathBuf },
    /// A tensor of a GGUF file is stored in blocks that are not known.
    #[error(
        "tensor `{tensor}` is stored as ggml type {found}, weights are read from F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, \
         Q8_0, Q2_K to Q6_K, IQ4_NL and MXFP4: take a file of the model in one of these, or make one with llama-quantize"
    )]
    BlockType { tensor: String, found: String },
    /// Tensors the model needs are not in the folder.
    #[error(
        "tensor `{tensor}` {shape:?} is missing ({count} missing in all): fetch config.json and all files of weights of \
         one version"
    )]
    MissingTensor { tensor: String, shape: Vec<usize>, count: usize },
    /// A tensor the model needs is stored under a longer name.
    #[error(
        "tensor `{tensor}` is stored as `{found}`: the folder holds more than this model, or was saved from a wrapper \
         of it; save its tensors without the first part of their names"
    )]
    PrefixedTensor { tensor: String, found: String },
    /// The folder holds tensors the model has no place for.
    #[error(
        "tensor `{tensor}` in {path} has no place in this model ({count} such in all): take the config.json that was \
         saved with the weights, or save them without it"
    )]
    ExtraTensor { tensor: String, path: PathBuf, count: usize },
    /// A tensor has not the shape that the configuration asks for.
    #[error("tensor `{tensor}` has shape {found:?}, the configuration asks for {expected:?}")]
    TensorShape { tensor: String, expected: Vec<usize>, found: Vec<usize> },
    /// A tensor is stored in a type that weights are not read from.
    #[error(
        "tensor `{tensor}` is stored as {found}, weights are read from F64, F32, F16 or BF16: take the model in one of \
         these, with --quantize 4 or 8 (Model::quantize_weights) if it is too large, or a GGUF file of it"
    )]
    TensorType { tensor: String, found: String },
    /// The bytes of a tensor cannot be loaded.
    #[error("tensor `{tensor}` cannot be loaded: {message}")]
    LoadTensor { tensor: String, message: String },
    /// The model was asked for in a data type it cannot compute in.
    #[error("the model cannot run in {dtype:?} on {device}: {reason}")]
    UnsupportedType { dtype: DType, device: String, reason: String },
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template does not parse, or refuses a conversation.
    #[error("chat template: {0}")]
    ChatTemplate(String),
    /// The cache was built for another model.
    #[error("the cache was built for {found:?}, the model needs {expected:?}")]
    CacheShape { expected: CacheShape, found: CacheShape },
    /// The cache would compute another attention than the model's.
    #[error(
        "the cache has {setting} = {found}, the model needs {expected}: `Model::cache` sets what a model needs, and \
         `Model::cache_config` is its configuration to add to"
    )]
    CacheAttention { setting: &'static str, expected: String, found: String },
    /// A policy that would compress no layer.
    #[error(
        "every layer attends to the last {window} tokens and holds no more, so `{policy}` has none to compress: take \
         `full`, or a context of at most {window} (`ModelConfig::with_context`, `--context {window}`), within which no \
         layer has a window"
    )]
    NoLayerToCompress { policy: String, window: usize },
    /// A batch without a row, or a row without a token.
    #[error("empty prompt: row {row} of {rows} has no token")]
    EmptyPrompt { row: usize, rows: usize },
    /// A prompt that does not fit into the context of the model.
    #[error("{tokens} tokens do not fit into the model's context of {context}{}", clause(why))]
    PromptTooLong { tokens: usize, context: usize, why: Option<String> },
    /// A prompt beyond the positions of the model, under a policy that counts positions inside the
    /// cache but compresses a prompt at its end only.
    #[error(
        "{tokens} tokens do not fit into the model's context of {context}: under a schedule that compresses after every \
         chunk (schedule.prefill=every-chunk) this policy takes them in parts"
    )]
    PromptNotInParts { tokens: usize, context: usize },
    /// A prompt beyond the positions of the model, on a cache that could take it in parts, given in
    /// parts too large for that.
    #[error(
        "a chunk of {chunk} tokens and what the cache holds are more than the {context} positions of the model: give \
         the prompt in chunks of at most {most}"
    )]
    ChunkTooLong { chunk: usize, most: usize, context: usize },
    /// A token the model has no embedding for.
    #[error("token {token} is outside the vocabulary of {vocab_size} tokens")]
    TokenOutOfRange { token: i64, vocab_size: usize },
    /// An option of the generation outside its range.
    #[error("{option} is {found}, but must be {must_be}")]
    InvalidOption { option: &'static str, found: String, must_be: &'static str },
    /// The model produced logits no token can be chosen by.
    #[error(
        "row {row}: the model gives logits that are NaN or infinite: its weights are damaged, or overflow in this type"
    )]
    NotFinite { row: usize },
    /// The device failed while executing.
    #[error("the device failed: {0}")]
    Execution(String),
}

fn clause(why: &Option<String>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}

/// The command that fetches a model of this name.
fn fetched_by(path: &Path) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    match name.contains("smollm2") {
        true => "`models/fetch-smollm2` in the repository (SmolLM2-135M-Instruct)",
        false => "`hf download ORG/NAME --local-dir DIR`",
    }
}

impl From<briquette::Error> for Error {
    fn from(error: briquette::Error) -> Self {
        match error {
            briquette::Error::NotFinite { what, layer, count } => {
                Self::NumbersNotFinite { what, layer, count }
            }
            error => Self::Cache(error),
        }
    }
}

impl From<burn::tensor::TensorReadError> for Error {
    fn from(error: burn::tensor::TensorReadError) -> Self {
        Self::Execution(error.to_string())
    }
}

impl From<burn::tensor::ExecutionError> for Error {
    fn from(error: burn::tensor::ExecutionError) -> Self {
        Self::Execution(error.to_string())
    }
}

#[cfg(feature = "graph")]
impl From<briquette_graph::Error> for Error {
    fn from(error: briquette_graph::Error) -> Self {
        match error {
            briquette_graph::Error::Cache(error) => error.into(),
            error => Self::Execution(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_missing_is_fetched_by_its_own_command() {
        let said = |path: &str| Error::NoSuchModel { path: path.into() }.to_string();
        for path in ["models/smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct/"] {
            let said = said(path);
            assert!(
                said.starts_with(&format!("there is no model folder or file {path},")),
                "{said}"
            );
            assert!(said.contains("models/fetch-smollm2") && !said.contains("hf "), "{said}");
        }
        let other = said("Qwen/Qwen3-0.6B");
        assert!(other.ends_with("as by `hf download ORG/NAME --local-dir DIR`"), "{other}");
    }
}
