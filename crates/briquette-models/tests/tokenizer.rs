//! The tokenizer of the embedded model.

use briquette_models::{Error, Tokenizer};

fn tokenizer() -> Tokenizer {
    Tokenizer::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m")).unwrap()
}

const TEXT: &str = "The naïve café serves 42 crêpes — 日本語, Ελλάδα and 🦀🔥 at £3.50.\n";

#[test]
fn text_survives_encoding() {
    let tokenizer = tokenizer();
    let plain = tokenizer.encode(TEXT, false).unwrap();
    assert_eq!(tokenizer.decode(&plain).unwrap(), TEXT);
    let begin = tokenizer.token_id("<|begin_of_text|>").unwrap();
    let special = tokenizer.encode(TEXT, true).unwrap();
    assert_eq!(special[0], begin);
    assert_eq!(special[1..], plain);
    assert_eq!(tokenizer.decode(&special).unwrap(), TEXT);
    assert_eq!(tokenizer.vocab_size(), 4096);
}

#[test]
fn a_stream_never_splits_a_character() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode(TEXT, true).unwrap();
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    let mut waited = false;
    for id in ids {
        let piece = stream.push(id).unwrap();
        assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
        waited |= piece.is_empty() && !text.is_empty();
        text.push_str(&piece);
    }
    assert!(waited, "no character of this text is spread over tokens");
    assert_eq!(text, TEXT);
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn an_unfinished_character_is_shown_at_the_end() {
    let tokenizer = tokenizer();
    let crab = tokenizer.encode("🦀", false).unwrap();
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(crab[0]).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{FFFD}");
}

#[test]
fn an_absent_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    match Tokenizer::load(dir.path()) {
        Err(Error::Tokenizer(message)) => assert!(message.contains("tokenizer.json"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tokenizer_without_tokens_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "vocab": {}, "merges": [] },
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    match Tokenizer::load(dir.path()) {
        Err(Error::Tokenizer(message)) => assert!(message.contains("no token"), "{message}"),
        other => panic!("{other:?}"),
    }
}
