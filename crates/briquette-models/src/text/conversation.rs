use crate::{ChatMessage, ChatTemplate, ConversationState, Result, Tokenizer};

/// A conversation on one cache: each turn gives the model only the tokens that the cache has not
/// seen, so that earlier turns stay as they were compressed.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    state: ConversationState,
    /// Text and tokens that the turn before had for the next one to repeat.
    lasting: Option<Lasting>,
}

/// The beginning of a conversation, up to where its last answer begins, as later turns repeat it.
#[derive(Clone, Debug, Default)]
struct Lasting {
    text: String,
    tokens: Vec<u32>,
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
    /// Number of the first tokens that were the lasting ones of the turn before: a cache that was
    /// [forked](briquette::KvCache::fork) behind them takes the place of one that is reset, and is
    /// given only the others.
    pub repeated: usize,
    /// Number of the first tokens that the next turn will repeat, where the template writes earlier
    /// turns differently than when they came; else 0.
    pub lasting: usize,
}

impl<'a> Conversation<'a> {
    /// A conversation that begins with these messages, such as one of the role `system`.
    pub fn new(
        template: &'a ChatTemplate,
        tokenizer: &'a Tokenizer,
        messages: Vec<ChatMessage>,
    ) -> Self {
        Self::resume(template, tokenizer, ConversationState::new(messages))
    }

    /// A conversation that goes on, on a cache that has seen what its `state` says.
    pub fn resume(
        template: &'a ChatTemplate,
        tokenizer: &'a Tokenizer,
        state: ConversationState,
    ) -> Self {
        Self { template, tokenizer, state, lasting: None }
    }

    /// The conversation by itself, to be kept beside its cache.
    pub fn state(&self) -> &ConversationState {
        &self.state
    }

    /// The messages so far.
    pub fn messages(&self) -> &[ChatMessage] {
        self.state.messages()
    }

    /// Adds a message of the user, and returns the tokens that the model's answer follows. After an
    /// error the conversation is as it was.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`](crate::Error::ChatTemplate) if the template refuses it, and
    /// [`Error::Tokenizer`](crate::Error::Tokenizer).
    pub fn say(&mut self, text: impl AsRef<str>) -> Result<ConversationTurn> {
        let mut said = self.state.clone();
        said.say(text.as_ref());
        let whole = self.template.render(&said.messages, true)?;
        let (turn, lasting) = match self.state.behind_seen(&whole) {
            Some(rest) => {
                let mut tokens: Vec<u32> = self.state.unseen.into_iter().collect();
                tokens.extend(self.tokenizer.encode(rest, false)?);
                (ConversationTurn { tokens, from_start: false, repeated: 0, lasting: 0 }, None)
            }
            None if self.state.given.is_none() => {
                let tokens = self.tokenizer.encode(&whole, false)?;
                (ConversationTurn { tokens, from_start: true, repeated: 0, lasting: 0 }, None)
            }
            None => self.rewritten(&said.messages, &whole)?,
        };
        self.state =
            ConversationState { given: Some(whole), unseen: None, unfinished: false, ..said };
        self.lasting = lasting;
        Ok(turn)
    }

    /// Adds the model's answer. `unseen` is its last token, where the cache has not seen it:
    /// [`TokenStream::unseen`](crate::TokenStream::unseen).
    pub fn answered(&mut self, text: impl Into<String>, unseen: Option<u32>) {
        self.state.messages.push(ChatMessage::new("assistant", text));
        self.state.unseen = unseen;
    }

    /// Lets the next turn be the whole conversation, for a cache that was reset.
    pub fn begin_again(&mut self) {
        (self.state.given, self.state.unseen, self.lasting) = (None, None, None);
    }

    /// The turn of a template that writes the last answer, or what stands before it, differently
    /// than it came.
    fn rewritten(
        &self,
        messages: &[ChatMessage],
        whole: &str,
    ) -> Result<(ConversationTurn, Option<Lasting>)> {
        let known = self.lasting.as_ref().filter(|known| whole.starts_with(&known.text));
        let Lasting { text, mut tokens } = known.cloned().unwrap_or_default();
        let repeated = tokens.len();
        let before_answer = self.template.render(messages, false)?;
        let encode = |text| self.tokenizer.encode(text, false);
        let parts = whole
            .strip_prefix(&before_answer)
            .filter(|begins_answer| !begins_answer.is_empty())
            .zip(before_answer.strip_prefix(&text).filter(|said| !said.is_empty()));
        let Some((begins_answer, said)) = parts else {
            tokens.extend(encode(whole.strip_prefix(&text).unwrap_or(whole))?);
            let turn = ConversationTurn { tokens, from_start: true, repeated, lasting: 0 };
            return Ok((turn, None));
        };
        tokens.extend(encode(said)?);
        let lasting = Lasting { text: before_answer.clone(), tokens: tokens.clone() };
        tokens.extend(encode(begins_answer)?);
        let turn =
            ConversationTurn { lasting: lasting.tokens.len(), tokens, from_start: true, repeated };
        Ok((turn, Some(lasting)))
    }
}
