use std::{fmt::Write, path::PathBuf, time::Instant};

use anyhow::{Context, Result};
use briquette_eval::{
    Error,
    environment::Environment,
    fingerprint,
    mask::{self, Right},
    run::weak,
    settings,
    tasks::{
        needle::{NeedleTask, Place},
        sample::MOST_SAMPLES,
    },
};
use briquette_report::MaskReport;

use crate::{
    args::{
        depths::DepthArgs,
        haystack::HaystackArgs,
        inputs,
        jobs::JobsArgs,
        model::{Loaded, ModelArgs},
        profile::ProfileArgs,
        resume::ResumeArgs,
    },
    terminal::{
        output::{Shown, TableArgs},
        progress,
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette mask-heads
  briquette mask-heads --model MODEL --profile profile.json --out out/heads";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Numbers of heads to silence
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1,2,4,8,16")]
    counts: Vec<usize>,
    /// Tokens of a prompt and its answer
    #[arg(long, value_name = "N", default_value_t = 512)]
    length: usize,
    #[command(flatten)]
    depths: DepthArgs,
    /// Prompts for each depth
    #[arg(long, value_name = "N", default_value_t = 4)]
    samples: usize,
    /// Seed of the prompts and of the random heads
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Folder for mask-heads.json, mask-heads.csv and a picture as SVG and PNG
    ///
    /// What has been measured is in its mask-heads.jsonl, where a run that was killed goes on.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    #[command(flatten)]
    tables: TableArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = inputs::of(&args.model, &args.profile, [], args.haystack.inputs());
    let mut gate = args.tables.output.gate(inputs)?;
    if let Some(out) = &args.out {
        let names = ["mask-heads.json", "mask-heads.csv", "*.svg", "*.png"];
        gate.results("mask-heads", out, "mask-heads.jsonl", &names)?;
    }
    let haystack = args.haystack.read(&args.model)?;
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    let name = loaded.name();
    let Loaded { model, tokenizer, dir, device, dtype, other_weights } = loaded;
    let profile = profiles.profile()?.with_context(|| {
        let dir = dir.display();
        format!("there is no profile.json in {dir}: make one with `briquette calibrate`, or name one with --profile")
    })?;
    let context = model.config().max_position_embeddings;
    if args.length > context {
        return Err(Error::ContextTooShort { length: args.length, context }.into());
    }
    if args.samples > MOST_SAMPLES {
        let reason = format!("at most {MOST_SAMPLES} can be made");
        return Err(Error::Setting { name: "samples", reason }.into());
    }
    let task = NeedleTask::new(&tokenizer, &haystack, args.seed)?;
    let mut prompts = Vec::new();
    for sample in 0..args.samples {
        for &depth in &args.depths.depths {
            prompts.push(task.prompt(Place { length: args.length, depth, needles: 1, sample })?);
        }
    }

    let plan = serde_json::json!({
        "length": args.length,
        "depths": args.depths.depths,
        "samples": args.samples,
        "seed": args.seed,
        "profile": fingerprint::of(profile.to_json()?.as_bytes()),
    });
    let named = (&model, name.as_str(), profiles.weights()?);
    let settings = settings::of("mask-heads", named, Some(&haystack), &[], &plan);
    let path = args.out.as_ref().map(|out| out.join("mask-heads.jsonl"));
    let mut kept = Right::open(path.as_deref(), &settings, args.resume.accept(other_weights))?;

    let bar = progress::bar(mask::steps(&args.counts, prompts.len()));
    let start = Instant::now();
    let threads = args.jobs.threads(&device)?;
    let on_prompt = |choice: mask::Choice| {
        bar.set_message(choice.name());
        bar.inc(1);
    };
    let (counts, seed) = (&args.counts, args.seed);
    let cells = mask::run(&model, &profile, &prompts, counts, seed, threads, &mut kept, on_prompt);
    bar.finish_and_clear();
    let report = MaskReport {
        environment: Environment::new(
            dir.display().to_string(),
            model.cache_shape(),
            dtype,
            device,
        ),
        profile: profile.made.clone(),
        haystack: haystack.name().to_owned(),
        length: args.length,
        depths: args.depths.depths,
        samples: args.samples,
        seed: args.seed,
        seconds: start.elapsed().as_secs_f64(),
        cells: cells?,
    };

    let mut shown = Shown { tables: vec![report.table()], ..Shown::default() };
    let whole = report.cells.iter().find(|cell| cell.masked == 0);
    if let Some(said) = whole.and_then(|cell| weak("needle", cell.exact.rate, cell.exact.trials)) {
        writeln!(shown.before, "{said}\n")?;
    }
    writeln!(
        shown.behind,
        "{} prompts per row, {} tokens, {:.0} s on {}",
        prompts.len(),
        report.length,
        report.seconds,
        report.environment.device
    )?;
    if let Some(out) = &args.out {
        let files = report.write(out)?;
        writeln!(shown.behind, "{} files in {}", files.len(), out.display())?;
    }
    args.tables.write(&shown, &report)
}
