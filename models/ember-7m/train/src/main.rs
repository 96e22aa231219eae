//! Trains the checkpoint ember-7m, or a model like it on a text of one's own.

mod data;
mod model;
mod plan;
#[cfg(test)]
mod tests;
mod train;

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::DType;
use burn_store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, SafetensorsStore,
};
use clap::{Parser, Subcommand};

use crate::{
    data::{Corpus, Tasks, copy_model, prepare},
    model::Ember,
    plan::Plan,
    train::{Training, trained},
};

/// Trains ember-7m, or a model of its architecture on a text of one's own.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Folder of the training: tokens, checkpoint, log.
    #[arg(long, global = true, default_value = "out/ember-7m")]
    run: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Turn a folder of *.txt into tokens.
    Prepare {
        /// Folder of *.txt, UTF-8.
        #[arg(long)]
        text: PathBuf,
        /// Read at most this much of each file.
        #[arg(long)]
        max_chars: Option<usize>,
        /// Folder with the tokenizer.
        #[arg(long, default_value = "models/ember-7m")]
        model: PathBuf,
        /// The architecture.
        #[arg(long, default_value = "models/ember-7m/config.json")]
        config: PathBuf,
        /// Words that tasks use as keys, `{"train": [..]}`.
        #[arg(long, default_value = "models/ember-7m/recipe/words.json")]
        words: PathBuf,
    },
    /// Train, or go on with the training in --run.
    Train {
        /// flex, which multiplies in f32, or cuda, in bf16.
        #[arg(long, default_value = "flex")]
        device: String,
        /// End this call after so many steps; the next one goes on.
        #[arg(long)]
        pause_after: Option<usize>,
        /// Seeds weights and sequences.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Write a training's weights as a Hugging Face folder, in bf16.
    Export {
        /// Folder to write.
        #[arg(long)]
        model: PathBuf,
    },
}

fn main() -> Result<()> {
    let Cli { command, run } = Cli::parse();
    match command {
        Command::Prepare { text, max_chars, model, config, words } => {
            println!("{} tokens", prepare(&text, &run, &model, [&config, &words], max_chars)?);
        }
        Command::Train { device, pause_after, seed } => {
            let dtype = if device == "flex" { DType::F32 } else { DType::BF16 };
            let device = briquette::device::open(&device)?;
            let (plan, tasks) = (Plan::default(), Tasks::new(Corpus::load(&run)?)?);
            let over =
                Training::start(&plan, &tasks, &run, (device, dtype), seed)?.run(pause_after)?;
            println!("{}", if over { "finished" } else { "paused: the next call goes on" });
        }
        Command::Export { model } => {
            export(&trained(&run, &briquette::device::open("flex")?)?, &run, &model)?;
        }
    }
    Ok(())
}

/// Writes a Hugging Face folder: weights in bf16, the other files as they lie in `run`.
fn export(model: &Ember, run: &Path, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let mut store = SafetensorsStore::from_file(out.join("model.safetensors"))
        .with_to_adapter(BurnToPyTorchAdapter.chain(FloatCastAdapter::to(DType::BF16)))
        .metadata("format", "pt")
        .overwrite(true);
    model.save_into(&mut store)?;
    copy_model(run, out)
}
