use briquette_models::{GenerateOptions, Instruction};

/// How tokens are chosen.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Tokens of the prompt per call of the model [default: all]
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// Temperature; 0 takes the most likely token
    #[arg(long, value_name = "T", allow_negative_numbers = true, default_value_t = 0.0)]
    temperature: f64,
    /// Draw from the K most likely tokens [default: all]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the fewest tokens whose probabilities add up to P
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 1.0)]
    top_p: f64,
    /// Draw from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 0.0)]
    min_p: f64,
    /// Divide the logits of tokens that have occurred by F
    #[arg(long, value_name = "F", allow_negative_numbers = true, default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Draft up to N tokens per call where the text repeats itself; 0 drafts none
    ///
    /// What followed the last two tokens before is checked in one call. An answer that repeats
    /// its prompt takes fewer calls, and is the same. Needs temperature 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    lookup: usize,
    /// Launch every decode step anew instead of replaying a recorded one
    #[arg(long)]
    no_graph: bool,
}

impl SamplingArgs {
    pub(crate) fn options(
        &self,
        max_new_tokens: usize,
        stop: Vec<u32>,
        instruction: Instruction,
    ) -> GenerateOptions {
        GenerateOptions {
            max_new_tokens,
            chunk: self.chunk,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop,
            instruction,
            record: !self.no_graph,
            lookup: self.lookup,
            keep_rows: true,
        }
    }
}
