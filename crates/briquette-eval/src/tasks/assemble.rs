//! Prompts put together to the token.

use briquette_models::Tokenizer;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::{Error, Result};

/// Text of an exact number of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Hay {
    pub(crate) tokens: Vec<u32>,
    /// The places between two of its pieces, both ends included, ascending.
    pub(crate) boundaries: Vec<usize>,
}

/// Pieces in a row that may come to no token: text has no end, and would be filled with none for
/// ever.
const PATIENCE: usize = 1000;

impl Hay {
    /// The first `tokens` tokens of the pieces, each encoded on its own. The last piece is cut.
    pub(crate) fn fill(
        tokenizer: &Tokenizer,
        pieces: impl Iterator<Item = String>,
        tokens: usize,
    ) -> Result<Self> {
        let mut hay = Vec::new();
        let mut boundaries = vec![0];
        let mut in_vain = 0;
        for piece in pieces {
            let before = hay.len();
            hay.extend(tokenizer.encode(&piece, false)?);
            in_vain = if hay.len() == before { in_vain + 1 } else { 0 };
            if in_vain > PATIENCE {
                return Err(Error::NoTokens { text: piece });
            }
            if hay.len() >= tokens {
                break;
            }
            boundaries.push(hay.len());
        }
        hay.truncate(tokens);
        boundaries.push(tokens);
        Ok(Self { tokens: hay, boundaries })
    }

    /// The boundary nearest to a depth in percent.
    fn nearest(&self, depth: u32) -> usize {
        let at = self.tokens.len() * depth as usize / 100;
        self.boundaries.iter().copied().min_by_key(|place| place.abs_diff(at)).unwrap_or(0)
    }

    fn any(&self, rng: &mut ChaCha8Rng) -> usize {
        self.boundaries[rng.random_range(0..self.boundaries.len())]
    }

    /// The text behind `before`, with `inserts` put in: `spots` are a place and the number of the
    /// insert there, ascending.
    pub(crate) fn with(
        &self,
        before: &[u32],
        inserts: &[Vec<u32>],
        spots: &[(usize, usize)],
    ) -> Vec<u32> {
        let mut tokens = before.to_vec();
        let mut from = 0;
        for &(at, insert) in spots {
            tokens.extend(&self.tokens[from..at]);
            tokens.extend(&inserts[insert]);
            from = at;
        }
        tokens.extend(&self.tokens[from..]);
        tokens
    }
}

/// A context of text with things hidden in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hiding<'a> {
    pub(crate) task: &'static str,
    /// Tokens of the context and of what comes behind it.
    pub(crate) length: usize,
    /// Depth of the first insert, in percent of the text.
    pub(crate) depth: u32,
    /// Tokens before the text.
    pub(crate) introduction: &'a [u32],
    /// Hidden pieces. All but the first lie anywhere.
    pub(crate) inserts: &'a [Vec<u32>],
    /// Tokens that come behind the context: questions and answers.
    pub(crate) behind: usize,
}

impl Hiding<'_> {
    /// Tokens that remain for text, at least 1.
    pub(crate) fn room(&self) -> Result<usize> {
        let hidden: usize = self.inserts.iter().map(Vec::len).sum();
        room(self.task, self.length, self.introduction.len() + hidden + self.behind)
    }

    /// The context, as long as `length` and `behind` leave it.
    pub(crate) fn context(
        &self,
        tokenizer: &Tokenizer,
        pieces: impl Iterator<Item = String>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<u32>> {
        let hay = Hay::fill(tokenizer, pieces, self.room()?)?;
        // The insert asked for first: at one boundary it lies before the others.
        let mut spots = vec![(hay.nearest(self.depth), 0)];
        for other in 1..self.inserts.len() {
            spots.push((hay.any(rng), other));
        }
        spots.sort_unstable();
        Ok(hay.with(self.introduction, self.inserts, &spots))
    }
}

