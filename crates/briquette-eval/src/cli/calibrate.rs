use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::{
    haystack::HaystackArgs,
    jobs::JobsArgs,
    model::{Loaded, ModelArgs},
    progress,
};
use crate::{
    calibrate::{Calibrated, Calibration, Plan},
    tasks::text::Text,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The profile to write. Other commands find it without being told as profile.json in the folder of the model
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Retrieval prompts of each length, and chunks of each length of each text
    #[arg(long, value_name = "N", default_value_t = 32)]
    prompts: usize,
    /// Lengths of the prompts, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,1024")]
    tokens: Vec<usize>,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Further texts to measure the layers on, beside the retrieval prompts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    jobs: JobsArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let haystack = args.haystack.read()?;
    let loaded = args.model.load()?;
    let name = loaded.name();
    let Loaded { model, tokenizer, device, .. } = loaded;
    let texts = args
        .text
        .iter()
        .map(|path| Text::from_file(path, &tokenizer))
        .collect::<crate::Result<Vec<_>>>()?;
    let calibration = Calibration {
        model: &model,
        tokenizer: &tokenizer,
        haystack: &haystack,
        texts: &texts,
        plan: Plan { prompts: args.prompts, lengths: args.tokens, seed: args.seed },
        name,
        threads: args.jobs.threads(&device),
    };

    let bar = progress::bar(calibration.steps());
    let partial = partial(&args.out);
    let calibrated = calibration.run(&partial, |steps| advance(&bar, steps));
    bar.finish_and_clear();
    let Calibrated { profile, right, prompts, journal } = calibrated?;
    let text = profile.to_json()? + "\n";
    fs::write(&args.out, text).with_context(|| format!("cannot write {}", args.out.display()))?;
    journal.remove()?;

    println!("{}: the model answers {right} of {prompts} prompts right", args.out.display());
    let shares = profile.layer_errors.iter().map(|error| format!("{error:.3}"));
    println!("layer errors {}", shares.collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Steps of an earlier run come at once, and say nothing of the time left.
pub(super) fn advance(bar: &ProgressBar, steps: usize) {
    bar.inc(steps as u64);
    if steps != 1 {
        bar.reset_eta();
    }
}

/// Where results wait for the profile.
fn partial(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
