use std::path::PathBuf;

use anyhow::Result;
use briquette::{Budget, methods};

use super::{
    depths::DepthArgs,
    haystack::HaystackArgs,
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
    compare::{Comparison, Plan},
    report::{CompareReport, Environment},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Methods of `briquette policies`, changed as in `snapkv:kernel=15`, or policy files (.toml,
    /// .json) [default: all methods]
    #[arg(long, visible_alias = "policy", value_name = "NAME|FILE,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Budgets of every policy: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    #[arg(
        long,
        visible_alias = "budget",
        value_name = "B,…",
        value_delimiter = ',',
        default_value = "64,128,256,512"
    )]
    budgets: Vec<Budget>,
    /// Changes to every method that has the key, as in kernel=15
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',')]
    change: Vec<String>,
    /// Tokens of a needle prompt and its answer, and of a prompt of text
    #[arg(long, value_name = "N", default_value_t = 1024)]
    length: usize,
    #[command(flatten)]
    depths: DepthArgs,
    /// Needle prompts for each depth
    #[arg(long, value_name = "N", default_value_t = 2)]
    samples: usize,
    #[command(flatten)]
    text: TextArgs,
    /// Tokens predicted behind a prompt of text
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Prompts of text, from different places
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 4)]
    text_samples: usize,
    /// Seed of the needle prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    /// The folder of results.jsonl, which a run that was killed or has more policies continues, and
    /// of the tables compare.md, compare.csv and compare.json
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Args) -> Result<()> {
    let policies = match args.policies {
        policies if policies.is_empty() => {
            methods().into_iter().map(|method| method.name).collect()
        }
        policies => policies,
    };
    let others = [args.haystack.inputs(), args.text.inputs()].concat();
    let inputs = inputs::of(&args.model, &args.profile, &policies, others);
    let mut gate = args.output.gate(inputs)?;
    let names = ["compare.md", "compare.csv", "compare.json"];
    gate.results("compare", &args.out, "results.jsonl", &names)?;
    let mut candidates = policy::candidates(&policies, &args.change, &args.budgets)?;
    let haystack = args.haystack.read(&args.model)?;
    let loaded = args.model.load()?;
    let name = loaded.name();
    let profiles = args.profile.of(&loaded)?;
    for candidate in &mut candidates {
        candidate.policy = profiles.attached_or_reason(candidate.policy.clone())?;
    }
    let Loaded { model, tokenizer, device, dtype, other_weights, .. } = loaded;
    let text = args.text.read(&tokenizer)?;
    let mut comparison = Comparison {
        model: &model,
        tokenizer: &tokenizer,
        haystack: &haystack,
        text: &text,
        plan: Plan {
            length: args.length,
            depths: args.depths.depths,
            samples: args.samples,
            tokens: args.tokens,
            windows: args.text_samples,
            seed: args.seed,
        },
        candidates,
        name: name.clone(),
        weights: profiles.weights()?.to_owned(),
        accept: args.resume.accept(other_weights),
        threads: args.jobs.threads(&device)?,
    };

    let bar = progress::bar(0);
    let rows = comparison.run(&args.out.join("results.jsonl"), |done, all, policy| {
        bar.set_length(all as u64);
        bar.set_message(policy.to_owned());
        bar.set_position(done as u64);
        if policy.is_empty() {
            bar.reset_eta();
        }
    });
    bar.finish_and_clear();
    note_fallbacks(&name, &model.fallbacks());
    let report = CompareReport {
        environment: Environment::new(name, model.cache_shape(), dtype, device),
        haystack: haystack.name().to_owned(),
        text: text.name().to_owned(),
        plan: comparison.plan,
        rows: rows?,
    };
    let files = report.write(&args.out)?;
    let human = format!("{}\n{} files in {}\n", report.markdown(), files.len(), args.out.display());
    args.output.write(&human, &report)
}
