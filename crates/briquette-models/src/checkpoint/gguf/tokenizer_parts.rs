use serde_json::Value as Json;

/// What kinds of tokenizers differ in, as `tokenizer.json` has it.
pub(super) struct Parts {
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) decoder: Json,
    pub(super) model: Json,
    /// Whether a text begins with its token where the file does not say.
    pub(super) begins: bool,
}
