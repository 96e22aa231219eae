//! Prefixes of a model: a prompt compressed once, kept in a file, and asked many things.

use std::path::Path;

use briquette::{KvCache, Policy, Prefix};
use briquette_models::{Model, Tokenizer};

use crate::Result;

/// An empty cache for a model with this [fingerprint](crate::fingerprint::of_model): what it saves is taken up for this
/// model only.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the policy is invalid.
pub fn cache(model: &Model, fingerprint: &str, policy: Policy) -> Result<KvCache> {
    let config = model.cache_config(&policy).with_model(fingerprint);
    Ok(KvCache::with_config(model.cache_shape(), policy, config, &model.device())?)
}

/// The cache that was saved in a file, under the policy it was made with. A prompt goes on
/// [behind it](following).
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a file that is cut off, altered, or of another model.
pub fn open(path: &Path, model: &Model, fingerprint: &str) -> Result<KvCache> {
    let prefix = Prefix::read(path)?;
    let policy = prefix.policy()?;
    let config = model.cache_config(&policy).with_model(fingerprint);
    Ok(KvCache::from_prefix(prefix, model.cache_shape(), policy, config, &model.device())?)
}

/// A prompt that follows others: without the tokens that begin a text.
///
/// # Errors
/// What the tokenizer returns.
pub fn following(mut prompt: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let beginning = tokenizer.encode("", true)?;
    if prompt.starts_with(&beginning) {
        prompt.drain(..beginning.len());
    }
    Ok(prompt)
}
