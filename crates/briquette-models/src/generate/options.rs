use crate::Instruction;

/// Options of [`generate`](crate::generate()) and [`generate_batch`](crate::generate_batch).
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens generated per row.
    pub max_new_tokens: usize,
    /// Columns of the prompt per call of the model; `None` gives it whole, or, where it is longer
    /// than the model's positions and the policy compresses behind each chunk and counts positions
    /// inside the cache, as many as fit.
    pub chunk: Option<usize>,
    /// 0 takes the most likely token; higher draws from a flatter distribution.
    pub temperature: f64,
    /// Draws from so many of the most likely tokens; `None` from all.
    pub top_k: Option<usize>,
    /// Draws from the fewest tokens whose probabilities add up to this; 1 from all.
    pub top_p: f64,
    /// Draws from tokens that are at least this times as likely as the most likely one; 0 from all.
    pub min_p: f64,
    /// Divides the logits of tokens of the prompt and of the text so far, and multiplies negative
    /// ones; 1 leaves them. A text that a cache held before is not counted.
    pub repetition_penalty: f64,
    /// Seeds the drawing: the same seed draws the same tokens. Each row of a batch draws numbers of
    /// its own, whichever others are left.
    pub seed: u64,
    /// Words that ask the model to repeat the prompt where the policy has it do so (KVzip). Without
    /// words the repeating tokens follow the prompt at once.
    pub instruction: Instruction,
    /// Whether decode steps that are all alike are recorded once and replayed, where the crate is
    /// built with feature `graph` and the device has graphs. What comes out is the same, but for
    /// the order of sums under policies that do not compress in decoding. While a step is recorded
    /// the cache takes twice its memory.
    pub record: bool,
    /// Prompt lookup: the most tokens that are drafted per call of the model, which checks them all
    /// at once; 0 drafts none. A draft is what followed the last two tokens, or else the last one,
    /// at their first place in the prompt and the text so far. A text that a cache held before is
    /// not looked up.
    ///
    /// Under a policy that compresses prompts alone the tokens are those without drafts, up to the
    /// rounding of a call of several tokens. They may differ where decoded tokens are compressed or
    /// packed. Drafts are for one prompt at temperature 0, and no step is recorded. A
    /// [`TokenStream`](crate::TokenStream) drafts nothing.
    pub lookup: usize,
    /// Whether rows that have ended stay in the cache until all have, for prompts that follow in
    /// it. Otherwise they leave, so that no step reads them, and at the end it holds the rows that
    /// ended last. The tokens are the same, but under a budget in bytes: the rows that are left
    /// share it. While rows leave, those that stay are held twice. Recorded steps go on with ended
    /// rows until these are half of the batch.
    pub keep_rows: bool,
    /// Tokens that end a row, usually `eos_token_ids` of the configuration.
    pub stop: Vec<u32>,
}

impl Default for GenerateOptions {
    /// 256 tokens at most, prompt whole, greedy, steps recorded, no drafts, ended rows leave, no
    /// stop token.
    fn default() -> Self {
        Self {
            max_new_tokens: 256,
            chunk: None,
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            instruction: Instruction::default(),
            record: true,
            lookup: 0,
            keep_rows: false,
            stop: Vec::new(),
        }
    }
}
