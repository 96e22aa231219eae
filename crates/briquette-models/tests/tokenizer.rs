//! The tokenizer of the embedded model.

mod common;

use std::fs;

use briquette_models::{Error, Tokenizer};
use common::{assert_refused, ember};
use serde_json::{Value, json};

fn tokenizer() -> Tokenizer {
    Tokenizer::load(ember()).unwrap()
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
fn a_text_in_memory_is_the_same_tokenizer() {
    let file = fs::read_to_string(ember().join("tokenizer.json")).unwrap();
    let ids = |tokenizer: Tokenizer| tokenizer.encode(TEXT, true).unwrap();
    assert_eq!(ids(Tokenizer::from_json(&file).unwrap()), ids(tokenizer()));
    assert_refused(Tokenizer::from_json("{"), &["tokenizer.json"]);
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
    assert_refused(Tokenizer::load(dir.path()), &["tokenizer.json"]);
}

#[test]
fn a_tokenizer_without_tokens_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "vocab": {}, "merges": [] },
    });
    fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    assert_refused(Tokenizer::load(dir.path()), &["no token"]);
}

/// The embedded model's tokenizer with other files beside it.
fn beside(files: &[(&str, Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(ember().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    for (name, file) in files {
        fs::write(dir.path().join(name), file.to_string()).unwrap();
    }
    dir
}

#[test]
fn tokens_of_the_files_beside_it_are_tokens() {
    let load = |files: &[(&str, Value)]| Tokenizer::load(beside(files).path());
    let cut = load(&[]).unwrap().encode("a<|im_start|> b", false).unwrap();
    assert!(cut.len() > 8, "{cut:?}");
    let listed = json!({ "added_tokens_decoder": {
        "0": { "content": "<|begin_of_text|>", "special": true, "normalized": false },
        "4096": { "content": "<|im_start|>", "special": true, "rstrip": true, "normalized": false },
        "4097": { "content": "<tool>", "special": false },
    } });
    let tokenizer = load(&[("tokenizer_config.json", listed)]).unwrap();
    let (a, b) = (cut[0], tokenizer.encode("b", false).unwrap()[0]);
    // What stands behind a token with `rstrip` is part of it; special ones are not shown.
    let ids = tokenizer.encode("a<|im_start|> b<tool>", false).unwrap();
    assert_eq!(ids, [a, 4096, b, 4097]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "ab<tool>");
    // Older folders have a file for them, which counts where that list is not there.
    let (older, config) = (json!({ "<|im_start|>": 4096 }), json!({ "eos_token": "<|im_start|>" }));
    let files = [("added_tokens.json", older), ("tokenizer_config.json", config)];
    let tokenizer = load(&files).unwrap();
    let ids = tokenizer.encode("a<|im_start|>b", false).unwrap();
    assert_eq!(
        (ids[..].to_vec(), tokenizer.decode(&ids).unwrap()),
        (vec![a, 4096, b], "ab".into())
    );
    // An id that another token has.
    let twice = json!({ "added_tokens_decoder": { "4095": { "content": "<|im_start|>" } } });
    let refused = load(&[("tokenizer_config.json", twice)]);
    assert_refused(refused, &["is 4095 in", "make it 4096"]);
}

/// The embedded model's `tokenizer.json`, changed.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, Error> {
    let dir = beside(&[]);
    let path = dir.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut file);
    fs::write(&path, file.to_string()).unwrap();
    Tokenizer::load(dir.path())
}

#[test]
fn dropout_is_not_used() {
    let plain = tokenizer();
    assert!(plain.warnings().is_empty());
    let expected = plain.encode(TEXT, true).unwrap();
    let dropping = changed(|file| file["model"]["dropout"] = json!(0.5)).unwrap();
    for _ in 0..8 {
        assert_eq!(dropping.encode(TEXT, true).unwrap(), expected);
    }
    assert!(dropping.warnings()[0].contains("dropout is 0.5"), "{:?}", dropping.warnings());
    assert!(changed(|file| file["model"]["dropout"] = json!(0.0)).unwrap().warnings().is_empty());
}

#[test]
fn a_tokenizer_that_names_what_is_not_there_is_refused() {
    let token = |ids: Value| json!({ "<x>": { "id": "<x>", "ids": ids, "tokens": ["<x>"] } });
    let piece = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let template = |single: Vec<Value>, tokens: Value| {
        json!({ "type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")],
                "special_tokens": tokens })
    };
    let refused = |processor: Value, part: &str| {
        for processor in
            [processor.clone(), json!({ "type": "Sequence", "processors": [processor] })]
        {
            assert_refused(changed(|file| file["post_processor"] = processor), &[part]);
        }
    };
    refused(template(vec![piece("<x>"), text("A")], json!({})), "writes `<x>`");
    refused(template(vec![piece("<x>"), text("A")], token(json!([1, 2]))), "2 ids and 1 tokens");
    refused(template(vec![text("B")], json!({})), "has text B");
    refused(template(vec![text("A"); 99], json!({})), "99 times");
    refused(template(vec![], json!({})), "0 times");
    let many = json!({ "<x>": { "id": "<x>", "ids": vec![1; 99], "tokens": vec!["<x>"; 99] } });
    refused(template([vec![piece("<x>"); 99], vec![text("A")]].concat(), many), "9801 tokens");
    let right = template(vec![piece("<x>"), text("A")], token(json!([7])));
    let tokenizer = changed(|file| file["post_processor"] = right).unwrap();
    assert_eq!(tokenizer.encode("b", true).unwrap()[0], 7);
}

#[test]
fn a_tokenizer_that_multiplies_is_refused() {
    let replace = |content: usize| json!({ "type": "Replace", "pattern": { "String": "e" }, "content": "e".repeat(content) });
    let sequence = |parts: Vec<Value>| json!({ "type": "Sequence", "normalizers": parts });
    let refused = |part: &str, value: Value, says: &str| {
        assert_refused(changed(|file| file[part] = value), &[says]);
    };
    refused("normalizer", sequence(vec![replace(1000); 3]), "added tokens");
    refused(
        "normalizer",
        json!({ "type": "Prepend", "prepend": "a".repeat(50_000_000) }),
        "added tokens",
    );
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    refused(
        "pre_tokenizer",
        json!({ "type": "Sequence", "pretokenizers": vec![bytes; 40] }),
        "pre_tokenizer",
    );
    refused(
        "decoder",
        json!({ "type": "Sequence", "decoders": vec![replace(1000); 3] }),
        "decoder",
    );

    // A text in which nothing grows may be as long as any.
    let normalizer = sequence(vec![
        json!({ "type": "Prepend", "prepend": "▁" }),
        json!({ "type": "NFKC" }),
        json!({ "type": "Lowercase" }),
        replace(2),
        replace(2),
        json!({ "type": "NFKD" }),
        json!({ "type": "StripAccents" }),
        json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "  " }),
    ]);
    let tokenizer = changed(|file| file["normalizer"] = normalizer).unwrap();
    assert!(tokenizer.encode(&"a word ".repeat(100_000), false).is_ok());
    // Of a short text three thousand times as much, of a long one not.
    let tokenizer = changed(|file| {
        file["normalizer"] = replace(3000);
        file["added_tokens"] = json!([]);
        file["post_processor"] = Value::Null;
    })
    .unwrap();
    assert!(tokenizer.encode("e", false).unwrap().len() > 100);
    match tokenizer.encode(&"e".repeat(1 << 20), false) {
        Err(Error::Tokenizer(message)) => {
            assert!(message.contains("bytes of a text of 1048576"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}
