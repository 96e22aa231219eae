//! Named methods that run the model a second time over the prompt.

use crate::{
    allocate::{Composite, OneThreshold},
    budget::Budget,
    policy::{Policy, PrefillCompression, Schedule},
    score::{KvCompose, KvZip},
    store::Ragged,
};

impl Policy {
    /// KVzip (Kim et al., 2025): the first 4 tokens, and those that the model attends to most while
    /// it repeats the prompt, 2,048 tokens at a time. One threshold holds for all layers and heads.
    /// Later prompts and decoded tokens are all kept.
    pub fn kvzip(budget: Budget) -> Self {
        Self::custom("kvzip", budget, KvZip::default())
            .with_sinks(4)
            .with_allocator(OneThreshold {})
            .with_schedule(Schedule::prefill_only().with_prefill(PrefillCompression::FirstPrompt))
    }

    /// KVzip+ (Kim et al., 2025): KVzip, with each weight divided by the length of the query's
    /// hidden state, and multiplied by the length of the value after the output projection.
    pub fn kvzip_plus(budget: Budget) -> Self {
        let score = KvZip { normalize: true, ..Default::default() };
        Self::kvzip(budget).with_name("kvzip-plus").with_scorer(score)
    }

    /// KVCompose (Akulov et al., 2025): the tokens that the model attends to most while it reads
    /// the prompt again. The mean over the layer's heads is added to scores, and composite tokens
    /// decide layer budgets. Later prompts and decoded tokens are all kept.
    pub fn kvcompose(budget: Budget) -> Self {
        Self::kvzip(budget)
            .with_name("kvcompose")
            .with_sinks(0)
            .with_scorer(KvCompose::default())
            .with_allocator(Composite {})
            .with_store(Ragged {})
    }
}
