//! Prefixes of a model: a prompt compressed once, kept in a file, and questioned many times.

use std::path::Path;

use briquette::{KvCache, Policy, Prefix};
use briquette_models::{Model, Tokenizer};

use crate::Result;

/// Name in the metadata of a chat prefix, of the text that the template writes behind the user's
/// message, whose beginning the prefix holds.
const CHAT_TAIL: &str = "chat-tail";

/// An empty cache for a model with this [fingerprint](crate::fingerprint::of_model): what it saves
/// is taken up for this model only.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the policy is invalid.
pub fn cache(model: &Model, fingerprint: &str, policy: Policy) -> Result<KvCache> {
    let config = model.cache_config(&policy).with_model(fingerprint);
    Ok(KvCache::with_config(model.cache_shape(), policy, config, &model.device())?)
}

/// Writes a cache to a file. With a [tail](chat_tail) it is a chat prefix.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a cache that has seen nothing, or a file that cannot
/// be written.
pub fn save(cache: &KvCache, path: &Path, chat_tail: Option<String>) -> Result<()> {
    let metadata = chat_tail.map(|tail| (CHAT_TAIL.to_owned(), tail));
    Ok(cache.save_with_metadata(path, metadata.into_iter().collect())?)
}

/// Text that ends the user's message which a chat prefix begins, and leads to the answer; `None`
/// for a prefix of a plain text.
pub fn chat_tail(prefix: &Prefix) -> Option<&str> {
    prefix.metadata().get(CHAT_TAIL).map(String::as_str)
}

/// The cache of a prefix, under the policy it was made with. A prompt goes on [behind
/// it](following), and behind a chat prefix the rest of the message with its [tail](chat_tail).
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a prefix that is of another model, or does not fit
/// together.
pub fn open(prefix: Prefix, model: &Model, fingerprint: &str) -> Result<KvCache> {
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
