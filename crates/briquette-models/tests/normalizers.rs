//! Tokenizers whose normalizers are put together at random: each text becomes tokens or an error,
//! in memory that ends.

use std::fs;

use briquette_models::{Error, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

mod memory;

/// A step of any kind that writes more than it reads.
fn step() -> impl Strategy<Value = Value> {
    let content = || {
        (
            prop::sample::select(vec!["e", "eé", " a", "▁"]),
            prop::sample::select(vec![0, 1, 2, 30, 3000]),
        )
            .prop_map(|(text, times)| text.repeat(times))
    };
    let pattern = prop::sample::select(vec![
        json!({ "String": "e" }),
        json!({ "String": "" }),
        json!({ "String": " a" }),
        json!({ "Regex": "e*" }),
        json!({ "Regex": "." }),
        json!({ "Regex": " {2,}" }),
    ]);
    let plain = prop::sample::select(vec![
        json!({ "type": "NFKC" }),
        json!({ "type": "NFD" }),
        json!({ "type": "Lowercase" }),
        json!({ "type": "StripAccents" }),
        json!({ "type": "ByteLevel" }),
        json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true }),
    ]);
    let leaf = prop_oneof![
        (pattern, content()).prop_map(
            |(pattern, content)| json!({ "type": "Replace", "pattern": pattern, "content": content })
        ),
        content().prop_map(|prepend| json!({ "type": "Prepend", "prepend": prepend })),
        plain,
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop::collection::vec(inner, 0..4)
            .prop_map(|steps| json!({ "type": "Sequence", "normalizers": steps }))
    })
}

#[test]
fn no_normalizer_takes_all_memory() {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m/tokenizer.json");
    let file: Value = serde_json::from_str(&fs::read_to_string(own).unwrap()).unwrap();
    let text = (
        prop::sample::select(vec!["e", "ﷺ e", "a<|pad|>", "漢é "]),
        prop::sample::select(vec![1, 40, 4000]),
    )
        .prop_map(|(text, times)| text.repeat(times));
    let inputs = (step(), text);
    memory::bounded("no_normalizer_takes_all_memory", (150, 4096), inputs, |(step, text)| {
        let dir = tempfile::tempdir().unwrap();
        let mut file = file.clone();
        file["normalizer"] = step.clone();
        fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        match Tokenizer::load(dir.path()).and_then(|tokenizer| tokenizer.encode(&text, true)) {
            Ok(_) => true,
            Err(Error::Tokenizer(_)) => false,
            Err(other) => panic!("{step}: {other}"),
        }
    });
}
