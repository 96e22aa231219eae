use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use briquette_eval::{
    files,
    record::Key,
    run::{Plan, Rescoring, RunFile, Shard, Share, check_folder, read_results},
};
use briquette_report::table;
use serde::Serialize;

use crate::{
    args::{
        batch::BatchArgs,
        jobs::JobsArgs,
        model::{Dtype, open_device},
        resume::ResumeArgs,
    },
    measure::measurement::{Measurement, scored_anew},
    terminal::{
        output::{OutputArgs, note, table_width, with_causes},
        output_gate::Mark,
        progress,
    },
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run file (.toml)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder of the results; a run that is there is continued [default: out/ and the name of
    /// the run file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run one of n parts, the first is 1: 1/4. In a Slurm array
    /// $((SLURM_ARRAY_TASK_ID+1))/$SLURM_ARRAY_TASK_COUNT
    #[arg(long, value_name = "i/n")]
    shard: Option<Shard>,
    /// flex, wgpu, cuda, cuda:1, vulkan, metal, rocm, cpu, libtorch, remote:ws://HOST:PORT: those
    /// this build has [default: flex, or the first of this build]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Data type of weights, activations and cache, above that of the run file
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    /// Say what there is to do, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the prompts in tokens, a line of JSON each, and do nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    prompts: Option<PathBuf>,
    /// Go on when a unit fails. It is left out of the results, and tried again by the next run
    #[arg(long)]
    keep_going: bool,
    /// Take a profile and results of other weights, another tokenizer or another configuration
    #[arg(long)]
    other_weights: bool,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Write no page. Without a shard a run ends as `briquette report` does, with DIR/report.html
    #[arg(long)]
    no_report: bool,
    #[command(flatten)]
    output: OutputArgs,
}

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
    for skipped in plan.skipped.iter().take(LEFT_OUT) {
        note(&format!("left out: {skipped}"));
    }
    if let Some(path) = &args.prompts {
        let mut lines = String::new();
        for prompt in plan.prompts() {
            writeln!(lines, "{}", serde_json::to_string(&prompt)?)?;
        }
        return Ok(files::write(path, lines)?);
    }
    if args.dry_run {
        return dry_run(&args, &file, &plan, &out);
    }

    let measurement = Measurement {
        file: &file,
        plan: &plan,
        out: Some(out),
        page: args.shard.is_none() && !args.no_report,
        device: args.device.as_deref(),
        batch: &args.batch,
        jobs: &args.jobs,
        shard: args.shard,
        keep_going: args.keep_going,
        accept: args.resume.accept(args.other_weights),
        output: &args.output,
    };
    measurement.run()
}

/// The JSON of a dry run.
#[derive(Serialize)]
struct Left {
    shares: Vec<Share>,
}

/// Units and tokens by task and policy, without those whose results are there. What the run would
/// refuse is refused; a device that this build does not have is said, for it may have been built
/// elsewhere.
fn dry_run(args: &Args, file: &RunFile, plan: &Plan, out: &Path) -> Result<()> {
    match open_device(args.device.as_deref()) {
        Ok((name, _)) => {
            args.jobs.threads(&name)?;
        }
        Err(error) => note(&format!("the run would be refused: {}", with_causes(&error))),
    }
    check_folder(out, file, args.shard)?;
    let mut done = std::collections::BTreeSet::new();
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
    let mut table = table::new(table_width());
    table.set_header(["model", "task", "policy", "budget", "units", "left", "tokens to prefill"]);
    let sum = |of: fn(&Share) -> usize| shares.iter().map(of).sum::<usize>();
    let rows = shares.iter().map(|share| {
        let Share { model, task, policy, budget, units, left, tokens } = share;
        ([model, task, policy, budget].map(String::as_str), [*units, *left, *tokens])
    });
    let all = (
        ["all", "", "", ""],
        [sum(|share| share.units), sum(|share| share.left), sum(|share| share.tokens)],
    );
    for ([model, task, policy, budget], numbers) in rows.chain([all]) {
        let texts = [table::left(model), table::left(task), table::left(policy)];
        let numbers = numbers.map(table::right);
        table.add_row(texts.into_iter().chain([table::right(budget)]).chain(numbers));
    }
    let mut human = String::new();
    writeln!(human, "{table}")?;
    for (key, reason) in plan.unavailable() {
        writeln!(human, "{}, {} at {}: {reason}", key.model, key.policy, key.budget)?;
    }
    args.output.write(&human, &Left { shares })
}