/// Tokens of `length` that remain beside `fixed` ones, at least 1.
pub(crate) fn room(task: &'static str, length: usize, fixed: usize) -> Result<usize> {
    let room = length.checked_sub(fixed).filter(|room| *room > 0);
    room.ok_or(Error::PromptTooShort { task, length, fixed })
}

/// The tokens of each of these texts, which begin no prompt.
pub(crate) fn encode_all(
    tokenizer: &Tokenizer,
    texts: impl IntoIterator<Item = String>,
) -> Result<Vec<Vec<u32>>> {
    texts.into_iter().map(|text| Ok(tokenizer.encode(&text, false)?)).collect()
}

/// The tokens of `answer` as it continues `before`, whose tokens are `tokens`: some tokenizers
/// begin a text with a token of their own.
pub(crate) fn continuation(
    tokenizer: &Tokenizer,
    before: &str,
    tokens: &[u32],
    answer: &str,
) -> Result<Vec<u32>> {
    let whole = tokenizer.encode(&format!("{before}{answer}"), false)?;
    match whole.strip_prefix(tokens) {
        Some(answer) => Ok(answer.to_vec()),
        None => Ok(tokenizer.encode(answer, false)?),
    }
}

/// The largest number from 1 to `most` whose size is at most `length`, for sizes that grow; `None`
/// if not even 1 is. What is returned has been measured, so a size that does not always grow leaves
/// room, and never takes too much.
pub(crate) fn largest(
    most: usize,
    length: usize,
    mut size: impl FnMut(usize) -> Result<usize>,
) -> Result<Option<usize>> {
    // One beyond it is a number too.
    let most = most.min(usize::MAX - 1);
    let (mut fits, mut next) = (0, 1);
    while next <= most && size(next)? <= length {
        fits = next;
        next = next.saturating_mul(2).min(most.max(next + 1));
    }
    let mut too_large = next.min(most + 1);
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        if size(middle)? <= length {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    Ok((fits > 0).then_some(fits))
}

/// A number of `count` digits, as text.
pub(crate) fn digits(rng: &mut ChaCha8Rng, count: usize) -> String {
    (0..count).map(|_| char::from(b'0' + rng.random_range(0..10_u8))).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, iter};

    use super::*;

    #[test]
    fn a_tokenizer_without_tokens_for_a_text_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        // What it does not know it passes over.
        let file = r#"{"model": {"type": "BPE", "vocab": {"7": 0}, "merges": []}}"#;
        fs::write(dir.path().join("tokenizer.json"), file).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let mut asked = 0;
        let endless = iter::repeat_with(|| {
            asked += 1;
            "blue".to_owned()
        });
        let error = Hay::fill(&tokenizer, endless, 10).unwrap_err();
        assert!(matches!(&error, Error::NoTokens { text } if text == "blue"), "{error}");
        assert_eq!(asked, PATIENCE + 1);
        // Pieces without tokens among others are no failure.
        let pieces = ["7", "blue"].into_iter().cycle().map(str::to_owned);
        let hay = Hay::fill(&tokenizer, pieces, 2 * PATIENCE).unwrap();
        assert_eq!(hay.tokens, vec![0; 2 * PATIENCE]);
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        let mut calls = 0;
        for most in [1, 2, 3, 7, 64, 1000] {
            for length in 0..70 {
                let found = largest(most, 3 * length, |n| {
                    assert!((1..=most).contains(&n), "{n} of {most}");
                    calls += 1;
                    Ok(3 * n)
                });
                let expected = length.min(most);
                assert_eq!(found.unwrap(), (expected > 0).then_some(expected), "{most} {length}");
            }
        }
        assert!(calls < 6 * 70 * 14, "{calls}");
    }

    #[test]
    fn room_is_what_is_left() {
        assert_eq!(room("x", 10, 9).unwrap(), 1);
        assert!(room("x", 10, 10).unwrap_err().to_string().contains("10 tokens"));
        assert!(room("x", 9, 10).is_err());
    }
}
