use std::{fmt::Write, path::PathBuf, time::Instant};

use anyhow::Result;
use briquette::Budget;

use super::{
    inputs,
    jobs::JobsArgs,
    model::{Loaded, ModelArgs},
    output::OutputArgs,
    policy,
    profile::ProfileArgs,
    progress,
    resume::ResumeArgs,
    text::TextArgs,
};
use crate::{
    compare::Candidate,
    fidelity::{self, Kept, Plan},
    grid::Entry,
    report::{Environment, FidelityReport, FidelityRow, FidelitySummary},
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
    /// .json)
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
    /// Tokens fed behind a prompt, one at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
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
    /// Write fidelity.json, fidelity.csv (a row a layer) and a picture of the errors by layer into
    /// this folder. What has been measured is in its fidelity.jsonl, where a run that was killed
    /// goes on
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let inputs = inputs::of(&args.model, &args.profile, &args.policies, args.text.inputs());
    let mut gate = args.output.gate(inputs)?;
    if let Some(out) = &args.out {
        let names = ["fidelity.json", "fidelity.csv", "*.svg", "*.png"];
        gate.results("fidelity", out, "fidelity.jsonl", &names)?;
    }
    let mut candidates = candidates(&args.policies, &args.budgets)?;
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    let name = loaded.name();
    let Loaded { model, tokenizer, dir, device, dtype, other_weights } = loaded;
    for candidate in &mut candidates {
        let policy = profiles.attached_or_reason(candidate.policy.clone())?;
        candidate.policy = policy.and_then(|policy| {
            // A cache says what it lacks before anything runs.
            let refused = model.cache(policy.clone()).err();
            refused.map_or(Ok(policy), |error| Err(error.to_string()))
        });
    }
    let text = args.text.read(&tokenizer)?;
    let Args { length, tokens, samples: windows, stride, .. } = args;
    let plan = Plan { prompt: length, tokens, windows, stride };
    let windows = plan.windows(&text, &model)?;
    let entry = |Candidate { label, policy, .. }: &Candidate| {
        Some(Entry { label: label.clone(), policy: policy.as_ref().ok()?.clone() })
    };
    let entries: Vec<Entry> = candidates.iter().filter_map(entry).collect();

    let named = (&model, name.as_str(), profiles.weights()?);
    let settings = settings::of("fidelity", named, None, std::slice::from_ref(&text), &plan);
    let path = args.out.as_ref().map(|out| out.join("fidelity.jsonl"));
    let mut kept = Kept::open(path.as_deref(), &settings, args.resume.accept(other_weights))?;

    let bar = progress::bar(entries.len() * windows.len());
    let start = Instant::now();
    let threads = args.jobs.threads(&device)?;
    let measured = fidelity::run(&model, &entries, &windows, length, threads, &mut kept, |entry| {
        bar.set_message(format!("{} {}", entry.label, entry.budget()));
        bar.inc(1);
    });
    bar.finish_and_clear();
    let mut found = measured?.into_iter().map(|windows| FidelitySummary::of(&windows));
    let row = |Candidate { label, budget, policy }: Candidate| FidelityRow {
        policy: label,
        budget,
        found: policy.and_then(|_| found.next().ok_or_else(|| "it was not measured".into())),
    };
    let report = FidelityReport {
        environment: Environment::new(
            dir.display().to_string(),
            model.cache_shape(),
            dtype,
            device,
        ),
        text: text.name().to_owned(),
        plan,
        seconds: start.elapsed().as_secs_f64(),
        rows: candidates.into_iter().map(row).collect(),
    };

    let mut human = String::new();
    writeln!(human, "{}", report.table())?;
    writeln!(
        human,
        "{}: {} prompts of {length} tokens, {tokens} fed behind each; ± is the standard error over prompts; the cache is \
         that at the end of a prompt; {:.0} s on {}",
        report.text, report.plan.windows, report.seconds, report.environment.device
    )?;
    if let Some(out) = &args.out {
        let files = report.write(out)?;
        writeln!(human, "{} files in {}", files.len(), out.display())?;
    }
    args.output.write(&human, &report)
}

/// Every policy at every budget; a file without a budget given has its own.
fn candidates(policies: &[String], budgets: &[Budget]) -> Result<Vec<Candidate>> {
    let mut all = Vec::new();
    for text in policies {
        if budgets.is_empty() && policy::is_file(text) {
            let entry = policy::read(text, None, policy::BUDGETS[0])?;
            all.push(Candidate {
                budget: entry.budget(),
                label: entry.label,
                policy: Ok(entry.policy),
            });
        } else {
            let budgets = if budgets.is_empty() { &policy::BUDGETS } else { budgets };
            all.extend(policy::candidates(std::slice::from_ref(text), &[], budgets)?);
        }
    }
    Ok(all)
}
