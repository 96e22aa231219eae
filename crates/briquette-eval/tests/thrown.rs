//! Whatever is in a file that is read: an error, never a panic, a hang or memory that nothing
//! holds. Seeds are files as they should be; each is damaged in as many ways as asked for, by a
//! generator that gives the same ones again.

mod asked;

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use asked::asked;
use briquette::{Budget, Policy, Profile, methods};
use briquette_eval::{
    journal::{Accept, Journal},
    metrics::Metric,
    run::{Header, RunFile, Tasks, read_results},
    score::Scoring,
    tasks::NeedleTemplate,
};
use briquette_models::{ChatTemplate, Model, ModelConfig, Tokenizer};
use burn::tensor::DType;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

/// Damaged copies of each seed: a number in this variable, or these.
const COPIES: &str = "BRIQUETTE_THROWN";
const FEW: usize = 60;
/// Longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(20);

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Replacements of a piece.
const PIECES: [&str; 24] = [
    "0",
    "-1",
    "1e308",
    "1e999",
    "NaN",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "10000000000000",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"\\u0000\"",
    "\u{1b}[2J",
    "\u{feff}",
    "{context}",
    "\r\n",
    ",",
    "\"",
    "]]]]]]]]",
    "[[[[[[[[",
    "\u{e000}",
];

