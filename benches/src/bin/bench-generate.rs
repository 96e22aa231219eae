//! Generates with a model of the dimensions of Llama 3 8B, or another, and random weights, one line
//! of JSON per method and setting.

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use briquette::{Budget, Policy, methods};
use briquette_benches::{
    generate::{Report, Runner},
    measure::median,
    model::{Dimensions, dtype_of},
    record::Sink,
    settings::{Method, Setting, command_lines},
};
use briquette_models::DeviceMap;
use burn::tensor::Device;
use clap::{Parser, ValueEnum};

/// Growth of a decode step from the second round to the last that is still taken for chance.
const GROWTH: f64 = 1.1;

/// Generates with a model of the dimensions of Llama 3 8B, or another, and random weights, one line
/// of JSON per method and setting.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it, or several separated by commas
    #[arg(long)]
    device: String,
    /// A file of settings, each a list of these options; those given beside it count for all
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Settings of the file by their names, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', requires = "settings")]
    only: Vec<String>,
    /// The type of weights and cache: bf16, f16 or f32
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Methods as `METHOD[@ROWS][=RATIO[/RATIO]]`, separated by commas: the rows instead of the
    /// setting's, and ratios that were published, the second at the largest batch. The full cache
    /// comes first, for the others are held against it. `all` is all that read a prompt once;
    /// `plain` is a step of Burn's operations, without a cache of Briquette's
    #[arg(long, value_delimiter = ',', default_value = "full,snapkv,compresskv,ems,d2o")]
    methods: Vec<Method>,
    /// Budgets: tokens (256), or a share of the tokens seen (20%); separated by commas
    #[arg(long, value_delimiter = ',', default_value = "256")]
    budgets: Vec<Budget>,
    /// BATCH:PROMPT+NEW, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8:4096+256")]
    at: Vec<Setting>,
    /// Layers of the model
    #[arg(long)]
    layers: Option<usize>,
    /// Tokens of context
    #[arg(long)]
    context: Option<usize>,
    /// The model whose dimensions these are
    #[arg(long, default_value = "llama-3-8b")]
    shape: Shape,
    /// Tokens of all prompts given to the model at a time. A prompt that comes in parts is held
    /// whole in every layer until its end; one that comes at once is compressed layer by layer
    #[arg(long, default_value_t = 131_072)]
    chunk: usize,
    /// Seconds one method may take at one setting; what is decoded by then counts
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// Compress every so many decoded tokens, where a method compresses in decoding
    #[arg(long)]
    decode_every: Option<usize>,
    /// Fill caches with noise instead of running prefills: decode steps only, at batches whose
    /// prompts would take long
    #[arg(long)]
    fill: bool,
    /// Time so many decode steps at the start of an answer, in its middle and at its end, with
    /// noise in between, instead of all. Prompts beyond `--chunk` are reckoned from fewer rows
    #[arg(long, value_name = "STEPS")]
    points: Option<usize>,
    /// GiB of a device that a run may take
    #[arg(long, value_name = "GIB")]
    memory: Option<f64>,
    /// Then run each method at the largest batch that fits into `--memory`, too; for `--fill` and
    /// `--points`, which do not prefill all rows at once
    #[arg(long, requires = "memory")]
    largest: bool,
    /// Record decode steps and replay them, too
    #[arg(long)]
    graph: bool,
    /// Run all of it so often, with other prompts each time and no clean-up but the model's; fails
    /// where a step of the last round takes a tenth longer than one of the second
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Append the lines to this file too
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Models that are known by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    #[value(name = "llama-3-8b")]
    Llama3,
    #[value(name = "llama-3-70b")]
    Llama70B,
    #[value(name = "llama-2-7b")]
    Llama2,
    #[value(name = "llama-3.2-1b")]
    Llama1B,
    #[value(name = "smollm2-135m")]
    Smol,
    #[value(name = "ember-7m")]
    Ember,
    /// Two small layers, to see whether it runs
    Tiny,
}

impl From<Shape> for Dimensions {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Llama3 => Self::LLAMA_3_8B,
            Shape::Llama70B => Self::LLAMA_3_70B,
            Shape::Llama2 => Self::LLAMA_2_7B,
            Shape::Llama1B => Self::LLAMA_3_1B,
            Shape::Smol => Self::SMOLLM2_135M,
            Shape::Ember => Self::EMBER_7M,
            Shape::Tiny => Self::TINY,
        }
    }
}

