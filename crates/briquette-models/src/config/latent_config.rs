use crate::{Result, setting::check_positive};

/// Latent attention (DeepSeek): keys and values of all heads are made of a few channels, the
/// latent, and of channels with a position that all heads share. A cache holds these alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// Channels that queries are made of; `None` where they are made of the hidden state.
    pub q_lora_rank: Option<usize>,
    /// Channels of the latent.
    pub kv_lora_rank: usize,
    /// Channels of a head without a position.
    pub qk_nope_head_dim: usize,
    /// Channels with a position.
    pub qk_rope_head_dim: usize,
    /// Channels of a value.
    pub v_head_dim: usize,
    /// Whether a checkpoint has rotated pairs of channels beside each other, and not in two halves.
    pub rope_interleave: bool,
}

impl LatentConfig {
    /// Channels of an entry of a cache: the latent, and the rotated channels behind it.
    pub fn key_dim(&self) -> usize {
        self.kv_lora_rank.saturating_add(self.qk_rope_head_dim)
    }

    /// Channels of a query head.
    pub(crate) fn query_dim(&self) -> usize {
        self.qk_nope_head_dim.saturating_add(self.qk_rope_head_dim)
    }

    /// Its sizes, by their keys in the file.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        [
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1)),
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
        ]
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.sizes().into_iter().try_for_each(|(key, value)| check_positive(key, value))
    }
}
