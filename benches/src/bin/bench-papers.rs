//! Whole generation at the settings of the papers, prompts included, beside the papers' numbers.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use briquette::{Budget, Policy};
use briquette_benches::{
    generate::Runner,
    model::{Dimensions, dtype_of},
    papers::{Line, Measured, NAMES, Plan, Run, Table, markdown},
    record::Sink,
};
use burn::tensor::{DType, Device};
use clap::Parser;

/// Whole generation at the settings of the papers, prompts included, beside the papers' numbers:
/// one line of JSON per table, length, method and batch, and a table in Markdown at the end.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long)]
    device: String,
    /// The type of weights and cache: bf16, f16 or f32
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Tables, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = NAMES.map(str::to_owned))]
    tables: Vec<String>,
    /// Methods, in place of all those of the tables; the full cache always runs
    #[arg(long, value_delimiter = ',')]
    methods: Vec<String>,
    /// Seconds one measurement may take
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Seconds after which no measurement is begun
    #[arg(long, default_value_t = 500)]
    time: u64,
    /// Decode steps of each timing
    #[arg(long, default_value_t = 32)]
    steps: usize,
    /// Each method at the largest batch that fits into the card of its table, too; `engines` always
    /// does
    #[arg(long)]
    largest: bool,
    /// GiB of the device, where the card of a table has more
    #[arg(long, value_name = "GIB")]
    memory: Option<f64>,
    /// Tokens of all prompts prefilled at once. More rows are filled with noise, and their prefill
    /// is reckoned from that of fewer
    #[arg(long, default_value_t = 131_072)]
    prompt_tokens: usize,
    /// A tiny model and short settings, to see whether it runs
    #[arg(long)]
    tiny: bool,
    /// Append the lines to this file too
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The run of the program.
struct Papers {
    args: Args,
    device: Device,
    dtype: DType,
    plan: Plan,
    sink: Sink,
    started: Instant,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let started = Instant::now();
    let device = briquette::device::open(&args.device)?;
    device.seed(2026);
    let dtype = dtype_of(&args.dtype)?;
    let plan = Plan {
        steps: args.steps,
        prompt_tokens: args.prompt_tokens,
        limit: Duration::from_secs(args.limit),
        memory: args.memory,
    };
    let tables = args.tables.iter().map(|name| Table::named(name, args.tiny));
    let mut tables: Vec<Table> = tables.collect::<Result<_>>()?;
    // One model for all tables of a shape.
    let context = tables.iter().map(|table| table.dimensions.context).max().unwrap_or(0);
    tables.iter_mut().for_each(|table| table.dimensions.context = context);
    let sink = Sink::new(args.out.as_ref())?;
    let mut papers = Papers { args, device, dtype, plan, sink, started };
    let (mut texts, mut fallbacks) = (Vec::new(), Vec::new());
    let mut last: Option<Runner> = None;
    for table in tables {
        let same = last.take_if(|runner| runner.dimensions == table.dimensions);
        let runner = match same {
            Some(runner) => runner,
            None => {
                fallbacks.extend(last.take().iter().flat_map(Runner::fallbacks));
                papers.device.memory_cleanup();
                papers.runner(table.dimensions)?
            }
        };
        let lines = papers.table(&runner, &table)?;
        texts.push(markdown(table.title, &lines));
        last = Some(runner);
    }
    fallbacks.extend(last.iter().flat_map(Runner::fallbacks));
    texts.iter().for_each(|text| println!("{text}"));
    fallbacks.iter().for_each(|fallback| eprintln!("{fallback}"));
    Ok(if fallbacks.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Papers {
    /// A runner of a model with random weights.
    fn runner(&self, dimensions: Dimensions) -> Result<Runner> {
        let Self { args, device, dtype, plan, .. } = self;
        let runner = Runner::of_random_model(dimensions, *dtype, device, &args.device)?;
        Ok(Runner { chunk: args.prompt_tokens.max(1), limit: plan.limit, graph: true, ..runner })
    }

    fn table(&mut self, runner: &Runner, table: &Table) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for case in &table.cases {
            let (mut full, mut full_at_largest) = (None, None);
            for run in &case.runs {
                if !self.wants(run) {
                    continue;
                }
                let at = format!("{} {}+{}, {}", table.name, case.prompt, case.new, run.method);
                // Before its time is spent.
                let budget = Budget::Tokens(case.budget);
                let policy = Policy::named(run.method, None);
                let checked = policy.and_then(|it| it.with_default_budget(budget).check());
                if let Err(error) = checked {
                    let why = error.to_string();
                    eprintln!("{at}: left out: {}", why.split([':', ';']).next().unwrap_or(""));
                    continue;
                }
                if self.started.elapsed() > Duration::from_secs(self.args.time) {
                    eprintln!("{at}: left out: the time is up");
                    continue;
                }
                eprintln!("{at}, {} rows, after {:.0} s", run.batch, self.seconds());
                let Measured { line, row_prefill_s } = runner.whole(self.plan, table, case, run);
                lines.push(self.written(line, &mut full)?);
                let is_up = self.started.elapsed() > Duration::from_secs(self.args.time);
                if !(self.args.largest || table.largest) || is_up {
                    continue;
                }
                let largest = runner.whole_at_largest(self.plan, table, case, run, row_prefill_s);
                match largest {
                    Some(measured) => {
                        lines.push(self.written(measured.line, &mut full_at_largest)?);
                    }
                    None => eprintln!("{at}: no batch fits"),
                }
            }
        }
        Ok(lines)
    }

    /// Writes a line that is held against the full cache, which comes first.
    fn written(&mut self, mut line: Line, full: &mut Option<Line>) -> Result<Line> {
        if line.method == "full" && line.error.is_none() {
            *full = Some(line.clone());
        }
        if let Some(full) = full {
            line.hold_against(full);
        }
        self.sink.write(&line)?;
        Ok(line)
    }

    fn wants(&self, run: &Run) -> bool {
        let methods = &self.args.methods;
        methods.is_empty() || run.method == "full" || methods.iter().any(|name| name == run.method)
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