fn main() -> Result<ExitCode> {
    let given: Vec<String> = env::args().collect();
    let args = Args::parse_from(&given);
    let devices = DeviceMap::open(&args.device)?;
    devices.devices().iter().for_each(|device| device.seed(2026));
    let mut sink = Sink::new(args.out.as_ref())?;
    let mut all = Vec::new();
    match args.settings.clone() {
        Some(file) => {
            for (name, line) in command_lines(&file, &args.only, &given)? {
                let args = Args::try_parse_from(line).with_context(|| name.clone())?;
                all.push((Some(name), args));
            }
        }
        None => all.push((None, args)),
    }
    let mut last: Option<Runner> = None;
    let mut failures = Vec::new();
    for (name, args) in all {
        let runner = args.runner(&devices, last.take(), &mut failures)?;
        let runner = Runner { settings: name, ..runner };
        args.run(&runner, &mut sink, &mut failures)?;
        last = Some(runner);
    }
    failures.extend(last.iter().flat_map(Runner::fallbacks));
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    /// A runner of the model of the last one, if that is the same.
    fn runner(
        &self,
        devices: &DeviceMap,
        last: Option<Runner>,
        failures: &mut Vec<String>,
    ) -> Result<Runner> {
        let of_shape = Dimensions::from(self.shape);
        let dimensions = Dimensions {
            layers: self.layers.unwrap_or(of_shape.layers),
            context: self.context.unwrap_or(of_shape.context),
            ..of_shape
        };
        let dtype = dtype_of(&self.dtype)?;
        let made = match last {
            Some(last) if last.dimensions == dimensions && last.dtype == dtype => last,
            other => {
                failures.extend(other.iter().flat_map(Runner::fallbacks));
                drop(other);
                devices.devices().iter().for_each(Device::memory_cleanup);
                Runner::of_random_model(dimensions, dtype, devices, &self.device)?
            }
        };
        Ok(Runner {
            chunk: self.chunk,
            limit: Duration::from_secs(self.limit),
            memory: self.memory.map(|memory| (memory * f64::from(1 << 30)) as u64),
            fill: self.fill,
            decode_every: self.decode_every,
            points: self.points,
            graph: self.graph,
            clean: self.rounds == 1,
            ..made
        })
    }

    fn run(&self, runner: &Runner, sink: &mut Sink, failures: &mut Vec<String>) -> Result<()> {
        let methods = self.methods();
        let (mut number, mut medians) = (0, Vec::new());
        for _ in 0..self.rounds {
            let mut steps = Vec::new();
            for setting in &self.at {
                let (mut full, mut full_at_largest) = (None, None);
                for method in &methods {
                    for &budget in self.budgets_of(&method.name) {
                        let batch = method.rows.unwrap_or(setting.batch);
                        let mut setting = Setting { batch, ..*setting };
                        if self.rounds > 1 {
                            setting.prompt += number * 37 % (setting.prompt / 2).max(1);
                            number += 1;
                        }
                        let mut report = runner.run(&method.name, budget, setting);
                        report.published = method.published;
                        hold_against(&mut report, &mut full);
                        sink.write(&report)?;
                        steps.extend(report.step_ms);
                        if !self.largest || report.error.is_some() {
                            continue;
                        }
                        if let Some(batch) = runner.largest_batch(&method.name, budget, setting) {
                            setting.batch = batch;
                            let mut report = runner.run(&method.name, budget, setting);
                            report.largest = true;
                            report.published = method.published_largest;
                            hold_against(&mut report, &mut full_at_largest);
                            sink.write(&report)?;
                        }
                    }
                }
            }
            medians.push(median(steps));
        }
        if let [_, second, .., last] = medians[..] {
            let growth = last / second;
            eprintln!("a step of the last round takes {growth:.2} times the second's");
            if growth > GROWTH {
                failures.push(format!("the process ages: medians of rounds are {medians:.2?} ms"));
            }
        }
        Ok(())
    }

    /// The methods, each of `all` on its own.
    fn methods(&self) -> Vec<Method> {
        let reads_once = |name: &String| {
            Policy::named(name, None).is_ok_and(|policy| policy.second_pass().is_none())
        };
        let mut found = Vec::new();
        for method in &self.methods {
            if method.name == "all" {
                let names = methods().into_iter().map(|info| info.name).filter(reads_once);
                found.extend(names.map(|name| Method { name, ..method.clone() }));
            } else {
                found.push(method.clone());
            }
        }
        found
    }

    /// The budgets, or one of them for a method that takes none.
    fn budgets_of(&self, method: &str) -> &[Budget] {
        let takes = Policy::named(method, None).is_ok_and(|policy| policy.takes_budget());
        if takes { &self.budgets } else { &self.budgets[..1] }
    }
}

/// Adds ratios to the full cache, which comes first.
fn hold_against(report: &mut Report, full: &mut Option<Report>) {
    if report.method == "full" && report.error.is_none() {
        *full = Some(report.clone());
    }
    if let Some(full) = full {
        report.hold_against(full);
    }
}
