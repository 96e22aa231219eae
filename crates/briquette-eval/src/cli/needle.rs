use std::{fmt::Write, path::PathBuf, time::Instant};

use anyhow::Result;
use briquette::Budget;

use super::{
    depths::DepthArgs,
    haystack::HaystackArgs,
    inputs,
    model::{Loaded, ModelArgs},
    output::{OutputArgs, note_fallbacks},
    policy,
    profile::ProfileArgs,
    progress,
    resume::ResumeArgs,
};
use crate::{
    grid::{self, Answers, Axes},
    report::{NeedleReport, Settings, weak},
    settings,
    tasks::needle::NeedleTask,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Lengths of prompt and answer, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512,1024")]
    lengths: Vec<usize>,
    #[command(flatten)]
    depths: DepthArgs,
    /// Methods of `briquette policies`, changed as in `snapkv:kernel=15`, or policy files (.toml,
    /// .json). The full cache is always measured beside them
    #[arg(
        long,
        visible_alias = "policy",
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = policy::DEFAULTS
    )]
    policies: Vec<String>,
    /// Budgets of every policy: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    /// [default: 128,256, and for a policy file its own]
    #[arg(long, visible_alias = "budget", value_name = "B,…", value_delimiter = ',')]
    budgets: Vec<Budget>,
    /// Numbers of needles in a prompt, of which one is asked for
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    needles: Vec<usize>,
    /// Prompts for each length, depth and number of needles
    #[arg(long, value_name = "N", default_value_t = 2)]
    samples: usize,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Prompts to run at once; more is faster on a GPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Write needle.json, needle.csv (cells), answers.csv, heat maps and an overview as SVG and PNG
    /// into this folder. What has been measured is in its needle.jsonl, where a run that was killed
    /// goes on
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let mut axes = Axes {
        lengths: args.lengths,
        depths: args.depths.depths,
        needles: args.needles,
        samples: args.samples,
        seed: args.seed,
        entries: policy::entries(&args.policies, &args.budgets)?,
    };
    axes.check()?;
    let inputs = inputs::of(&args.model, &args.profile, &args.policies, args.haystack.inputs());
    let mut gate = args.output.gate(inputs)?;
    if let Some(out) = &args.out {
        let names = ["needle.json", "needle.csv", "answers.csv", "*.svg", "*.png"];
        gate.results("needle", out, "needle.jsonl", &names)?;
    }
    let haystack = args.haystack.read(&args.model)?;
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    for entry in &mut axes.entries {
        entry.policy = profiles.attached(entry.policy.clone())?;
    }
    let name = loaded.name();
    let Loaded { model, tokenizer, dir, device, dtype, other_weights } = loaded;
    let task = NeedleTask::new(&tokenizer, &haystack, axes.seed)?;

    let batch = args.batch as usize;
    // Prompts have fingerprints of their own: lengths, depths and samples may be added.
    let plan = serde_json::json!({ "batch": batch });
    let named = (&model, name.as_str(), profiles.weights()?);
    let kept = settings::of("needle", named, Some(&haystack), &[], &plan);
    let path = args.out.as_ref().map(|out| out.join("needle.jsonl"));
    let mut kept = Answers::open(path.as_deref(), &kept, args.resume.accept(other_weights))?;

    let runs = axes.entries.iter().map(|entry| if entry.keeps_all() { 1 } else { 2 });
    let bar = progress::bar(runs.sum::<usize>() * axes.prompts());
    let start = Instant::now();
    let answers =
        grid::run(&model, &tokenizer, &task, &axes, batch, &mut kept, |entry, prompts| {
            bar.set_message(format!("{} {}", entry.label, entry.budget()));
            bar.inc(prompts as u64);
        });
    bar.finish_and_clear();
    note_fallbacks(&name, &model.fallbacks());
    let settings = Settings::new(
        dir.display().to_string(),
        model.cache_shape(),
        dtype,
        device,
        haystack.name().to_owned(),
        batch,
        &axes,
    );
    let report = NeedleReport::new(settings, start.elapsed(), answers?);

    let mut human = String::new();
    if let Some(said) = weak(report.full()) {
        writeln!(human, "{said}\n")?;
    }
    writeln!(human, "{}", report.table())?;
    writeln!(
        human,
        "{} prompts a row, depths {:?} %, 95 % Wilson intervals, {:.0} s on {}",
        axes.depths.len() * axes.samples,
        axes.depths,
        report.seconds,
        report.settings.environment.device
    )?;
    if let Some(out) = &args.out {
        let files = report.write(out)?;
        writeln!(human, "{} files in {}", files.len(), out.display())?;
    }
    args.output.write(&human, &report)
}
