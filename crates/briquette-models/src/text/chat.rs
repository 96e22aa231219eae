use std::{path::Path, time::SystemTime};

use minijinja::{
    Value, context,
    value::{Serde, merge_maps},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    checkpoint::{
        gguf::{self, Gguf},
        source::Source,
    },
    json::read_text,
    text::{
        template::render::{prepare, render},
        tokenizer_config::{SpecialTokens, TokenizerConfig},
    },
};

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// The speaker, usually `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl ChatMessage {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// The form in which a model was trained to see a conversation: a Jinja template, rendered as
/// `transformers` does it.
///
/// The rendered text has the special tokens in it: encode it without adding others. A template that
/// asks for the date is told the local time.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    text: String,
    /// `bos_token` and the like, which templates write out.
    special_tokens: SpecialTokens,
    /// The time that the template is told; `None` is that of each rendering.
    now: Option<SystemTime>,
}

impl ChatTemplate {
    /// Reads the template of a Hugging Face folder: `chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json`; of several the one called `default`; or that of a GGUF file. `None`
    /// if there is none.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Json`] for the files, [`Error::ChatTemplate`] if it does not
    /// parse; [`Error::Gguf`], [`Error::SeveralGguf`], [`Error::BlockType`] and
    /// [`Error::Truncated`] for GGUF files.
    pub fn load(dir: impl AsRef<Path>) -> Result<Option<Self>> {
        let (template, special_tokens) = read(dir.as_ref())?;
        template.map(|template| Self::parse(&template, special_tokens)).transpose()
    }

    /// A template of this text with the special tokens of the model in `dir`, a Hugging Face folder
    /// or a GGUF file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn for_model(dir: impl AsRef<Path>, template: &str) -> Result<Self> {
        let (_, special_tokens) = read(dir.as_ref())?;
        Self::parse(template, special_tokens)
    }

    /// A template of this text. `bos_token` and `eos_token` are what it may write out at the ends
    /// of texts.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if it does not parse, or has more than 128 KiB.
    pub fn new(
        template: impl Into<String>,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self> {
        let tokens = [("bos_token", bos_token), ("eos_token", eos_token)];
        let tokens = tokens.into_iter().filter_map(|(name, it)| Some((name.to_owned(), it?)));
        Self::parse(&template.into(), tokens.collect())
    }

    /// The template, told this time instead of the present one, so that the same conversation has
    /// the same text tomorrow.
    #[must_use]
    pub fn at(self, now: SystemTime) -> Self {
        Self { now: Some(now), ..self }
    }

    /// The text of a conversation. With `generation_prompt` it ends with what an answer begins
    /// after.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if the template fails, takes more than ten million steps, makes a
    /// value of more than 16 MiB and four times the conversation or 16 such values in all, or
    /// refuses the conversation, as many do where roles do not alternate.
    pub fn render(&self, messages: &[ChatMessage], generation_prompt: bool) -> Result<String> {
        let tokens =
            self.special_tokens.iter().map(|(name, token)| (name.as_str(), token.as_str()));
        let given = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => generation_prompt,
            tools => (),
            documents => (),
        };
        let bytes = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        render(&self.text, merge_maps([Value::from_pairs(tokens), given]), bytes, self.now)
            .map_err(failed)
    }

    /// The text of a conversation whose last message goes on: up to the end of that message as far
    /// as it is known, and behind its end up to where an answer begins. White space at the end of
    /// the known part stays, also where the template trims messages.
    ///
    /// # Errors
    /// As [`render`](Self::render); [`Error::ChatTemplate`] also if the last message is not written
    /// out once, or there is none.
    pub fn render_unfinished(&self, messages: &[ChatMessage]) -> Result<(String, String)> {
        let refuse = |message: &str| Error::ChatTemplate(message.to_owned());
        let said = |mark: char| messages.iter().any(|message| message.content.contains(mark));
        // Characters of private use, which no template changes.
        let mark = ('\u{e000}'..='\u{f8ff}').find(|mark| !said(*mark));
        let mark =
            mark.ok_or_else(|| refuse("the messages hold every character of private use"))?;
        let mut marked = messages.to_vec();
        let last = marked.last_mut().ok_or_else(|| refuse("a conversation without a message"))?;
        last.content.push(mark);
        let whole = self.render(&marked, true)?;
        let parts: Vec<&str> = whole.split(mark).collect();
        match parts[..] {
            [before, behind] => Ok((before.to_owned(), behind.to_owned())),
            _ => {
                let times = parts.len().saturating_sub(1);
                Err(refuse(&format!("it writes the last message out {times} times, not once")))
            }
        }
    }

    fn parse(template: &str, special_tokens: SpecialTokens) -> Result<Self> {
        Ok(Self { text: prepare(template).map_err(failed)?, special_tokens, now: None })
    }
}

/// The template of a folder or file, if it has one, and its special tokens.
fn read(dir: &Path) -> Result<(Option<String>, SpecialTokens)> {
    let own = dir.join("chat_template.jinja");
    let config = TokenizerConfig::read(dir)?;
    let template = match own.exists() {
        true => Some(read_text(&own)?),
        false => config.as_ref().and_then(|config| config.chat_template().cloned()),
    };
    if template.is_none()
        && let Source::Gguf(path) = Source::of(dir)?
    {
        let file = Gguf::open(&path)?;
        return Ok((gguf::chat_template(&file)?, gguf::special_tokens(&file)?));
    }
    Ok((template, config.unwrap_or_default().special_tokens(dir)?))
}

fn failed(error: minijinja::Error) -> Error {
    Error::ChatTemplate(format!("{error:#}"))
}
