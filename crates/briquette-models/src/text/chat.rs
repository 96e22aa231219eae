use std::{
    io::{self, Write},
    path::Path,
};

use minijinja::{
    Environment, ErrorKind, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::{
    Error, Result,
    checkpoint::{
        gguf::{self, Gguf},
        source::Source,
    },
    json::{parse, read_text},
    text::template_limits,
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
/// The rendered text has the special tokens in it: encode it without adding others.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and the like, which templates write out.
    special_tokens: Vec<(&'static str, Option<String>)>,
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
        let (own, config) =
            (dir.as_ref().join("chat_template.jinja"), dir.as_ref().join("tokenizer_config.json"));
        if !own.exists()
            && !config.exists()
            && let Source::Gguf(path) = Source::of(dir.as_ref())?
        {
            return match gguf::chat_template(&Gguf::open(&path)?)? {
                Some(gguf::Template { text, special_tokens }) => {
                    Self::parse(text, special_tokens).map(Some)
                }
                None => Ok(None),
            };
        }
        let file: TokenizerConfig = if config.exists() {
            parse(&read_text(&config)?, &config.display().to_string())?
        } else {
            TokenizerConfig::default()
        };
        let template = if own.exists() {
            Some(read_text(&own)?)
        } else {
            file.chat_template.and_then(Templates::default)
        };
        let special_tokens = vec![
            ("bos_token", file.bos_token.map(Token::text)),
            ("eos_token", file.eos_token.map(Token::text)),
            ("unk_token", file.unk_token.map(Token::text)),
            ("pad_token", file.pad_token.map(Token::text)),
        ];
        template.map(|template| Self::parse(template, special_tokens)).transpose()
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
        Self::parse(template.into(), vec![("bos_token", bos_token), ("eos_token", eos_token)])
    }

    /// The text of a conversation. With `generation_prompt` it ends with what an answer begins
    /// after.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if the template fails, takes more than ten million steps or makes
    /// longer texts than any needs, or refuses the conversation, as many do where roles do not
    /// alternate.
    pub fn render(&self, messages: &[ChatMessage], generation_prompt: bool) -> Result<String> {
        let tokens = self.special_tokens.iter().filter_map(|(name, token)| {
            token.as_ref().map(|token| (*name, Value::from(token.as_str())))
        });
        let tokens = Value::from_pairs(tokens);
        let given = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => generation_prompt,
            tools => (),
            documents => (),
            ..tokens
        };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(given).map_err(failed)
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

    fn parse(
        template: String,
        special_tokens: Vec<(&'static str, Option<String>)>,
    ) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        template_limits::set(&mut environment);
        template_limits::add(&mut environment, NAME, template).map_err(failed)?;
        Ok(Self { environment, special_tokens })
    }
}

/// Its ending keeps text from being escaped as HTML.
const NAME: &str = "chat_template.txt";

fn failed(error: minijinja::Error) -> Error {
    Error::ChatTemplate(format!("{error:#}"))
}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python's `json.dumps` writes it, which models were trained on. minijinja's own filter
/// escapes what HTML would take for tags.
fn to_json(value: &Value, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent);
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, PythonFormatter)),
    };
    let failed = |error: String| minijinja::Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(json).map_err(|error| failed(error.to_string()))
}

/// A space after commas and colons.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    pad_token: Option<Token>,
}

/// A template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    fn default(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => {
                let found = templates.into_iter().find(|named| named.name == "default");
                found.map(|named| named.template)
            }
        }
    }
}

/// A special token, or one with how it is to be matched.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl Token {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}
