use std::{fs, path::Path, thread};

use anyhow::{Context, Result, bail, ensure};
use briquette_models::Tokenizer;

use crate::data::Words;

/// Turns a folder of text into a prepared folder: every `*.txt` directly in `text` in the tokens of
/// the tokenizer in `model`, an end token behind each; the files named `held_out` (without `.txt`)
/// apart. Returns the tokens of both.
///
/// # Errors
/// If a file cannot be read or written, a held-out file is not there, nothing is left to train on,
/// or the tokenizer has more than 65 536 entries.
pub fn prepare(
    text: &Path,
    out: &Path,
    model: &Path,
    words: &Words,
    held_out: &[String],
    max_chars: Option<usize>,
) -> Result<[usize; 2]> {
    let tokenizer = Tokenizer::load(model)?;
    ensure!(
        tokenizer.vocab_size() <= 1 << 16,
        "tokens have 16 bits here, the tokenizer {} entries",
        tokenizer.vocab_size()
    );
    let mut files = Vec::new();
    for entry in fs::read_dir(text).with_context(|| format!("{} cannot be read", text.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "txt") {
            files.push(path);
        }
    }
    files.sort();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for wanted in held_out {
        ensure!(
            files.iter().any(|path| name(path) == *wanted),
            "{} holds no {wanted}.txt",
            text.display()
        );
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let encode = || -> Result<Vec<(usize, Vec<u32>)>> {
        let mut encoded = Vec::new();
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(path) = files.get(index) else { return Ok(encoded) };
            let mut text = fs::read_to_string(path)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            if let Some((end, _)) = max_chars.and_then(|most| text.char_indices().nth(most)) {
                text.truncate(end);
            }
            encoded.push((index, tokenizer.encode(&text, false)?));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(files.len().max(1));
    let mut encoded = thread::scope(|scope| -> Result<Vec<(usize, Vec<u32>)>> {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(encode)).collect();
        let mut all = Vec::new();
        for thread in running {
            match thread.join() {
                Ok(encoded) => all.extend(encoded?),
                Err(_) => bail!("a thread that read text has failed"),
            }
        }
        Ok(all)
    })?;
    encoded.sort_by_key(|(index, _)| *index);

    let mut bytes = [Vec::new(), Vec::new()];
    for (index, mut tokens) in encoded {
        let apart = held_out.contains(&name(&files[index]));
        if !apart {
            tokens.push(crate::data::END);
        }
        let tokens = tokens.into_iter().flat_map(|token| (token as u16).to_le_bytes());
        bytes[usize::from(apart)].extend(tokens);
    }
    ensure!(!bytes[0].is_empty(), "no *.txt is left to train on in {}", text.display());
    fs::create_dir_all(out).with_context(|| format!("{} cannot be made", out.display()))?;
    fs::write(out.join("train.u16"), &bytes[0])?;
    fs::write(out.join("held-out.u16"), &bytes[1])?;
    fs::write(out.join("words.json"), serde_json::to_string(words)?)?;
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let source = model.join(name);
        if source.exists() {
            fs::copy(&source, out.join(name))
                .with_context(|| format!("{} cannot be copied", source.display()))?;
        }
    }
    Ok(bytes.map(|bytes| bytes.len() / 2))
}
