//! Text to tokens and back: tokenizers, chat templates and conversations.

pub(crate) mod chat;
pub(crate) mod conversation;
pub(crate) mod conversation_state;
pub(crate) mod instruction;
mod template;
pub(crate) mod tokenizer;
pub(crate) mod tokenizer_config;
pub(crate) mod tokenizer_limits;
