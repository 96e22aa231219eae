//! Journals and results: what is there is never taken away but for a line that was cut, and damaged
//! ones where that was asked for.
#![no_main]

use std::{fs, sync::LazyLock};

use briquette_eval::{
    journal::{Accept, Journal},
    run::read_results,
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

fuzz_target!(|bytes: &[u8]| {
    let path = FOLDER.path().join("results.jsonl");
    fs::write(&path, bytes).unwrap();
    for damaged in [false, true] {
        let _ = read_results(&path, damaged);
    }
    let header = json!({ "briquette": "0.1.0", "name": "n" });
    let opened = Journal::open::<Value>(&path, &header, Accept::default());
    let left = fs::read(&path).unwrap();
    match opened {
        Ok(_) if bytes.is_empty() => {}
        Ok(_) => assert!(bytes.starts_with(&left) || left.starts_with(b"{\"briquette\":")),
        Err(_) => assert_eq!(left, bytes),
    }
});
