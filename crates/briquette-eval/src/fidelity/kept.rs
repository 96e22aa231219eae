//! Tokens of a prompt that a cache kept, and their texts.

use briquette_models::Tokenizer;

use crate::Result;

/// The share of all heads that hold each of the first `tokens` positions. `kept` is
/// `[layer][kv_head]`.
pub fn share_of_heads(kept: &[Vec<Vec<usize>>], tokens: usize) -> Vec<f32> {
    let mut count = vec![0_usize; tokens];
    let heads: usize = kept.iter().map(Vec::len).sum();
    for position in kept.iter().flatten().flatten() {
        if let Some(count) = count.get_mut(*position) {
            *count += 1;
        }
    }
    count.into_iter().map(|count| count as f32 / heads.max(1) as f32).collect()
}

/// The text of every token. Joined they are the text of all of them: a character that several
/// tokens make stands at the last of these, and a token that opens a text is empty.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) if the tokenizer fails.
pub fn token_texts(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<Vec<String>> {
    let mut stream = tokenizer.stream();
    let mut texts = Vec::with_capacity(tokens.len());
    for token in tokens {
        texts.push(stream.push(*token)?);
    }
    let rest = stream.finish()?;
    if let Some(last) = texts.last_mut() {
        last.push_str(&rest);
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn every_head_counts_once() {
        let kept = [vec![vec![0, 2], vec![2, 3]], vec![vec![2], vec![0, 1, 2, 3]]];
        assert_eq!(share_of_heads(&kept, 4), [0.5, 0.25, 1.0, 0.5]);
        assert_eq!(share_of_heads(&[], 2), [0.0, 0.0]);
    }

    #[test]
    fn texts_join_to_the_whole() {
        let tokenizer = testing::tokenizer();
        for text in ["It was a dark night.", "naïve → 你好, said the 🦀", ""] {
            let tokens = tokenizer.encode(text, true).unwrap();
            let texts = token_texts(&tokenizer, &tokens).unwrap();
            assert_eq!(texts.len(), tokens.len());
            assert_eq!(texts.concat(), text);
        }
        assert!(token_texts(&tokenizer, &[]).unwrap().is_empty());
    }
}
