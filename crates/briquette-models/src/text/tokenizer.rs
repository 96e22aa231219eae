#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::{
    fmt::Display,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::{
    Error, Result,
    checkpoint::{
        gguf::{self, Gguf},
        source::Source,
    },
    json::{check_regular, refuse_mark},
    text::{tokenizer_config::TokenizerConfig, tokenizer_limits::Limits},
};

/// Text that every working tokenizer makes tokens of.
const PROBE: &str = "The number is 1234567.";

/// The tokenizer of a model: text to token ids and back.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    limits: Limits,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in the folder `dir` with the tokens that `tokenizer_config.json`
    /// adds, or the tokenizer in a GGUF file, or in the one in a folder without `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the file is absent, not understood, of a tokenizer without tokens or
    /// of one that multiplies what it is given, or gives a token another id than
    /// `tokenizer_config.json` does; [`Error::Json`] for that file; [`Error::Read`] if one is no
    /// regular file; [`Error::Gguf`], [`Error::SeveralGguf`], [`Error::BlockType`] and
    /// [`Error::Truncated`] for GGUF files.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self> {
        let path = dir.as_ref().join("tokenizer.json");
        let source = match path.exists() {
            true => Source::Folder(dir.as_ref().into()),
            false => Source::of(dir.as_ref())?,
        };
        let (json, path) = match source {
            Source::Folder(_) => {
                if !path.exists() {
                    return Err(absent(dir.as_ref()));
                }
                check_regular(&path)?;
                (fs::read(&path).map_err(|error| failed(&path, &error))?, path)
            }
            Source::Gguf(path) => (gguf::tokenizer_json(&Gguf::open(&path)?)?, path),
        };
        let mut tokenizer = Self::read(&json, &path)?;
        if path.ends_with("tokenizer.json") {
            add_tokens(&mut tokenizer.inner, &tokenizer.limits, dir.as_ref())?;
        }
        tokenizer.checked(&path)
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], as [`load`](Self::load).
    pub fn from_json(text: &str) -> Result<Self> {
        let path = Path::new("tokenizer.json");
        Self::read(text.as_bytes(), path)?.checked(path)
    }

    fn read(json: &[u8], path: &Path) -> Result<Self> {
        // The library panics where the description of a decoder is cut.
        refuse_mark(json, &path.display().to_string())?;
        let mut file: serde_json::Value =
            serde_json::from_slice(json).map_err(|error| failed(path, &error))?;
        let limits = Limits::of(&file).map_err(|error| failed(path, &error))?;
        let mut warnings = Vec::new();
        // Merges left out at random are for training: the same text would have other tokens.
        if let Some(dropout) = file.pointer_mut("/model/dropout").filter(|it| !it.is_null()) {
            if dropout.as_f64() != Some(0.0) {
                let path = path.display();
                warnings.push(format!("{path}: dropout is {dropout} and is not used"));
            }
            *dropout = serde_json::Value::Null;
        }
        // What was checked is what is read, also where a key is there twice.
        let json = file.to_string().into_bytes();
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(&json))
            .map_err(|error| failed(path, &error))?;
        // Some files carry the settings of their training run, which would cut or pad every text.
        inner.with_truncation(None).map_err(tokenizer)?;
        inner.with_padding(None);
        Ok(Self { inner, limits, warnings })
    }

    fn checked(self, path: &Path) -> Result<Self> {
        match self.encode(PROBE, false)?.is_empty() {
            true => Err(failed(path, &format_args!("it makes no token of `{PROBE}`"))),
            false => Ok(self),
        }
    }

    /// The token ids of `text`. With `special_tokens` the tokenizer adds what its file asks for,
    /// usually the token that begins a text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], also if normalizers could make more of it than 64 MiB and 32 times its
    /// length.
    pub fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>> {
        guarded(|| self.limits.check(text, &self.inner).map_err(Into::into)).map_err(tokenizer)?;
        let encoding =
            guarded(|| self.inner.encode_fast(text, special_tokens)).map_err(tokenizer)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, special tokens left out. Bytes that are not UTF-8 become `U+FFFD`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(|| self.inner.decode(ids, true)).map_err(tokenizer)
    }

    /// Sentences about what its files ask for and is not done.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The id of a token, if it is in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Tokens of the vocabulary, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// A decoder for tokens that arrive one at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, ids: Vec::new(), shown: 0 }
    }
}

