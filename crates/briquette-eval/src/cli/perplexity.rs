use std::{fmt::Write, path::PathBuf, time::Instant};

use anyhow::Result;
use briquette::Budget;

use super::{
    inputs,
    jobs::JobsArgs,
    model::{Loaded, ModelArgs},
    output::{OutputArgs, note_fallbacks},
    policy,
    profile::ProfileArgs,
    progress,
    resume::ResumeArgs,
    text::TextArgs,
};
use crate::{
    perplexity::{self, Losses, Plan},
    report::{Environment, PerplexityReport},
    settings,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    text: TextArgs,
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
    /// Tokens of a prompt, which is compressed
    #[arg(long, alias = "prompt", value_name = "N", default_value_t = 1024)]
    length: usize,
    /// Tokens predicted behind a prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// Prompts, from different places of the text
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 4)]
    samples: usize,
    /// Tokens from one prompt's start to the next [default: so many that they span the text]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Write perplexity.json and perplexity.csv (a row a predicted token) into this folder. What
    /// has been measured is in its perplexity.jsonl, where a run that was killed goes on
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let inputs = inputs::of(&args.model, &args.profile, &args.policies, args.text.inputs());
    let mut gate = args.output.gate(inputs)?;
    if let Some(out) = &args.out {
        let names = ["perplexity.json", "perplexity.csv"];
        gate.results("perplexity", out, "perplexity.jsonl", &names)?;
    }
    let mut entries = policy::entries(&args.policies, &args.budgets)?;
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    for entry in &mut entries {
        entry.policy = profiles.attached(entry.policy.clone())?;
    }
    let name = loaded.name();
    let Loaded { model, tokenizer, dir, device, dtype, other_weights } = loaded;
    let text = args.text.read(&tokenizer)?;
    let Args { length: prompt, tokens, samples: windows, stride, .. } = args;
    let plan = Plan { prompt, tokens, windows, stride };
    let windows = plan.windows(&text, &model)?;

    let named = (&model, name.as_str(), profiles.weights()?);
    let settings = settings::of("perplexity", named, None, std::slice::from_ref(&text), &plan);
    let path = args.out.as_ref().map(|out| out.join("perplexity.jsonl"));
    let mut losses = Losses::open(path.as_deref(), &settings, args.resume.accept(other_weights))?;

    let bar = progress::bar(entries.len() * windows.len());
    let start = Instant::now();
    let threads = args.jobs.threads(&device)?;
    let losses =
        perplexity::run(&model, &entries, &windows, prompt, threads, &mut losses, |entry| {
            bar.set_message(format!("{} {}", entry.label, entry.budget()));
            bar.inc(1);
        });
    bar.finish_and_clear();
    note_fallbacks(&name, &model.fallbacks());
    let report = PerplexityReport::new(
        Environment::new(dir.display().to_string(), model.cache_shape(), dtype, device),
        text.name().to_owned(),
        plan,
        start.elapsed().as_secs_f64(),
        &entries,
        &losses?,
    );

    let mut human = String::new();
    writeln!(human, "{}", report.table())?;
    writeln!(
        human,
        "{}: {} prompts of {prompt} tokens, {tokens} predicted behind each; ± is the standard error; {:.0} s on {}",
        report.text, report.plan.windows, report.seconds, report.environment.device
    )?;
    if let Some(out) = &args.out {
        let files = report.write(out)?;
        writeln!(human, "{} files in {}", files.len(), out.display())?;
    }
    args.output.write(&human, &report)
}
