//! Tokenizers whose normalizers are put together at random: each text becomes tokens or an error,
//! in memory that ends.

use std::{cell::Cell, fs};

use briquette_models::{Error, Tokenizer};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
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
    if !memory::alone("no_normalizer_takes_all_memory") {
        return;
    }
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m/tokenizer.json");
    let file: Value = serde_json::from_str(&fs::read_to_string(own).unwrap()).unwrap();
    let text = (
        prop::sample::select(vec!["e", "ﷺ e", "a<|pad|>", "漢é "]),
        prop::sample::select(vec![1, 40, 4000]),
    )
        .prop_map(|(text, times)| text.repeat(times));
    let config =
        ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let (encoded, refused) = (Cell::new(0), Cell::new(0));
    let more = |count: &Cell<u32>| count.set(count.get() + 1);
    let ran = TestRunner::new_with_rng(config, rng).run(&(step(), text), |(step, text)| {
        let dir = tempfile::tempdir().unwrap();
        let mut file = file.clone();
        file["normalizer"] = step.clone();
        fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        match Tokenizer::load(dir.path()).and_then(|tokenizer| tokenizer.encode(&text, true)) {
            Ok(_) => more(&encoded),
            Err(Error::Tokenizer(_)) => more(&refused),
            Err(other) => panic!("{step}: {other}"),
        }
        if let Some(found) = memory::most() {
            prop_assert!(found < 4096, "{found} MiB\n{step}");
        }
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    let (encoded, refused) = (encoded.get(), refused.get());
    assert!(encoded > 20 && refused > 20, "{encoded} encoded, {refused} refused");
}
