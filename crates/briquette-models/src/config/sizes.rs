//! Sizes of a configuration, held to what models have and to what the checkpoint holds: memory is
//! sized by them before a weight is read.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use crate::{ModelConfig, Result, setting::invalid};

impl ModelConfig {
    /// Refuses what no model has, and what numbers of 64 bits cannot be multiplied from.
    pub(crate) fn check_limits(&self) -> Result<()> {
        let experts = self.experts.as_ref();
        let limits = [
            ("num_attention_heads", self.num_attention_heads, 1 << 20),
            ("num_key_value_heads", self.num_key_value_heads, 1 << 20),
            ("head_dim", self.head_dim, 1 << 20),
            ("vocab_size", self.vocab_size, 1 << 31),
            ("hidden_size", self.hidden_size, 1 << 31),
            ("intermediate_size", self.intermediate_size, 1 << 31),
            ("the number of experts", experts.map_or(0, |experts| experts.experts), 1 << 16),
            (
                "the intermediate size of an expert",
                experts.map_or(0, |experts| experts.intermediate_size),
                1 << 31,
            ),
            (
                "the intermediate size of the shared experts",
                experts.and_then(|experts| experts.shared_intermediate_size).unwrap_or(0),
                1 << 31,
            ),
        ];
        let latent = self.latent.iter().flat_map(|latent| latent.sizes());
        let latent = latent.map(|(key, found)| (key, found, 1 << 20));
        let delta_net = self.delta_net.iter().flat_map(|delta_net| delta_net.sizes());
        let delta_net = delta_net.map(|(key, found)| (key, found, 1 << 16));
        let mut all = limits.into_iter().chain(latent).chain(delta_net);
        match all.find(|(_, found, most)| found > most) {
            Some((key, found, most)) => Err(invalid(key, found, format!("at most {most}"))),
            None => Ok(()),
        }
    }

    /// Refuses more layers or experts than a checkpoint of so many `tensors` can hold, and heads
    /// wider than the `longest` side of one.
    pub(crate) fn check_checkpoint(&self, tensors: usize, longest: usize) -> Result<()> {
        let experts = self.experts.as_ref().map_or(0, |experts| {
            let layers = self.num_hidden_layers.saturating_sub(experts.dense_layers.len());
            layers.saturating_mul(experts.experts)
        });
        for (key, found) in [("num_hidden_layers", self.num_hidden_layers), ("experts", experts)] {
            if found > tensors {
                let must_be = format!("at most {tensors}, the tensors of the checkpoint");
                return Err(invalid(key, found, must_be));
            }
        }
        let head_dim = self.cache_shape().head_dim;
        if head_dim > longest {
            let must_be = format!("at most {longest}, the longest side of a tensor");
            return Err(invalid("head_dim", head_dim, must_be));
        }
        Ok(())
    }
}