/// The seed with a few things wrong.
fn damaged(seed: &[u8], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..rng.random_range(1..4) {
        let length = bytes.len();
        let at = rng.random_range(0..length.max(1)).min(length);
        match rng.random_range(0..7) {
            0 => bytes.truncate(at),
            1 if length > 0 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 if length > 0 => bytes[at] = rng.next_u32() as u8,
            // A number becomes another.
            3 | 4 => {
                let digits: Vec<usize> =
                    (0..length).filter(|&at| bytes[at].is_ascii_digit()).collect();
                if let Some(&start) = digits.get(rng.random_range(0..digits.len().max(1))) {
                    let end = (start..length).find(|&at| !bytes[at].is_ascii_digit());
                    let piece = PIECES[rng.random_range(0..PIECES.len())];
                    bytes.splice(start..end.unwrap_or(length), piece.bytes());
                }
            }
            5 => {
                let piece = PIECES[rng.random_range(0..PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            _ => {
                let end = (at + rng.random_range(0..40_usize)).min(length);
                let copy: Vec<u8> = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    bytes
}

/// Gives `read` the seed, which it must take, and damaged copies of it, of which it must refuse
/// some.
fn throw(name: &str, seed: &[u8], read: impl Fn(&[u8]) -> bool) {
    let (copies, refused) = thrown(name, seed, read);
    // Damage that nothing notices would be no test.
    assert!(copies < 20 || refused > 0, "{name}: all {copies} copies were taken");
}

/// Gives `read` the seed, which it must take, and damaged copies of it: how many, and how many were
/// refused.
fn thrown(name: &str, seed: &[u8], read: impl Fn(&[u8]) -> bool) -> (usize, usize) {
    assert!(read(seed), "{name}: the seed itself is refused");
    let copies = std::env::var(COPIES).ok().and_then(|copies| copies.parse().ok()).unwrap_or(FEW);
    let (mut panicked, mut refused) = (Vec::new(), 0);
    for number in 0..copies {
        let mut rng = ChaCha8Rng::seed_from_u64(number as u64);
        let bytes = damaged(seed, &mut rng);
        let start = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| read(&bytes))) {
            Ok(taken) => refused += usize::from(!taken),
            Err(_) => panicked.push(number),
        }
        assert!(start.elapsed() < PATIENCE, "{name}, copy {number}: {:?}", start.elapsed());
    }
    println!("{name}: {refused} of {copies} damaged copies refused");
    assert!(panicked.is_empty(), "{name}: copies {panicked:?} panic");
    (copies, refused)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file whose content is given to `read` as a path.
fn at(dir: &Path, name: &str, read: impl Fn(&Path) -> bool) -> impl Fn(&[u8]) -> bool {
    let path = dir.join(name);
    move |bytes| {
        fs::write(&path, bytes).unwrap();
        read(&path)
    }
}

#[test]
fn policies_and_profiles() {
    for method in methods() {
        let policy = Policy::named(&method.name, None).unwrap();
        let policy = policy.with_default_budget(Budget::Tokens(64));
        let toml = policy.to_toml().unwrap();
        throw(&method.name, toml.as_bytes(), |bytes| Policy::from_toml(&text(bytes)).is_ok());
        let json = policy.to_json().unwrap();
        throw(&method.name, json.as_bytes(), |bytes| Policy::from_json(&text(bytes)).is_ok());
    }
    for budget in ["256", "25%", "0.25", "512KiB", "1.5GB"] {
        throw(budget, budget.as_bytes(), |bytes| text(bytes).parse::<Budget>().is_ok());
    }
    let dir = tempfile::tempdir().unwrap();
    let profile = fs::read(Path::new(ROOT).join("models/ember-7m/profile.json")).unwrap();
    let read = |path: &Path| Profile::from_file(path).is_ok_and(|profile| profile.check().is_ok());
    throw("profile", &profile, at(dir.path(), "profile.json", read));
}

#[test]
fn configurations_tokenizers_and_templates() {
    let fixtures = Path::new(ROOT).join("crates/briquette-models/tests/fixtures");
    for entry in fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path().join("config.json");
        let Ok(config) = fs::read(&path) else { continue };
        if ModelConfig::from_file(&path).is_err() {
            // One that is refused stands among them.
            continue;
        }
        let name = path.display().to_string();
        throw(&name, &config, |bytes| ModelConfig::from_json(&text(bytes)).is_ok());
    }
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true },
        "post_processor": null, "decoder": { "type": "ByteLevel", "add_prefix_space": true,
            "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false,
            "vocab": { "T": 0, "h": 1, "e": 2, "n": 3, "u": 4, "m": 5, "b": 6, "r": 7, "i": 8,
                "s": 9, "7": 10, ".": 11, "\u{120}": 12, "Th": 13 },
            "merges": [["T", "h"]] },
    });
    let load = |path: &Path| {
        let loaded = Tokenizer::load(path.parent().unwrap());
        loaded.is_ok_and(|tokenizer| {
            let ids = tokenizer.encode("The number is 7.", true).unwrap_or_default();
            tokenizer.decode(&ids).is_ok()
        })
    };
    let seed = serde_json::to_vec(&tokenizer).unwrap();
    throw("tokenizer", &seed, at(dir.path(), "tokenizer.json", load));
    let template =
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
    // Numbers and texts that filters and loops multiply.
    let filters = "{% for m in messages %}{% for i in range(9) %}{{ '%5s' | format(m.role) }}{{ [1, 2] | join('-') }}\
                   {{ [1, 2, 3] | slice(2) | list | length }}{{ [1, 2, 3] | batch(2, 0) | list | length }}\
                   {{ 'ab' * 3 }}{{ not not (1 + 2) }}{% endfor %}{% endfor %}";
    for (name, template) in [("chat template", template), ("chat template of filters", filters)] {
        throw(name, template.as_bytes(), |bytes| {
            let message = [briquette_models::ChatMessage::new("user", "hello")];
            ChatTemplate::new(text(bytes), Some("<s>".into()), None)
                .is_ok_and(|template| template.render(&message, true).is_ok())
        });
    }
}

/// A whole checkpoint of one layer, with nothing but zeros.
fn checkpoint() -> (Value, Vec<u8>) {
    let config = json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 16, "tie_word_embeddings": true,
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![16, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
        (layer("input_layernorm"), vec![8]),
        (layer("post_attention_layernorm"), vec![8]),
    ];
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let inner = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    shapes.extend(square.into_iter().chain(inner).map(|name| (layer(name), vec![8, 8])));
    let zeros = vec![0_u8; 4 * 16 * 8];
    let views = shapes.iter().map(|(name, shape)| {
        let bytes = 4 * shape.iter().product::<usize>();
        (name, TensorView::new(Dtype::F32, shape.clone(), &zeros[..bytes]).unwrap())
    });
    (config, safetensors::serialize(views, None).unwrap())
}

#[test]
fn checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let device = briquette::device::open("flex").unwrap();
    let (config, weights) = checkpoint();
    let load = |path: &Path| Model::load(path.parent().unwrap(), &device, DType::F32).is_ok();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    // Of the file the header is what is understood.
    throw("weights", &weights, at(dir.path(), "model.safetensors", load));
    fs::write(dir.path().join("model.safetensors"), &weights).unwrap();
    throw("configuration", config.to_string().as_bytes(), at(dir.path(), "config.json", load));

    let sharded = tempfile::tempdir().unwrap();
    fs::write(sharded.path().join("config.json"), config.to_string()).unwrap();
    fs::write(sharded.path().join("a.safetensors"), &weights).unwrap();
    let index = json!({ "weight_map": { "model.norm.weight": "a.safetensors" } }).to_string();
    let read = at(sharded.path(), "model.safetensors.index.json", load);
    throw("index", index.as_bytes(), read);
}

