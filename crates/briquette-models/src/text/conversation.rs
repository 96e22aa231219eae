use crate::{ChatMessage, ChatTemplate, Result, Tokenizer};

/// A conversation on one cache: each turn gives the model only the tokens that the cache has not
/// seen, so that earlier turns stay as they were compressed.
#[derive(Debug)]
pub struct Conversation<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    messages: Vec<ChatMessage>,
    /// The text up to the last answer; `None` before the first turn.
    given: Option<String>,
    /// The last token of the last answer, where the cache has not seen it.
    unseen: Option<u32>,
}

/// The tokens of one turn for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationTurn {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether the tokens are the whole conversation from its start, so that the cache is to be
    /// reset first. They are at the first turn, and where the template writes earlier turns
    /// differently than when they came, as some do that leave out thoughts.
    pub from_start: bool,
}

impl<'a> Conversation<'a> {
    /// A conversation that begins with these messages, such as one of the role `system`.
    pub fn new(
        template: &'a ChatTemplate,
        tokenizer: &'a Tokenizer,
        messages: Vec<ChatMessage>,
    ) -> Self {
        Self { template, tokenizer, messages, given: None, unseen: None }
    }

    /// The messages so far.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// Adds a message of the user, and returns the tokens that the model's answer follows. After an
    /// error the conversation is as it was.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`](crate::Error::ChatTemplate) if the template refuses it, and
    /// [`Error::Tokenizer`](crate::Error::Tokenizer).
    pub fn say(&mut self, text: impl Into<String>) -> Result<ConversationTurn> {
        self.messages.push(ChatMessage::new("user", text));
        let turn = self.turn();
        match &turn {
            Ok((whole, _)) => {
                self.given = Some(whole.clone());
                self.unseen = None;
            }
            Err(_) => drop(self.messages.pop()),
        }
        turn.map(|(_, turn)| turn)
    }

    /// Adds the model's answer. `unseen` is its last token, where the cache has not seen it:
    /// [`TokenStream::unseen`](crate::TokenStream::unseen).
    pub fn answered(&mut self, text: impl Into<String>, unseen: Option<u32>) {
        self.messages.push(ChatMessage::new("assistant", text));
        self.unseen = unseen;
    }

    /// The whole text, and the tokens of it that the model is to be given.
    fn turn(&self) -> Result<(String, ConversationTurn)> {
        let whole = self.template.render(&self.messages, true)?;
        let turn = match self.behind_the_answer(&whole) {
            Some(rest) => {
                let mut tokens: Vec<u32> = self.unseen.into_iter().collect();
                tokens.extend(self.tokenizer.encode(rest, false)?);
                ConversationTurn { tokens, from_start: false }
            }
            None => {
                let tokens = self.tokenizer.encode(&whole, false)?;
                ConversationTurn { tokens, from_start: true }
            }
        };
        Ok((whole, turn))
    }

    /// The text behind the last answer, if `whole` repeats everything up to there. Some templates
    /// trim answers.
    fn behind_the_answer<'b>(&self, whole: &'b str) -> Option<&'b str> {
        let behind = whole.strip_prefix(self.given.as_deref()?)?;
        let (_user, before) = self.messages.split_last()?;
        let answer = before.last().filter(|message| message.role == "assistant")?;
        behind
            .strip_prefix(answer.content.as_str())
            .or_else(|| behind.trim_start().strip_prefix(answer.content.trim()))
    }
}
