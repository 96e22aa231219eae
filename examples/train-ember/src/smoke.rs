//! The run without a command: a tiny model on a text built in, for a few steps, stopped and
//! continued.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use briquette_models::ModelConfig;
use burn::tensor::DType;

use crate::{
    Line, Options, Plan, Span, Stage,
    data::{Corpus, Mixture, Tasks, Words},
    prepare, train,
};

/// The sentences that the command `briquette` hides its needles in, one per line.
const TEXT: &str = include_str!("../../../crates/briquette-eval/assets/haystack.txt");

pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("../../models/ember-7m");
    let dir = std::env::temp_dir().join(format!("train-ember-{}", std::process::id()));
    let result = smoke(&model, &dir);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    result
}

fn smoke(model: &Path, dir: &Path) -> Result<()> {
    let text = dir.join("text");
    fs::create_dir_all(&text)?;
    // The last fifth is held out.
    let lines: Vec<&str> = TEXT.lines().collect();
    let (train_on, apart) = lines.split_at(lines.len() * 4 / 5);
    fs::write(text.join("train.txt"), train_on.join(" "))?;
    fs::write(text.join("held-out.txt"), apart.join(" "))?;
    let words = fs::read_to_string(model.join("recipe/words.json"))?;
    let words: Words = serde_json::from_str(&words)?;
    let data = dir.join("data");
    let [tokens, held_out] = prepare(&text, &data, model, &words, &["held-out".to_owned()], None)?;
    println!("{tokens} tokens to train on, {held_out} held out");

    let config = ModelConfig {
        hidden_size: 64,
        intermediate_size: 128,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        ..ModelConfig::from_file(model.join("config.json"))?
    };
    let stage = |length, share| Stage {
        lengths: vec![length],
        step_tokens: 1024,
        share,
        enough: None,
        enough_variables: None,
        probe_needles: 1,
        mixture: Mixture { prose: 1.0, ..Mixture::default() },
    };
    let plan = Plan {
        micro_tokens: 512,
        warmup_steps: 5,
        probe_steps: 10,
        probe_samples: 8,
        stages: vec![stage(128, 0.5), stage(256, 0.5)],
        ..Plan::default()
    };
    let tasks = Arc::new(Tasks::new(Arc::new(Corpus::load(&data)?))?);
    let device = briquette::device::open("flex")?;
    let options = Options {
        out: dir.join("out"),
        span: Span::Steps(20),
        resume: false,
        change_plan: false,
        pause_after: None,
        pause_after_steps: Some(12),
        checkpoint_seconds: 60.0,
        log_steps: 2,
        threads: 1,
        seed: 0,
        dtype: DType::F32,
        show: true,
    };
    let first = train(&config, &plan, &tasks, &device, &options)?;
    println!("stopped after {} steps, and on from the checkpoint", first.position.step);
    let options = Options { resume: true, pause_after_steps: None, ..options };
    let second = train(&config, &plan, &tasks, &device, &options)?;
    ensure!(second.finished, "the training has not finished");
    let loss = |line: Option<&Line>| match line {
        Some(Line::Steps { loss, .. }) => Some(*loss),
        _ => None,
    };
    let steps = |line: &&Line| matches!(line, Line::Steps { .. });
    let before = loss(first.lines.iter().find(steps)).context("no loss at first")?;
    let after = loss(second.lines.iter().rev().find(steps)).context("no loss at last")?;
    ensure!(after < before, "the loss rose from {before:.3} to {after:.3}");
    println!("the loss fell from {before:.3} to {after:.3}\n");
    println!(
        "The real one, on a GPU and a folder of *.txt:\n\
         \x20 cargo build --release --workspace --bin train-ember --no-default-features \
         --features train-ember/flex,train-ember/cuda,train-ember/fusion,train-ember/autotune\n\
         \x20 target/release/train-ember prepare --text TEXT --out data --held-out NAME\n\
         \x20 target/release/train-ember train --data data --out run --device cuda --minutes 18\n\
         \x20 target/release/train-ember evaluate --data data --out run --device cuda\n\
         \x20 target/release/train-ember export --data data --out run --model model"
    );
    Ok(())
}
