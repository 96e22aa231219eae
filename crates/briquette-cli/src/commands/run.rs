use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use briquette_eval::{
    files,
    record::Key,
    run::{
        Plan, Rescoring, RunFile, Shard, Share, TimeNeeded, check_folder, estimate, read_results,
    },
};
use briquette_report::table::{Column, Rank, Sheet};
use serde::Serialize;

use crate::{
    args::{
        batch::BatchArgs,
        jobs::JobsArgs,
        model::{DeviceArgs, Dtype, open_devices},
        resume::ResumeArgs,
    },
    measure::measurement::{Measurement, scored_anew},
    terminal::{
        output::{Shown, TableArgs, note, note_each, with_causes},
        output_gate::Mark,
        progress::{self, spoken},
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette run runs/five-policies.toml --dry-run
  briquette run runs/five-policies.toml";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Run file (.toml)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folder of the results [default: out/ and the name of the run file]
    ///
    /// A run that is there is continued.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Run one of n parts; the first of four is 1/4
    ///
    /// In a Slurm array: $((SLURM_ARRAY_TASK_ID+1))/$SLURM_ARRAY_TASK_COUNT.
    #[arg(long, value_name = "i/n", help_heading = "Speed")]
    shard: Option<Shard>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Data type of weights, activations and cache, in place of the run file's
    #[arg(long, value_enum, help_heading = "Model")]
    dtype: Option<Dtype>,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    /// Say what there is to do and about how long it takes, and keep nothing
    ///
    /// The first units are measured for a few seconds.
    #[arg(long)]
    dry_run: bool,
    /// Write the prompts in tokens, one JSON line each, and do nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    prompts: Option<PathBuf>,
    /// Go on when a unit fails; the next run tries it again
    #[arg(long)]
    keep_going: bool,
    /// Accept a profile and results of other weights, tokenizers or configurations
    #[arg(long, help_heading = "Model")]
    other_weights: bool,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Write no page at the end
    ///
    /// Without a shard a run ends as `briquette report` does, with DIR/report.html.
    #[arg(long, help_heading = "Output")]
    no_report: bool,
    #[command(flatten)]
    tables: TableArgs,
}

/// Time that an estimate measures each model for.
const MEASURED: Duration = Duration::from_secs(5);

/// Damaged samples named on stderr. All are in the JSON.
const LEFT_OUT: usize = 20;

pub(crate) fn run(args: Args) -> Result<()> {
    let mut file = RunFile::read(&args.file)?;
    if let Some(dtype) = args.dtype {
        file.models.iter_mut().for_each(|model| model.dtype = dtype.into());
    }
    let out = args.out.clone().unwrap_or_else(|| {
        Path::new("out").join(args.file.file_stem().unwrap_or_else(|| file.name.as_ref()))
    });
    let mut gate = args
        .tables
        .output
        .gate([file.inputs(), files::results(&out), vec![args.file.clone()]].concat())?;
    if let Some(prompts) = &args.prompts {
        gate.file(prompts, Mark::Prompts)?;
    } else {
        files::check_dir(&out)?;
        if args.shard.is_none() && !args.no_report {
            gate.report(&out, None)?;
        }
    }
    let spinner = progress::spinner("making samples");
    let plan = Plan::new(&file, args.other_weights);
    let plan = plan.with_context(|| args.file.display().to_string())?;
    drop(spinner);
    note_each("left out", plan.skipped.iter().take(LEFT_OUT));
    if let Some(path) = &args.prompts {
        let mut lines = String::new();
        for prompt in plan.prompts() {
            writeln!(lines, "{}", serde_json::to_string(&prompt)?)?;
        }
        return Ok(files::write(path, lines)?);
    }
    let measurement = Measurement {
        file: &file,
        plan: &plan,
        out: Some(out.clone()),
        page: args.shard.is_none() && !args.no_report,
        device: args.device.name(),
        batch: &args.batch,
        jobs: &args.jobs,
        shard: args.shard,
        keep_going: args.keep_going,
        accept: args.resume.accept(args.other_weights),
        tables: &args.tables,
    };
    if args.dry_run { dry_run(&args, &measurement, &out) } else { measurement.run() }
}

/// The JSON of a dry run.
#[derive(Serialize)]
struct Left {
    shares: Vec<Share>,
    /// Seconds that the rest takes, about, by model; empty without the device.
    seconds: BTreeMap<String, f64>,
}

/// Units and tokens by task and policy, without those whose results are there, and about how long
/// they take. What the run would refuse is refused; a device that this build does not have is said,
/// for it may have been built elsewhere.
fn dry_run(args: &Args, measurement: &Measurement<'_>, out: &Path) -> Result<()> {
    let plan = measurement.plan;
    let runner = match open_devices(args.device.name()) {
        Ok((name, devices)) => Some(measurement.runner(&name, devices)?),
        Err(error) => {
            note(&format!("the run would be refused: {}", with_causes(&error)));
            None
        }
    };
    check_folder(out, measurement.file, args.shard)?;
    let mut done = BTreeSet::new();
    let mut rescoring = Rescoring::new(plan);
    let own = args.shard.map(Shard::file_name);
    for name in own.iter().map(String::as_str).chain(["results.jsonl"]) {
        let path = out.join(name);
        if path.exists() {
            let read = read_results(&path, args.resume.accept(false).damaged)?;
            read.check(&path, &plan.header(&read.header.device), args.other_weights)?;
            for mut line in read.lines.into_iter().map(|one| one.line) {
                rescoring.apply(&path, &mut line)?;
                done.insert(line.record.key);
            }
        }
    }
    for (task, count) in rescoring.counts() {
        note(&scored_anew(task, *count));
    }
    let here = |key: &Key| args.shard.is_none_or(|shard| shard.holds(key));
    let shares = plan.shares(here, |key| done.contains(key));
    let headings = ["model", "task"].map(|head| Column::left(head).ranked(Rank::Heading));
    let texts = headings.into_iter().chain([Column::left("policy")]);
    let numbers = ["budget", "units", "left", "tokens to prefill"].map(Column::right);
    let mut sheet = Sheet::new(texts.chain(numbers));
    let sum = |of: fn(&Share) -> usize| shares.iter().map(of).sum::<usize>().to_string();
    for Share { model, task, policy, budget, units, left, tokens } in &shares {
        let texts = [model, task, policy, budget].map(String::clone);
        sheet.row(texts.into_iter().chain([units, left, tokens].map(ToString::to_string)));
    }
    let all = [sum(|share| share.units), sum(|share| share.left), sum(|share| share.tokens)];
    sheet.row(["all", "", "", ""].map(str::to_owned).into_iter().chain(all));
    let mut shown = Shown { tables: vec![sheet], ..Shown::default() };
    for (key, reason) in plan.unavailable() {
        writeln!(shown.behind, "{}, {} at {}: {reason}", key.model, key.policy, key.budget)?;
    }
    let mut seconds = BTreeMap::new();
    if let Some(runner) = runner {
        let spinner = progress::spinner("measuring how long it takes");
        let needed = estimate(plan, &runner, MEASURED, |key| done.contains(key))?;
        drop(spinner);
        for TimeNeeded { model, units, measured, time } in needed {
            let time = time.inspect(|time| {
                seconds.insert(model.clone(), time.as_secs_f64());
            });
            let about = time.map_or_else(|| "no unit ended in time".into(), spoken);
            writeln!(shown.behind, "{model}: {units} units, about {about} ({measured} measured)")?;
        }
    }
    args.tables.write(&shown, &Left { shares, seconds })
}
