use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Result,
    json::{parse, read_text},
};

/// The names under which chat templates know special tokens.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special tokens by the names that chat templates have for them.
pub(crate) type SpecialTokens = Vec<(String, String)>;

/// The keys that `transformers` reads from `tokenizer_config.json` beside `tokenizer.json`.
#[derive(Default, Deserialize)]
pub(crate) struct TokenizerConfig {
    chat_template: Option<Templates>,
    /// Tokens and how they are matched, by their ids.
    added_tokens_decoder: Option<BTreeMap<u32, AddedToken>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl TokenizerConfig {
    /// The file in a folder, if there is one.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("tokenizer_config.json");
        match path.exists() {
            true => parse(&read_text(&path)?, &path.display().to_string()).map(Some),
            false => Ok(None),
        }
    }

    /// The template; of several the one called `default`.
    pub(crate) fn chat_template(&self) -> Option<&String> {
        match self.chat_template.as_ref()? {
            Templates::One(template) => Some(template),
            Templates::Named(templates) => {
                let found = templates.iter().find(|named| named.name == "default");
                found.map(|named| &named.template)
            }
        }
    }

    /// The special tokens. Those of
    /// `special_tokens_map.json` count where this file lists no added tokens, as older ones.
    pub(crate) fn special_tokens(&self, dir: &Path) -> Result<SpecialTokens> {
        let path = dir.join("special_tokens_map.json");
        let older: Map<String, Value> = match self.added_tokens_decoder {
            None if path.exists() => parse(&read_text(&path)?, &path.display().to_string())?,
            _ => Map::new(),
        };
        let text = |token: &Value| match token {
            Value::String(text) => Some(text.clone()),
            other => other.get("content")?.as_str().map(str::to_owned),
        };
        let mut tokens = SpecialTokens::new();
        for name in NAMES {
            let token = older.get(name).or_else(|| self.others.get(name)).and_then(text);
            tokens.extend(token.map(|token| (name.to_owned(), token)));
        }
        // Those of a family have names of their own.
        if let Some(Value::Object(own)) = self.others.get("extra_special_tokens") {
            let own = own.iter().filter_map(|(name, it)| Some((name.clone(), text(it)?)));
            tokens.extend(own);
        }
        Ok(tokens)
    }

    /// The tokens that `tokenizer.json` is to know beside its own, in the order of their ids: those
    /// of this file, or of `added_tokens.json` where it lists none, as older ones.
    pub(crate) fn added_tokens(self, dir: &Path) -> Result<BTreeMap<u32, AddedToken>> {
        let path = dir.join("added_tokens.json");
        if self.added_tokens_decoder.is_some() || !path.exists() {
            return Ok(self.added_tokens_decoder.unwrap_or_default());
        }
        let special = self.special_tokens(dir)?;
        let older: BTreeMap<String, u32> = parse(&read_text(&path)?, &path.display().to_string())?;
        let tokens = older.into_iter().map(|(content, id)| {
            let special = special.iter().any(|(_, token)| *token == content);
            (id, AddedToken { content, special, normalized: Some(!special), ..Default::default() })
        });
        Ok(tokens.collect())
    }
}

/// A token and how it is matched.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AddedToken {
    pub(crate) content: String,
    pub(crate) special: bool,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    /// Whether text is normalized before it is matched; special ones are not where it is absent.
    pub(crate) normalized: Option<bool>,
}

/// A template, or several with names.
#[derive(Deserialize)]
#[serde(untagged, expecting = "chat_template must be a text or a list of named ones")]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}
