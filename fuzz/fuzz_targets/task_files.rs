//! Files of tasks and predictions, with every metric.
#![no_main]

use std::{fs, sync::LazyLock};

use briquette_eval::{metrics::Metric, score::Scoring};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

fuzz_target!(|bytes: &[u8]| {
    let scoring = Scoring {
        prediction: "prediction".into(),
        answers: "answers".into(),
        classes: Some("classes".into()),
        metrics: Metric::all().to_vec(),
        skip_damaged: true,
    };
    for name in ["said.jsonl", "said.json", "said.csv"] {
        let path = FOLDER.path().join(name);
        fs::write(&path, bytes).unwrap();
        let _ = scoring.score(&path);
    }
});