/// Decodes tokens that arrive one at a time, and never shows half a character: a token may end in
/// the middle of one, whose text then waits for the next token.
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens shown last, then those that wait. The shown ones stay for context, since a
    /// tokenizer may decode the first token of a text without its leading space.
    ids: Vec<u32>,
    /// Number of `ids` that are shown.
    shown: usize,
}

impl StreamDecoder<'_> {
    /// Adds a token, and returns the text that is complete by it, often empty.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.waiting()?;
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(text)
    }

    /// Ends the stream, and returns what still waits: an unfinished character as `U+FFFD`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn finish(self) -> Result<String> {
        self.waiting()
    }

    fn waiting(&self) -> Result<String> {
        let shown = self.tokenizer.decode(self.ids.get(..self.shown).unwrap_or_default())?;
        let all = self.tokenizer.decode(&self.ids)?;
        let text = all.strip_prefix(&shown).or_else(|| all.get(shown.len()..));
        Ok(text.unwrap_or_default().to_owned())
    }
}

/// Adds the tokens that only files beside `tokenizer.json` name, as `transformers` does.
fn add_tokens(inner: &mut tokenizers::Tokenizer, limits: &Limits, dir: &Path) -> Result<()> {
    let Some(config) = TokenizerConfig::read(dir)? else { return Ok(()) };
    let known: Vec<tokenizers::AddedToken> =
        inner.get_added_tokens_decoder().into_values().collect();
    let named = config.added_tokens(dir)?;
    let contents = named.values().map(|token| token.content.as_str());
    limits.check_tokens(contents).map_err(Error::Tokenizer)?;
    let tokens: Vec<tokenizers::AddedToken> = named
        .values()
        .map(|token| {
            tokenizers::AddedToken::from(token.content.clone(), token.special)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
                .normalized(token.normalized.unwrap_or(!token.special))
        })
        .filter(|token| !token.content.is_empty() && !known.contains(token))
        .collect();
    guarded(|| Ok(inner.add_tokens(&tokens))).map_err(tokenizer)?;
    for (id, token) in named {
        let content = &token.content;
        match inner.token_to_id(content) {
            Some(found) if found != id => {
                return Err(Error::Tokenizer(format!(
                    "{}: token `{content}` is {id} in tokenizer_config.json or added_tokens.json, but the tokens of \
                     tokenizer.json make it {found}: correct the id, or write the token into tokenizer.json",
                    dir.display()
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Calls the library, which panics in some places where a file or a text is unlike others: an
/// expression that matches nothing at the end of a text, for one.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err("the tokenizer's description cannot be carried out here".into()))
}

/// The error of a folder without `tokenizer.json`.
fn absent(dir: &Path) -> Error {
    let older = ["tokenizer.model", "vocab.json", "vocab.txt"];
    let found = older.iter().find(|name| dir.join(name).exists());
    let why = found.map_or_else(
        || "fetch it too".to_owned(),
        |name| {
            format!(
                "{name} is not read. In Python, AutoTokenizer.from_pretrained(\"{dir}\").save_pretrained(\"{dir}\") \
                 writes tokenizer.json of it",
                dir = dir.display()
            )
        },
    );
    Error::Tokenizer(format!("tokenizer.json is not in {}: {why}", dir.display()))
}

fn failed(path: &Path, error: &dyn Display) -> Error {
    Error::Tokenizer(format!("{}: {error}", path.display()))
}

fn tokenizer(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