#[test]
fn run_files_journals_and_forms() {
    for name in ["five-policies.toml", "all-methods.toml", "generated-tasks.toml"] {
        let path = Path::new(ROOT).join("runs").join(name);
        let file = fs::read(&path).unwrap();
        throw(name, &file, |bytes| RunFile::parse(&text(bytes), &path, Path::new("runs")).is_ok());
    }
    let dir = tempfile::tempdir().unwrap();
    let header = json!({ "briquette": "0.1.0", "name": "n" });
    let line = json!({ "n": 1, "x": 0.25, "list": [1, 2, 3] });
    let journal = format!("{header}\n{line}\n{line}\n");
    for damaged in [false, true] {
        let accept = Accept { damaged, ..Accept::default() };
        let open = |path: &Path| Journal::open::<Value>(path, &header, accept).is_ok();
        throw("journal", journal.as_bytes(), at(dir.path(), "a.jsonl", open));
    }
    let line = r#"{"model":"m","policy":"p","budget":"-","seed":0,"task":"","sample":"","kind":"unavailable","reason":"r","seconds":0.1,"of":"-"}"#;
    let header = serde_json::to_value(Header::new("n".into(), "flex", BTreeMap::new())).unwrap();
    let results = format!("{header}\n{line}\n{line}\n");
    for damaged in [false, true] {
        let read = |path: &Path| read_results(path, damaged).is_ok();
        throw("results", results.as_bytes(), at(dir.path(), "results.jsonl", read));
    }
    let form = "introduction = \"Read.\"\nneedle = \" {word} is {number}.\"\nquestion = \"{word}?\"\nanswer = \" {number}\"\n";
    let read = |path: &Path| NeedleTemplate::read(path.to_str().unwrap()).is_ok();
    throw("form", form.as_bytes(), at(dir.path(), "form.toml", read));
}

