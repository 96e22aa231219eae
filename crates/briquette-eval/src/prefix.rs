//! Prefixes of a model: a prompt compressed once, kept in a file, and questioned many times; and
//! conversations, kept to go on with.

use std::path::Path;

use briquette::{KvCache, Policy, Prefix, prefix::PrefixError};
use briquette_models::{ConversationState, Model, Tokenizer};

use crate::Result;

/// Name in the metadata of what the template writes behind a user's message, whose beginning the
/// prefix holds.
const CHAT_TAIL: &str = "chat-tail";
/// Name in the metadata of a conversation, as JSON.
const CONVERSATION: &str = "conversation";

/// Text that a prefix holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text.
    Text,
    /// The beginning of a user's message.
    Message {
        /// Text that the chat template writes behind the message, up to where an answer begins.
        tail: String,
        /// The conversation that ends with the message; older files do not have it.
        conversation: Option<ConversationState>,
    },
    /// A conversation.
    Conversation(ConversationState),
}

/// An empty cache for a model with this [fingerprint](crate::fingerprint::of_model): what it saves
/// is taken up for this model only, with its weights as they are now.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the policy is invalid.
pub fn cache(model: &Model, fingerprint: &str, policy: Policy) -> Result<KvCache> {
    let config = model.cache_config(&policy)?.with_model(identity(model, fingerprint));
    Ok(KvCache::with_config(model.cache_shape(), policy, config, &model.device())?)
}

/// Identity of the numbers of a model, beside its type, which a prefix holds anyway: its files, and
/// the bits that its weights were quantized to.
pub fn identity(model: &Model, fingerprint: &str) -> String {
    match model.quantized_to() {
        None => fingerprint.to_owned(),
        Some(bits) => format!("{fingerprint} with weights of {bits} bits"),
    }
}

/// Writes a cache to a file, with what it holds.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a cache that has seen nothing, or a file that cannot
/// be written.
pub fn save(cache: &KvCache, path: &Path, content: &Content) -> Result<()> {
    let (tail, conversation) = match content {
        Content::Text => (None, None),
        Content::Message { tail, conversation } => (Some(tail), conversation.as_ref()),
        Content::Conversation(conversation) => (None, Some(conversation)),
    };
    let conversation = conversation.map(serde_json::to_string).transpose();
    let conversation = conversation.map_err(|error| misfit(&error))?;
    let tail = tail.map(|tail| (CHAT_TAIL.to_owned(), tail.clone()));
    let conversation = conversation.map(|json| (CONVERSATION.to_owned(), json));
    Ok(cache.save_with_metadata(path, tail.into_iter().chain(conversation).collect())?)
}

/// Text that a prefix holds, and its place in a conversation.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a conversation that cannot be read.
pub fn content(prefix: &Prefix) -> Result<Content> {
    let conversation = prefix.metadata().get(CONVERSATION);
    let conversation = conversation.map(|json| serde_json::from_str(json)).transpose();
    let conversation = conversation.map_err(|error| misfit(&error))?;
    Ok(match (prefix.metadata().get(CHAT_TAIL), conversation) {
        (Some(tail), conversation) => Content::Message { tail: tail.clone(), conversation },
        (None, Some(conversation)) => Content::Conversation(conversation),
        (None, None) => Content::Text,
    })
}

fn misfit(error: &serde_json::Error) -> briquette::Error {
    let (part, reason) = ("the conversation".to_owned(), error.to_string());
    PrefixError::Contents { part, reason }.into()
}

/// The cache of a prefix, under the policy it was made with. A prompt goes on [behind
/// it](following), and behind the beginning of a [message](Content::Message) its rest with the
/// tail.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) for a prefix that is of another model, or does not fit
/// together.
pub fn open(prefix: Prefix, model: &Model, fingerprint: &str) -> Result<KvCache> {
    let policy = prefix.policy()?;
    let config = model.cache_config(&policy)?.with_model(identity(model, fingerprint));
    Ok(KvCache::from_prefix(prefix, model.cache_shape(), policy, config, &model.device())?)
}

/// A prompt that follows others: without the tokens that begin a text.
///
/// # Errors
/// Errors of the tokenizer.
pub fn following(mut prompt: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let beginning = tokenizer.encode("", true)?;
    if prompt.starts_with(&beginning) {
        prompt.drain(..beginning.len());
    }
    Ok(prompt)
}
