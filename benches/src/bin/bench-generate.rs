//! Generates with a model of the dimensions of Llama 3 8B, or another, and random weights, one line
//! of JSON per method and setting.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use briquette::Budget;
use briquette_benches::{
    generate::{Report, Runner, Setting},
    model::{Dimensions, dtype_of},
    record::Sink,
};
use clap::{Parser, ValueEnum};

/// Generates with a model of the dimensions of Llama 3 8B, or another, and random weights, one line
/// of JSON per method and setting.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long)]
    device: String,
    /// The type of weights and cache: bf16, f16 or f32
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Methods, separated by commas; the full cache comes first, for the others are held against it
    #[arg(long, value_delimiter = ',', default_value = "full,snapkv,compresskv,ems,d2o")]
    methods: Vec<String>,
    /// Budgets: tokens (256), or a share of the tokens seen (20%); separated by commas
    #[arg(long, value_delimiter = ',', default_value = "256")]
    budgets: Vec<Budget>,
    /// BATCH:PROMPT+NEW, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8:4096+256")]
    settings: Vec<Setting>,
    /// Batches, in place of those of the settings
    #[arg(long, value_delimiter = ',')]
    batch: Vec<usize>,
    /// Lengths of prompts, in place of those of the settings
    #[arg(long)]
    prompt: Option<usize>,
    /// Numbers of new tokens, in place of those of the settings
    #[arg(long)]
    max_new: Option<usize>,
    /// Layers of the model
    #[arg(long)]
    layers: Option<usize>,
    /// Tokens of context
    #[arg(long)]
    context: Option<usize>,
    /// The model whose dimensions these are
    #[arg(long, default_value = "llama-3-8b", conflicts_with = "quick")]
    shape: Shape,
    /// A model of two small layers
    #[arg(long)]
    quick: bool,
    /// Tokens of all prompts given to the model at a time. A prompt that comes in parts is held
    /// whole in every layer until its end; one that comes at once is compressed layer by layer
    #[arg(long, default_value_t = 131_072)]
    chunk: usize,
    /// Seconds one method may take at one setting; what is decoded by then counts
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// Bandwidth of a copy in TB/s, for the floor of a decode step
    #[arg(long)]
    bandwidth: Option<f64>,
    /// Compress every so many decoded tokens, where a method compresses in decoding
    #[arg(long)]
    decode_every: Option<usize>,
    /// Fill caches with noise instead of running prefills: decode steps only, at batches whose
    /// prompts would take long
    #[arg(long)]
    fill: bool,
    /// Then run each method at the largest batch that fits into so many GiB of the device, too
    #[arg(long, value_name = "GIB")]
    memory: Option<f64>,
    /// Record decode steps and replay them, too
    #[arg(long)]
    graph: bool,
    /// Measure the parts of a decode step's time, too
    #[arg(long)]
    split: bool,
    /// Append the lines to this file too
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Models that are known by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    #[value(name = "llama-3-8b")]
    Llama3,
    #[value(name = "ember-7m")]
    Ember,
}

impl From<Shape> for Dimensions {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Llama3 => Self::LLAMA_3_8B,
            Shape::Ember => Self::EMBER_7M,
        }
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let device = briquette::device::open(&args.device)?;
    device.seed(2026);
    let dtype = dtype_of(&args.dtype)?;
    let of_shape = if args.quick { Dimensions::TINY } else { args.shape.into() };
    let dimensions = Dimensions {
        layers: args.layers.unwrap_or(of_shape.layers),
        context: args.context.unwrap_or(of_shape.context),
        ..of_shape
    };
    let runner = Runner {
        chunk: args.chunk,
        limit: Duration::from_secs(args.limit),
        bandwidth: args.bandwidth.map(|rate| rate * 1e12),
        fill: args.fill,
        decode_every: args.decode_every,
        graph: args.graph,
        ..Runner::of_random_model(dimensions, dtype, &device, &args.device)?
    };
    let mut sink = Sink::new(args.out.as_ref())?;
    let mut settings = Vec::new();
    for setting in args.settings {
        let batches = if args.batch.is_empty() { vec![setting.batch] } else { args.batch.clone() };
        settings.extend(batches.into_iter().map(|batch| Setting {
            batch,
            prompt: args.prompt.unwrap_or(setting.prompt),
            new: args.max_new.unwrap_or(setting.new),
        }));
    }
    for setting in settings {
        let mut full = Baseline::default();
        let mut full_at_largest = Baseline::default();
        for method in &args.methods {
            let all = &args.budgets[..];
            let budgets = if method == "full" || method == "kivi" { &all[..1] } else { all };
            for &budget in budgets {
                let mut report = runner.run(method, budget, setting);
                full.hold_against(&mut report);
                sink.write(&report)?;
                if args.split {
                    sink.write(&runner.split(method, budget, setting))?;
                }
                let memory = args.memory.map(|memory| (memory * f64::from(1 << 30)) as u64);
                let Some(memory) = memory.filter(|_| report.error.is_none()) else { continue };
                if let Some(batch) = runner.largest_batch(method, budget, setting, memory) {
                    let mut report = runner.run(method, budget, Setting { batch, ..setting });
                    report.largest = true;
                    full_at_largest.hold_against(&mut report);
                    sink.write(&report)?;
                }
            }
        }
    }
    let fallbacks = runner.fallbacks();
    fallbacks.iter().for_each(|fallback| eprintln!("{fallback}"));
    Ok(if fallbacks.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tokens per second of the full cache: of decoding, and with the prefill counted.
#[derive(Default)]
struct Baseline(Option<(f64, Option<f64>)>);

/// Tokens per second with the prefill, unless that has compiled and tuned along the way.
fn whole(report: &Report) -> Option<f64> {
    report.tokens_per_s.filter(|_| report.prefill_warm)
}

impl Baseline {
    /// Takes the full cache's, and adds the ratios of a report to them.
    fn hold_against(&mut self, report: &mut Report) {
        if report.error.is_some() {
            return;
        }
        if report.method == "full" {
            self.0 = Some((report.decode_tokens_per_s, whole(report)));
        }
        if let Some((decode, full)) = self.0 {
            report.decode_ratio = Some(report.decode_tokens_per_s / decode);
            report.ratio = whole(report).zip(full).map(|(own, full)| own / full);
        }
    }
}