#[test]
fn task_files_and_predictions() {
    let tokenizer = Tokenizer::load(Path::new(ROOT).join("models/ember-7m")).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/files");
    let dir = tempfile::tempdir().unwrap();
    let tasks = [
        ("longbench", "longbench/musique.jsonl", "dataset = \"musique\""),
        ("longbench", "longbench/trec_e.jsonl", "dataset = \"trec\""),
        ("longbench-v2", "longbench-v2.json", ""),
        ("infinite-bench", "infinite_bench/passkey.jsonl", "dataset = \"passkey\""),
        ("infinite-bench", "infinite_bench/math_calc.jsonl", "dataset = \"math_calc\""),
        ("gsm8k", "gsm8k/test.jsonl", "shots = 1"),
        ("coqa", "coqa.json", ""),
        ("truthful-qa", "TruthfulQA.csv", ""),
        ("zero-scrolls", "zero_scrolls/gov_report.jsonl", "dataset = \"gov_report\""),
        ("questions", "longbench/musique.jsonl", "question = \"{input}\"\nmetric = \"qa-f1\""),
    ];
    for (family, file, more) in tasks {
        let seed: PathBuf = fixtures.join(file);
        let name = seed.file_name().unwrap().to_str().unwrap();
        for skip in [false, true] {
            let file = dir.path().join(name);
            let spec = format!("[[{family}]]\nfile = {file:?}\nskip-damaged = {skip}\n{more}\n");
            let tasks: Tasks =
                toml::from_str(&spec).unwrap_or_else(|error| panic!("{spec}{error}"));
            let task = &asked(&tasks, Path::new(""))[0].task;
            let read = |_: &Path| task.load(&tokenizer, 0).is_ok();
            let seed = fs::read(&seed).unwrap();
            thrown(&format!("{family}, {name}"), &seed, at(dir.path(), name, read));
        }
    }
    let scoring = Scoring {
        prediction: "prediction".into(),
        answers: "answers".into(),
        classes: Some("classes".into()),
        metrics: Metric::all().to_vec(),
        skip_damaged: false,
    };
    let line = "{\"prediction\":\"the answer is (B), 42 %: Paragraph 3\",\"answers\":[\"B\",\"42\"],\"classes\":[\"B\"]}\n";
    let read = |path: &Path| scoring.score(path).is_ok();
    throw("predictions", line.repeat(3).as_bytes(), at(dir.path(), "said.jsonl", read));
    let table = "prediction,answers,classes\n\"a, b\",\"[\"\"a\"\"]\",b\nc,d,e\n";
    throw("predictions", table.as_bytes(), at(dir.path(), "said.csv", read));
}

/// The places of all numbers of a task as a run file has it.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at),
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| places(value, format!("{at}/{key}"), found));
        }
        _ => {}
    }
}

#[test]
fn parameters_of_generated_tasks() {
    let tokenizer = Tokenizer::load(Path::new(ROOT).join("models/ember-7m")).unwrap();
    let numbers = json!([0, 1, 3, 100, 10_000_000_000_u64, i64::MAX, u64::MAX, -1, 0.5, 1e300]);
    let mut panicked = Vec::new();
    for family in [
        "needle",
        "variable-tracking",
        "common-words",
        "frequent-words",
        "passage-retrieval",
        "passage-count",
        "key-value",
        "multi-turn",
    ] {
        let default: Tasks = serde_json::from_value(json!({ family: [{}] })).unwrap();
        let mut task = serde_json::to_value(default).unwrap()[family][0].clone();
        // Lengths are held to the context of a model before samples are made.
        for (key, value) in
            [("lengths", json!([512])), ("depths", json!([50])), ("samples", json!(1))]
        {
            if task.get(key).is_some() {
                task[key] = value;
            }
        }
        let mut all = Vec::new();
        places(&task, String::new(), &mut all);
        assert!(all.contains(&"/samples".to_owned()), "{task}");
        for at in all {
            for number in numbers.as_array().unwrap() {
                let mut task = task.clone();
                *task.pointer_mut(&at).unwrap() = number.clone();
                let Ok(tasks) = serde_json::from_value::<Tasks>(json!({ family: [task] })) else {
                    continue;
                };
                let start = Instant::now();
                let task = &asked(&tasks, Path::new(""))[0].task;
                let made = || drop(task.samples(&tokenizer, 0));
                if catch_unwind(AssertUnwindSafe(made)).is_err() {
                    panicked.push(format!("{family}{at} = {number}"));
                }
                let took = start.elapsed();
                assert!(took < PATIENCE, "{family}{at} = {number}: {took:?}");
            }
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
}
