use std::time::Duration;

/// Durations of prefill and decoding, with the device synchronised before each reading of the
/// clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Tokens of the prompts, padding not counted.
    pub prompt_tokens: usize,
    /// Time from the first chunk of the prompts to the logits of their last tokens.
    pub prefill: Duration,
    /// Decoded tokens: every one but the first of each row, which comes out of the prefill.
    pub decoded_tokens: usize,
    /// Time from the end of the prefill to the end.
    pub decode: Duration,
    /// Decode steps of all rows, each a call of the model.
    pub steps: usize,
    /// Of these the steps that were replayed from a recording.
    pub replayed: usize,
    /// Tokens that steps were given as [drafts](crate::GenerateOptions::lookup).
    pub drafted: usize,
    /// Of these the tokens that were right, each of which spared a step.
    pub accepted: usize,
    /// The reason why steps were launched that might have been replayed; `None` if there is none.
    pub fallback_reason: Option<String>,
}

impl Timing {
    /// Tokens of the prompts per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Decoded tokens per second, 0 if there are none.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decoded_tokens, self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
