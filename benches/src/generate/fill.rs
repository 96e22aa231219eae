//! Caches that are given noise, without the model's work for it.

use anyhow::Result;
use briquette::{Budget, KvCache, Policy, PrefillCompression, Prompt};
use burn::tensor::{Distribution, Int, Tensor};

use super::Runner;
use crate::{model::Dimensions, settings::Setting};

/// Tokens of all rows that grow a cache at once.
const GROWN_AT_ONCE: usize = 65_536;
/// Tokens of a row that do.
const GROWN_AT_MOST: usize = 512;

impl Runner {
    /// A cache that holds what it would after the prompts, and a token of each row, `[batch, 1]`.
    /// One that compresses to so many columns is given twice as many tokens, another the whole
    /// prompts. One row is filled and the others are its copies, so that no more than a row comes
    /// at once; but rows of pages would share them, and are filled together.
    pub(super) fn filled(
        &self,
        policy: &Policy,
        setting: Setting,
    ) -> Result<(KvCache, Tensor<2, Int>)> {
        let Setting { batch, prompt, new } = setting;
        let tokens = match (policy.schedule().prefill, most_needed(policy)) {
            (PrefillCompression::Never, _) | (_, None) => prompt,
            (_, Some(needed)) => needed.min(prompt),
        };
        let of_rows = |rows: usize| -> Result<KvCache> {
            let mut cache = self.cache(policy, prompt + new + 16)?;
            cache.begin_prompt(Prompt::new(tokens))?;
            let part = (self.chunk / rows).clamp(1, tokens);
            for start in (0..tokens).step_by(part) {
                self.give(&mut cache, rows, part.min(tokens - start))?;
            }
            Ok(cache)
        };
        let cache = match policy.store().name() {
            "dense" | "ragged" | "clustered" => of_rows(1)?.fork_rows(batch)?,
            _ => of_rows(batch)?,
        };
        self.sync()?;
        Ok((cache, Tensor::zeros([batch, 1], &self.device)))
    }

    /// Gives a cache as many tokens as would have been decoded, a few hundred at once: no more than
    /// it takes to fill one that compresses in decoding.
    pub(super) fn grow(&self, cache: &mut KvCache, rows: usize, tokens: usize) -> Result<()> {
        let most = most_needed(cache.policy()).filter(|_| compresses_in_decoding(cache.policy()));
        let tokens = most.map_or(tokens, |most| most.min(tokens));
        let part = (GROWN_AT_ONCE / rows).clamp(1, GROWN_AT_MOST);
        for start in (0..tokens).step_by(part) {
            self.give(cache, rows, part.min(tokens - start))?;
        }
        self.sync()?;
        Ok(())
    }

    /// Gives so many tokens to all layers.
    fn give(&self, cache: &mut KvCache, rows: usize, tokens: usize) -> Result<()> {
        let Dimensions { layers, query_heads, kv_heads, head_dim, .. } = self.dimensions;
        // Not normal: of 10^8 numbers of normal noise some came out infinite.
        let noise = |layer, heads| {
            let uniform = Distribution::Uniform(-1.7, 1.7);
            let options = (self.model.device_of(layer), self.dtype);
            Tensor::<4>::random([rows, heads, tokens, head_dim], uniform, options)
        };
        for layer in 0..layers {
            let (queries, keys) = (noise(layer, query_heads), noise(layer, kv_heads));
            let encoding = self.model.position_encoding(layer);
            drop(cache.attend(layer, queries, keys, noise(layer, kv_heads), encoding)?);
        }
        Ok(())
    }
}

/// Tokens that fill a cache of a fixed budget: as many as it holds, twice.
fn most_needed(policy: &Policy) -> Option<usize> {
    match policy.budget() {
        Some(Budget::Tokens(budget)) => Some(2 * policy.reducer().columns(budget)),
        _ => None,
    }
}

pub(super) fn compresses_in_decoding(policy: &Policy) -> bool {
    policy.budget().is_some() && policy.schedule().decode_every.is_some()
}
