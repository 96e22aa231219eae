//! Named methods by position or by chance, and those that keep everything.

use crate::{
    budget::Budget,
    policy::{Policy, PositionMode, PrefillCompression, Schedule},
    score::{Random, Recency},
    store::{Fp8, Quantized},
};

impl Policy {
    /// Keeps everything.
    pub fn full() -> Self {
        let mut policy = Self::local_window(Budget::Ratio(1.0)).with_name("full");
        policy.budget = None;
        policy.schedule = Schedule::never();
        policy
    }

    /// Local window: the last tokens, as many as the budget allows.
    pub fn local_window(budget: Budget) -> Self {
        Self::custom("local-window", budget, Recency {})
    }

    /// StreamingLLM (Xiao et al., 2023): the first 4 tokens and the last ones; positions are
    /// re-counted inside the cache (section 3.2). A prompt that comes in chunks is compressed after
    /// each chunk, so that it may be longer than the model's context.
    pub fn streaming_llm(budget: Budget) -> Self {
        Self::local_window(budget)
            .with_name("streaming-llm")
            .with_sinks(4)
            .with_positions(PositionMode::InCache)
            .with_schedule(Schedule::always(1).with_prefill(PrefillCompression::EveryChunk))
    }

    /// Random tokens, the same for the same seed (0 here).
    pub fn random(budget: Budget) -> Self {
        Self::custom("random", budget, Random { seed: 0 }).with_schedule(Schedule::prefill_only())
    }

    /// KIVI (Liu et al., 2024): everything, quantized to `bits` (1, 2, 4 or 8), the last 128 tokens
    /// in full precision. A text below 160 tokens is not quantized at all:
    /// [`KvCache::tokens_packed`](crate::KvCache::tokens_packed) tells.
    pub fn kivi(bits: u8) -> Self {
        Self::full().with_name("kivi").with_kivi(bits)
    }

    /// FP8 (Micikevicius et al., 2022): everything, in 8-bit floating point of the form E4M3 with
    /// one scale per vector. The last tokens, fewer than 32, stay in full precision.
    pub fn fp8() -> Self {
        Self::full().with_name("fp8").with_store(Fp8 {})
    }

    /// Quantizes the kept entries as KIVI does.
    pub fn with_kivi(self, bits: u8) -> Self {
        self.with_store(Quantized::kivi(bits))
    }
}
