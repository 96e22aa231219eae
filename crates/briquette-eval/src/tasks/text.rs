//! Running text, cut into windows of tokens.

use std::path::Path;

use briquette_models::Tokenizer;

use crate::{Error, Result, files, fingerprint, tasks::haystack};

/// A text in tokens.
#[derive(Clone, Debug)]
pub struct Text {
    name: String,
    /// Tokens that the tokenizer opens every text with.
    opening: Vec<u32>,
    tokens: Vec<u32>,
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The token of the text it begins at.
    pub start: usize,
    /// Its tokens, behind those that open a text.
    pub tokens: Vec<u32>,
}

impl Text {
    /// The prose built into the program.
    ///
    /// # Errors
    /// [`Error::Model`] if the tokenizer fails.
    pub fn built_in(tokenizer: &Tokenizer) -> Result<Self> {
        let lines: Vec<&str> = haystack::built_in_lines().collect();
        Self::new("built-in", &lines.join(" "), tokenizer)
    }

    /// A file of text. Its name here is that of the file, without the folder.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::Model`] if the tokenizer fails.
    pub fn from_file(path: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Self> {
        let path = path.as_ref();
        let text = files::read_text(path)?;
        Self::new(&files::last(path), &text, tokenizer)
    }

    /// The file, or the built-in prose where none is named.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn read(path: Option<&Path>, tokenizer: &Tokenizer) -> Result<Self> {
        match path {
            Some(path) => Self::from_file(path, tokenizer),
            None => Self::built_in(tokenizer),
        }
    }

    fn new(name: &str, text: &str, tokenizer: &Tokenizer) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            opening: tokenizer.encode("", true)?,
            tokens: tokenizer.encode(text, false)?,
        })
    }

    /// `built-in`, or the name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Differs between texts and tokenizers.
    pub(crate) fn fingerprint(&self) -> String {
        let tokens = self.opening.iter().chain(&self.tokens);
        let bytes: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
        fingerprint::of(&bytes)
    }

    /// `count` windows of `length` tokens each, the opening counted. They begin `stride` tokens
    /// apart, or as far apart as the text allows.
    ///
    /// # Errors
    /// [`Error::TextTooShort`], [`Error::Setting`] for a stride of 0.
    pub fn windows(
        &self,
        length: usize,
        count: usize,
        stride: Option<usize>,
    ) -> Result<Vec<Window>> {
        let inside = length.saturating_sub(self.opening.len()).max(1);
        let steps = count.saturating_sub(1);
        let stride = match stride {
            Some(0) => {
                let reason = "windows 0 tokens apart are one window: at least 1 is needed".into();
                return Err(Error::Setting { name: "stride", reason });
            }
            Some(stride) => stride,
            None => (self.tokens.len().saturating_sub(inside) / steps.max(1)).max(1),
        };
        let needed = stride.saturating_mul(steps).saturating_add(inside);
        if needed > self.tokens.len() {
            return Err(Error::TextTooShort {
                text: self.name.clone(),
                tokens: self.tokens.len(),
                windows: count,
                needed,
            });
        }
        let window = |start| {
            let tokens = [&self.opening[..], &self.tokens[start..start + inside]].concat();
            Window { start, tokens }
        };
        Ok((0..count).map(|i| window(i * stride)).collect())
    }
}

/// Whether windows of `length` tokens can be asked for: of each of these counts there must be one
/// at least, and the window must fit the model's context.
pub(crate) fn check_windows(
    counts: &[(&'static str, usize)],
    length: usize,
    context: usize,
) -> Result<()> {
    if let Some(&(name, _)) = counts.iter().find(|(_, count)| *count == 0) {
        return Err(Error::Setting { name, reason: "at least 1 is needed".into() });
    }
    if length > context {
        return Err(Error::ContextTooShort { length, context });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: u32) -> Text {
        Text { name: "counting".into(), opening: vec![99], tokens: (0..tokens).collect() }
    }

    fn starts(text: &Text, length: usize, count: usize, stride: Option<usize>) -> Vec<usize> {
        let windows = text.windows(length, count, stride).unwrap();
        for Window { start, tokens } in &windows {
            assert_eq!(tokens.len(), length);
            assert_eq!((tokens[0], tokens[1]), (99, *start as u32));
        }
        windows.iter().map(|window| window.start).collect()
    }

    #[test]
    fn windows_reach_from_the_start_to_the_end() {
        assert_eq!(starts(&text(100), 11, 4, None), [0, 30, 60, 90]);
        assert_eq!(starts(&text(100), 11, 1, None), [0]);
        assert_eq!(starts(&text(100), 11, 3, Some(7)), [0, 7, 14]);
        // As many as there are places.
        assert_eq!(starts(&text(12), 11, 3, None), [0, 1, 2]);
    }

    #[test]
    fn a_short_text_is_refused_with_numbers() {
        for (length, count, stride) in [(11, 4, None), (12, 3, None), (5, 3, Some(5))] {
            let error = text(12).windows(length, count, stride).unwrap_err().to_string();
            assert!(error.contains("counting") && error.contains("12 tokens"), "{error}");
        }
        let error = text(100).windows(11, 2, Some(0)).unwrap_err().to_string();
        assert!(error.contains("stride: ") && error.contains("at least 1"), "{error}");
    }

    #[test]
    fn texts_are_told_apart() {
        assert_eq!(text(5).fingerprint(), text(5).fingerprint());
        assert_ne!(text(5).fingerprint(), text(6).fingerprint());
    }
}
