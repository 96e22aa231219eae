use std::collections::BTreeSet;

use briquette::RecurrentShape;

use crate::{
    Result,
    setting::{check_positive, invalid},
};

/// Layers of linear attention with a gated delta rule (Qwen3-Next), which keep a state and no
/// entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// The layers that are so.
    pub layers: BTreeSet<usize>,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values and states, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Channels of a query and a key.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Tokens that the convolution reads, with its own.
    pub kernel: usize,
}

impl DeltaNetConfig {
    /// Channels of queries of all heads, and of their keys.
    pub(crate) fn key_channels(&self) -> usize {
        self.key_heads.saturating_mul(self.key_dim)
    }

    /// Channels of values of all heads.
    pub(crate) fn value_channels(&self) -> usize {
        self.value_heads.saturating_mul(self.value_dim)
    }

    /// The state of a layer.
    pub(crate) fn state(&self) -> RecurrentShape {
        RecurrentShape {
            channels: self.key_channels().saturating_mul(2).saturating_add(self.value_channels()),
            columns: self.kernel.saturating_sub(1),
            heads: self.value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        }
    }

    /// Its sizes, by their keys in the file.
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 5] {
        [
            ("linear_num_key_heads", self.key_heads),
            ("linear_num_value_heads", self.value_heads),
            ("linear_key_head_dim", self.key_dim),
            ("linear_value_head_dim", self.value_dim),
            ("linear_conv_kernel_dim", self.kernel),
        ]
    }

    pub(crate) fn check(&self, layers: usize) -> Result<()> {
        self.sizes().into_iter().try_for_each(|(key, value)| check_positive(key, value))?;
        if self.kernel < 2 {
            return Err(invalid("linear_conv_kernel_dim", self.kernel, "at least 2"));
        }
        if !self.value_heads.is_multiple_of(self.key_heads) {
            let must_be = format!("a multiple of linear_num_key_heads = {}", self.key_heads);
            return Err(invalid("linear_num_value_heads", self.value_heads, must_be));
        }
        if self.layers.len() >= layers {
            let must_be = "one that leaves a layer of full_attention";
            return Err(invalid("layer_types", "linear_attention in every layer", must_be));
        }
        Ok(())
    }
}
