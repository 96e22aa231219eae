//! Results of a run that never was, for tests of what is made of results.

use std::{collections::BTreeMap, fs, path::Path};

use briquette_eval::{
    metrics::Metric,
    record::{Answer, CacheBytes, KeptTokens, Key, Outcome, Record},
    tasks::Question,
};
use serde_json::json;

/// Markup that a page must show as text, and never run.
pub(crate) const HOSTILE: &str = "</script><img src=x onerror=alert(1)>'\"&";

/// A record of the model `m`.
pub(crate) fn record(
    policy: &str,
    budget: &str,
    task: &str,
    sample: usize,
    ask: Option<Question>,
    outcome: Outcome,
) -> Record {
    let key = Key {
        model: "ember-7m".into(),
        policy: policy.into(),
        budget: budget.into(),
        seed: 0,
        task: task.into(),
        sample: sample.to_string(),
        ask,
    };
    Record { key, outcome, seconds: 0.5, began_seconds: None, ended_seconds: None }
}

/// Answers with these scores, one a turn.
pub(crate) fn answers(
    axes: &[(&str, u64)],
    said: &str,
    scores: &[f64],
    cache: CacheBytes,
) -> Outcome {
    Outcome::Answers {
        axes: axes.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        answers: scores
            .iter()
            .map(|score| Answer {
                said: said.into(),
                references: vec!["4711".into()],
                classes: Vec::new(),
                metric: Metric::Contains,
                score: *score,
                beside: BTreeMap::new(),
                right_tokens: None,
            })
            .collect(),
        cache,
        prefill_seconds: Some(0.25),
        decode_seconds: 0.06,
        decoded_tokens: 6,
    }
}

/// Writes the file a run would leave.
pub(crate) fn write(path: &Path, records: &[Record]) {
    let settings = json!({
        "name": "made up",
        "briquette": "0.1.0",
        "burn": "0.22.1",
        "date": "2026-11-21",
        "device": "flex (CPU)",
        "models": [{ "label": "ember-7m", "dtype": "f32", "layers": 8, "kv_heads": 2 }],
        "evil": HOSTILE,
    });
    let mut text = settings.to_string() + "\n";
    for record in records {
        text += &(serde_json::to_string(record).unwrap() + "\n");
    }
    fs::write(path, text).unwrap();
}

/// Numbers in 0..1 that look random and are always the same (Numerical Recipes' LCG).
pub(crate) struct Numbers(pub(crate) u32);

impl Numbers {
    /// The next.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(self.0 >> 8) / f64::from(1 << 24)
    }
}

/// Policies at budgets, and how good each is: quality in 0..=1 at the largest budget.
const POLICIES: [(&str, &[&str], f64); 7] = [
    ("full", &["-"], 0.95),
    ("snapkv:kernel=15", &["64", "128", "25%"], 0.85),
    ("h2o", &["64", "128", "25%"], 0.6),
    ("streaming-llm", &["64", "128", "25%"], 0.3),
    ("compresskv", &["64", "128", "25%"], 0.9),
    ("adakv", &["64", "128", "25%"], 0.8),
    ("kivi", &["-"], 0.9),
];

/// A run with every kind of record.
pub(crate) fn run() -> Vec<Record> {
    let mut numbers = Numbers(7);
    let mut records = Vec::new();
    for (policy, budgets, quality) in POLICIES {
        for (place, budget) in budgets.iter().enumerate() {
            let share = if policy == "full" {
                1.0
            } else if *budget == "-" {
                0.19
            } else {
                [0.08, 0.16, 0.26][place]
            };
            let quality = if *budget == "-" { quality } else { quality * [0.55, 0.8, 1.0][place] };
            answered(&mut records, policy, budget, quality, share, &mut numbers);
            continued(&mut records, policy, budget, quality, share, &mut numbers);
        }
    }
    let reason = "cake: 8 layers share 64 tokens; a window of 32 takes 256".to_owned();
    records.push(record("cake", "64", "needle", 0, None, Outcome::Unavailable { reason }));
    records
}

