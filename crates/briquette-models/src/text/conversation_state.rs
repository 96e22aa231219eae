use serde::{Deserialize, Serialize};

use crate::ChatMessage;

/// A conversation by itself: its messages, and how far a cache has seen them. Kept beside the cache
/// it goes on with it: [`Conversation::resume`](crate::Conversation::resume).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationState {
    pub(crate) messages: Vec<ChatMessage>,
    /// The text that the cache has seen, up to the last answer; `None` if it has seen nothing.
    pub(crate) given: Option<String>,
    /// The last token of the last answer, where the cache has not seen it.
    pub(crate) unseen: Option<u32>,
    /// Whether the last message, the user's, goes on with what is said next.
    pub(crate) unfinished: bool,
}

impl ConversationState {
    /// A conversation of which the cache has seen nothing.
    pub fn new(messages: Vec<ChatMessage>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// A conversation whose last message, the user's, goes on with what is said next. `given` is
    /// its text as far as the cache has seen it, the first that
    /// [`ChatTemplate::render_unfinished`](crate::ChatTemplate::render_unfinished) returns.
    pub fn unfinished(messages: Vec<ChatMessage>, given: String) -> Self {
        Self { messages, given: Some(given), unseen: None, unfinished: true }
    }

    /// The messages so far.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// Whether the last message, the user's, goes on with what is said next.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Adds what the user says.
    pub(crate) fn say(&mut self, text: &str) {
        match self.messages.last_mut().filter(|_| self.unfinished) {
            Some(last) => last.content.push_str(text),
            None => self.messages.push(ChatMessage::new("user", text)),
        }
    }

    /// The text of `whole` that the cache has not seen, if `whole`, which ends with what is said
    /// now, repeats all it has. Some templates trim answers.
    pub(crate) fn behind_seen<'a>(&self, whole: &'a str) -> Option<&'a str> {
        let behind = whole.strip_prefix(self.given.as_deref()?)?;
        if self.unfinished {
            return Some(behind);
        }
        let answer = self.messages.last().filter(|message| message.role == "assistant")?;
        behind
            .strip_prefix(answer.content.as_str())
            .or_else(|| behind.trim_start().strip_prefix(answer.content.trim()))
    }
}
