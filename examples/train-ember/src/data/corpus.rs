use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

/// The files of a prepared folder: tokens to train on, tokens to measure on, the keys of tasks, the
/// tokenizer.
pub const PREPARED: [&str; 4] = ["train.u16", "held-out.u16", "words.json", "tokenizer.json"];

/// Keys of tasks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Words {
    /// Keys to train on.
    pub train: Vec<String>,
    /// Keys that are only measured.
    pub test: Vec<String>,
}

/// A prepared folder, read.
#[derive(Debug)]
pub struct Corpus {
    /// Tokens of the text to train on.
    pub train: Vec<u16>,
    /// Tokens of the text that is only measured.
    pub held_out: Vec<u16>,
    /// Keys of tasks.
    pub words: Words,
    /// The tokenizer of all of it.
    pub tokenizer: Tokenizer,
}

impl Corpus {
    /// Reads the folder that [`prepare`](crate::prepare()) wrote.
    ///
    /// # Errors
    /// If a file is missing or damaged, or a token is not in the vocabulary.
    pub fn load(dir: &Path) -> Result<Self> {
        let [train, held_out, words, _] = PREPARED.map(|name| dir.join(name));
        let text = fs::read_to_string(&words)
            .with_context(|| format!("{} cannot be read", words.display()))?;
        let words = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a list of words", words.display()))?;
        let corpus = Self {
            train: read(&train)?,
            held_out: read(&held_out)?,
            words,
            tokenizer: Tokenizer::load(dir)?,
        };
        let vocabulary = corpus.tokenizer.vocab_size();
        let most = corpus.train.iter().chain(&corpus.held_out).max();
        ensure!(
            most.is_some_and(|most| usize::from(*most) < vocabulary),
            "{} has no tokens, or others than its tokenizer of {vocabulary}",
            dir.display()
        );
        Ok(corpus)
    }
}

fn read(path: &Path) -> Result<Vec<u16>> {
    let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    ensure!(bytes.len().is_multiple_of(2), "{} ends within a token", path.display());
    Ok(bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect())
}