fn held(share: f64, length: u64) -> CacheBytes {
    let full = length as usize * 4096;
    let spare = full / 8;
    CacheBytes { bytes: (share * full as f64) as usize + spare, spare: Some(spare), full }
}

fn answered(
    records: &mut Vec<Record>,
    policy: &str,
    budget: &str,
    quality: f64,
    share: f64,
    numbers: &mut Numbers,
) {
    for ask in [Question::Before, Question::After] {
        let quality =
            if ask == Question::After && policy != "full" { 0.7 * quality } else { quality };
        let mut sample = 0;
        for length in [512, 1024, 2048] {
            for depth in [0, 25, 50, 75, 100] {
                for _ in 0..2 {
                    let score = f64::from(u8::from(numbers.next() < quality));
                    let said = if score == 1.0 { "4711" } else { HOSTILE };
                    let axes = [("length", length), ("depth", depth)];
                    let outcome = answers(&axes, said, &[score], held(share, length));
                    records.push(record(policy, budget, "needle", sample, Some(ask), outcome));
                    sample += 1;
                }
            }
        }
        for sample in 0..12 {
            let turns: Vec<f64> = (0..3)
                .map(|turn| {
                    (numbers.next() * quality * 1.4 - 0.1 * f64::from(turn)).clamp(0.0, 1.0)
                })
                .collect();
            let outcome = answers(&[], "a summary", &turns, held(share, 900));
            records.push(record(policy, budget, "key-value", sample, Some(ask), outcome));
        }
    }
}

const WORDS: [&str; 12] = [
    "The", " lamp", " of", " the", " harbour", " was", " lit", ",", " <b>and", " the", " rain",
    ".\n",
];

fn continued(
    records: &mut Vec<Record>,
    policy: &str,
    budget: &str,
    quality: f64,
    share: f64,
    numbers: &mut Numbers,
) {
    let (layers, heads, tokens) = (8, 2, 240);
    for sample in 0..4 {
        let over = 0.5 * (1.0 - quality);
        let nats = (0..600)
            .map(|at| {
                let settled = 3.0 + 2.0 / f64::from(1 + at / 20);
                (settled + over + 0.8 * (numbers.next() - 0.5)) as f32
            })
            .collect();
        let cache = held(share, 600);
        let outcome = Outcome::Text { prompt: 64, nats, cache };
        records.push(record(policy, budget, "pg19", sample, None, outcome));

        let error = |layer: usize| (1.0 - quality) * (0.3 + 0.08 * layer as f64);
        let full = policy == "full";
        let spread = if policy == "adakv" { 0.8 } else { 0.0 };
        let held_by = |layer: usize, head: usize| {
            let shift = spread * (((layer * 3 + head * 5) % 8) as f64 / 7.0 - 0.5);
            (share * (1.0 + shift) * tokens as f64) as usize
        };
        let kept = KeptTokens {
            tokens: (0..tokens).map(|i| WORDS[i % WORDS.len()].to_owned()).collect(),
            share: (0..tokens)
                .map(|_| {
                    if full {
                        1.0
                    } else {
                        (numbers.next() < share) as u8 as f32 * numbers.next() as f32
                    }
                })
                .collect(),
            heads: (0..layers)
                .map(|layer| {
                    (0..heads)
                        .map(|head| if full { tokens } else { held_by(layer, head) })
                        .collect()
                })
                .collect(),
        };
        let outcome = Outcome::Fidelity {
            output_error: (0..layers)
                .map(|layer| if full { 0.0 } else { error(layer) * (0.9 + 0.2 * numbers.next()) })
                .collect(),
            kl: (0..32).map(|_| if full { 0.0 } else { (over * numbers.next()) as f32 }).collect(),
            agreement: if full { 1.0 } else { 1.0 - 0.5 * (1.0 - quality) * numbers.next() },
            overlap: (0..layers)
                .map(|_| (0..heads).map(|_| quality * (0.8 + 0.2 * numbers.next())).collect())
                .take(if full { 0 } else { layers })
                .collect(),
            kept,
            cache,
        };
        records.push(record(policy, budget, "fidelity", sample, None, outcome));
    }
}
