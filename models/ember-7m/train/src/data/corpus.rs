use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use briquette_models::Tokenizer;
use serde::Deserialize;

use super::END;

/// Keys of tasks.
#[derive(Deserialize)]
pub struct Words {
    pub train: Vec<String>,
}

/// Text and keys.
pub struct Corpus {
    pub text: Vec<u16>,
    pub words: Words,
    pub tokenizer: Tokenizer,
}

impl Corpus {
    /// Reads the folder that [`prepare`] wrote.
    pub fn load(run: &Path) -> Result<Self> {
        let bytes = fs::read(run.join("text.u16")).context("--run has not been prepared")?;
        let text = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let words = serde_json::from_str(&fs::read_to_string(run.join("words.json"))?)?;
        Ok(Self { text: text.collect(), words, tokenizer: Tokenizer::load(run)? })
    }
}

/// Turns every `*.txt` directly in `text` into tokens of the tokenizer in `model`, an end token
/// behind each. Of each file at most `max_chars` are read. Returns the number of tokens.
pub fn prepare(
    text: &Path,
    run: &Path,
    model: &Path,
    [config, words]: [&Path; 2],
    max_chars: Option<usize>,
) -> Result<usize> {
    let tokenizer = Tokenizer::load(model)?;
    ensure!(tokenizer.vocab_size() <= 1 << 16, "tokens have 16 bits here");
    let entries = fs::read_dir(text).with_context(|| text.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    files.sort();
    ensure!(!files.is_empty(), "there is no *.txt in {}", text.display());
    let mut bytes = Vec::new();
    for path in &files {
        let mut text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if let Some((end, _)) = max_chars.and_then(|most| text.char_indices().nth(most)) {
            text.truncate(end);
        }
        let tokens = tokenizer.encode(&text, false)?.into_iter().chain([END]);
        bytes.extend(tokens.flat_map(|token| (token as u16).to_le_bytes()));
    }
    fs::create_dir_all(run)?;
    fs::write(run.join("text.u16"), &bytes)?;
    copy_model(model, run)?;
    fs::copy(config, run.join("config.json")).with_context(|| config.display().to_string())?;
    fs::copy(words, run.join("words.json")).with_context(|| words.display().to_string())?;
    Ok(bytes.len() / 2)
}

/// Copies the files of a Hugging Face folder but for its weights.
pub fn copy_model(from: &Path, to: &Path) -> Result<()> {
    let files =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    for name in files.into_iter().filter(|name| from.join(name).exists()) {
        fs::copy(from.join(name), to.join(name)).with_context(|| name.to_owned())?;
    }
    Ok(())
}
