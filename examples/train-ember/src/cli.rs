//! The command line.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use briquette_models::{Model, ModelConfig};
use burn::tensor::{DType, Device};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    CHECKPOINT_SECONDS, Options, Plan, Span,
    checkpoint::{self, Checkpoint},
    data::{Corpus, Drawn, Loader, Tasks, Words},
    evaluate::{self, Accuracy, Question},
    export, import,
    model::{Body, Layout, Parameters, Weights},
    plot, prepare, read_log, smoke, train,
};

/// Trains ember-7m, or a model of its architecture on a text of one's own. Without a command it
/// trains a tiny model for a few steps.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Turn a folder of *.txt into tokens.
    Prepare(Prepare),
    /// Train, or go on with a training.
    Train(Train),
    /// Measure a training's weights, or a model's, on words and text never trained on.
    Evaluate(Evaluate),
    /// Write a training's weights as a Hugging Face folder.
    Export(Export),
    /// Draw the course of a training from its log, as `train` does at its end.
    Plot(Plot),
    /// Time the steps of every stage.
    Bench(Bench),
}

#[derive(Args, Debug)]
struct Prepare {
    /// Folder of *.txt, UTF-8.
    #[arg(long)]
    text: PathBuf,
    /// Folder to write, made if missing.
    #[arg(long)]
    out: PathBuf,
    /// Names of files, without .txt, not to train on.
    #[arg(long, num_args = 1..)]
    held_out: Vec<String>,
    /// Folder with the tokenizer.
    #[arg(long, default_value = "models/ember-7m")]
    model: PathBuf,
    /// Words that tasks use as keys, `{"train": [..], "test": [..]}`.
    #[arg(long, default_value = "models/ember-7m/recipe/words.json")]
    words: PathBuf,
    /// Read at most this much of each file, so that none dominates.
    #[arg(long)]
    max_chars: Option<usize>,
}

/// Device and type of the computation.
#[derive(Args, Debug)]
struct Compute {
    /// The device: flex, cuda, wgpu, ...
    #[arg(long, default_value = "flex")]
    device: String,
    /// Type of the computation; weights are f32 in any case. By default bf16 on a GPU and f32
    /// elsewhere.
    #[arg(long, value_enum)]
    dtype: Option<Precision>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

#[derive(Args, Debug)]
struct Train {
    /// Folder that `prepare` wrote.
    #[arg(long)]
    data: PathBuf,
    /// Folder of checkpoint and log, made if missing.
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    compute: Compute,
    /// Minutes of the whole training, over all runs.
    #[arg(long, conflicts_with = "steps", required_unless_present = "steps")]
    minutes: Option<f64>,
    /// Steps of the whole training, instead of minutes.
    #[arg(long)]
    steps: Option<usize>,
    /// Go on from the checkpoint in --out, under its plan.
    #[arg(long)]
    resume: bool,
    /// With --resume: go on under --plan, though the checkpoint has another.
    #[arg(long, requires_all = ["resume", "plan"])]
    change_plan: bool,
    /// End this run after so many minutes; --resume goes on.
    #[arg(long)]
    pause_after: Option<f64>,
    /// Seconds between two checkpoints.
    #[arg(long, default_value_t = CHECKPOINT_SECONDS)]
    checkpoint_seconds: f64,
    /// Steps between two lines of the log.
    #[arg(long, default_value_t = 20)]
    log_steps: usize,
    /// The plan, TOML; without it the one built in, or with --resume the checkpoint's.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// The architecture; the vocabulary of the tokenizer must fit.
    #[arg(long, default_value = "models/ember-7m/config.json")]
    config: PathBuf,
    /// Seeds weights and sequences.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads that draw sequences; by default all but two.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Args, Debug)]
struct Evaluate {
    /// Folder that `prepare` wrote.
    #[arg(long)]
    data: PathBuf,
    /// Folder of a training.
    #[arg(long, conflicts_with = "model", required_unless_present = "model")]
    out: Option<PathBuf>,
    /// The folder of a model, as `export` writes it, in place of a training.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Also decode greedily, with the implementation that the library is used with,
    /// `briquette-models`.
    #[arg(long, requires = "model")]
    greedy: bool,
    #[command(flatten)]
    compute: Compute,
    /// Tokens of a prompt with its answer.
    #[arg(long, num_args = 1.., default_values_t = [512, 1024, 2048, 4096])]
    lengths: Vec<usize>,
    /// Hidden numbers, one asked for.
    #[arg(long, num_args = 1.., default_values_t = [1, 2, 4, 16])]
    needles: Vec<usize>,
    /// Samples of each.
    #[arg(long, default_value_t = 128)]
    samples: usize,
    /// Seeds the samples.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

#[derive(Args, Debug)]
struct Export {
    /// Folder that `prepare` wrote.
    #[arg(long)]
    data: PathBuf,
    /// Folder of the training.
    #[arg(long)]
    out: PathBuf,
    /// Folder to write, made if missing.
    #[arg(long)]
    model: PathBuf,
    /// The architecture.
    #[arg(long, default_value = "models/ember-7m/config.json")]
    config: PathBuf,
}

#[derive(Args, Debug)]
struct Plot {
    /// Folder of the training.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct Bench {
    /// Folder that `prepare` wrote.
    #[arg(long)]
    data: PathBuf,
    #[command(flatten)]
    compute: Compute,
    /// The plan, TOML; without it the one built in.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// The architecture.
    #[arg(long, default_value = "models/ember-7m/config.json")]
    config: PathBuf,
    /// Lengths to time, a micro-batch each.
    #[arg(long, num_args = 1.., default_values_t = [256, 512, 1024, 2048, 4096])]
    lengths: Vec<usize>,
    /// Micro-batches timed, after as many that are not.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Threads that draw sequences; by default all but two.
    #[arg(long)]
    threads: Option<usize>,
}

/// Runs the command of this process's arguments.
///
/// # Errors
/// What the command came upon.
pub fn run() -> Result<()> {
    match Cli::parse().command {
        None => smoke::run(),
        Some(Command::Prepare(args)) => args.run(),
        Some(Command::Train(args)) => args.run(),
        Some(Command::Evaluate(args)) => args.run(),
        Some(Command::Export(args)) => args.run(),
        Some(Command::Plot(args)) => draw(&args.out),
        Some(Command::Bench(args)) => args.run(),
    }
}

impl Compute {
    fn open(&self) -> Result<(Device, DType)> {
        let device = briquette::device::open(&self.device)?;
        let cpu = ["flex", "cpu"].iter().any(|name| self.device.starts_with(name));
        let dtype = match self.dtype {
            Some(Precision::F32) => DType::F32,
            Some(Precision::Bf16) => DType::BF16,
            None if cpu => DType::F32,
            None => DType::BF16,
        };
        ensure!(
            device.supports_dtype(dtype),
            "{} does not compute in {dtype:?}: try --dtype f32",
            self.device
        );
        Ok((device, dtype))
    }
}

impl Prepare {
    fn run(&self) -> Result<()> {
        let words = fs::read_to_string(&self.words)
            .with_context(|| format!("{} cannot be read", self.words.display()))?;
        let words: Words = serde_json::from_str(&words)
            .with_context(|| format!("{} is not a list of words", self.words.display()))?;
        let [train, held_out] =
            prepare(&self.text, &self.out, &self.model, &words, &self.held_out, self.max_chars)?;
        println!("{train} tokens to train on, {held_out} held out");
        Ok(())
    }
}

impl Train {
    fn run(&self) -> Result<()> {
        let (device, dtype) = self.compute.open()?;
        let stored = if self.resume { checkpoint::state(&self.out)? } else { None };
        let plan = match (stored, &self.plan) {
            (Some(state), None) => state.plan,
            (_, path) => plan(path.as_deref())?,
        };
        let tasks = tasks(&self.data)?;
        let config = ModelConfig::from_file(&self.config)?;
        let span = match (self.steps, self.minutes) {
            (Some(steps), _) => Span::Steps(steps),
            (None, minutes) => Span::Minutes(minutes.unwrap_or_default()),
        };
        let options = Options {
            out: self.out.clone(),
            span,
            resume: self.resume,
            change_plan: self.change_plan,
            pause_after: self.pause_after,
            pause_after_steps: None,
            checkpoint_seconds: self.checkpoint_seconds,
            log_steps: self.log_steps,
            threads: threads(self.threads),
            seed: self.seed,
            dtype,
            show: true,
        };
        let outcome = train(&config, &plan, &tasks, &device, &options)?;
        let done = if outcome.finished { "finished" } else { "paused, --resume goes on" };
        let position = outcome.position;
        println!(
            "{done}: {} steps, {:.1} M tokens, {:.0} s",
            position.step,
            position.tokens as f64 / 1e6,
            position.seconds
        );
        draw(&self.out)
    }
}

impl Evaluate {
    fn run(&self) -> Result<()> {
        let (device, dtype) = self.compute.open()?;
        let tasks = tasks(&self.data)?;
        let (layout, parameters) = match (&self.out, &self.model) {
            (Some(out), _) => trained(out, &device)?,
            (None, Some(model)) => import(model, &device)?,
            (None, None) => bail!("neither --out nor --model is given"),
        };
        let vocabulary = tasks.corpus().tokenizer.vocab_size();
        ensure!(
            vocabulary <= layout.vocabulary,
            "the tokenizer in {} has {vocabulary} entries, the model {}",
            self.data.display(),
            layout.vocabulary
        );
        let longest = self.lengths.iter().copied().max().context("no length to measure")?;
        let body = Body::new(&layout, longest, dtype, &device);
        let weights = Weights::new(&layout, &parameters, dtype);

        println!(
            "{} samples each, seed {}, words and text never trained on.\n",
            self.samples, self.seed
        );
        println!(
            "Teacher forcing: the right digits before each are fed. Exact / exact and ended / digits."
        );
        self.table(
            &tasks,
            Some(&|length| evaluate::held_out(&body, &weights, &tasks, length, 16)),
            |questions| evaluate::accuracy(&body, &weights, questions),
        )?;
        if let (true, Some(folder)) = (self.greedy, &self.model) {
            let model = Model::load(folder, &device, dtype)?;
            println!("\nGreedy decoding with the full cache. Exact / exact and ended / digits.");
            self.table(&tasks, None, |questions| evaluate::greedy(&model, questions))?;
        }
        Ok(())
    }

    fn table(
        &self,
        tasks: &Tasks,
        held_out: Option<&dyn Fn(usize) -> Result<f64>>,
        measure: impl Fn(&[Drawn]) -> Result<Accuracy>,
    ) -> Result<()> {
        let mut heads = vec!["prompt tokens".to_owned()];
        heads.extend(self.needles.iter().map(|needles| match needles {
            1 => "1 needle".to_owned(),
            more => format!("{more} needles, one asked"),
        }));
        heads.push("variables".to_owned());
        heads.extend(held_out.map(|_| "nats a token, held out".to_owned()));
        println!("\n| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
        for length in &self.lengths {
            let needles = self.needles.iter().map(|needles| Question::Needle(*needles));
            let mut cells = vec![length.to_string()];
            for question in needles.chain([Question::Variable]) {
                let asked = evaluate::questions(tasks, question, *length, self.samples, self.seed)?;
                let Accuracy { exact, ended, digits, .. } = measure(&asked)?;
                cells.push(format!("{exact:.3} / {ended:.3} / {digits:.3}"));
            }
            if let Some(held_out) = held_out {
                cells.push(format!("{:.3}", held_out(*length)?));
            }
            println!("| {} |", cells.join(" | "));
        }
        Ok(())
    }
}

impl Export {
    fn run(&self) -> Result<()> {
        let text = fs::read_to_string(&self.config)
            .with_context(|| format!("{} cannot be read", self.config.display()))?;
        let layout = Layout::new(&ModelConfig::from_json(&text)?)?;
        let device = briquette::device::open("flex")?;
        let (found, parameters) = trained(&self.out, &device)?;
        ensure!(
            found == layout,
            "the training is of another architecture than {}: {found:?}, not {layout:?}",
            self.config.display()
        );
        export(&text, &layout, &parameters, &self.data, &self.model)
    }
}

impl Bench {
    fn run(&self) -> Result<()> {
        let (device, dtype) = self.compute.open()?;
        let plan = plan(self.plan.as_deref())?;
        let tasks = tasks(&self.data)?;
        let layout = Layout::new(&ModelConfig::from_file(&self.config)?)?;
        let parameters = Parameters::random(&layout, 0, &device);
        let longest = self.lengths.iter().copied().max().context("no length to time")?;
        let body = Body::new(&layout, longest, dtype, &device);
        for length in &self.lengths {
            let mut loader = Loader::start(
                &tasks,
                &crate::data::Draw {
                    stage: 0,
                    lengths: vec![*length],
                    tokens: plan.micro_tokens,
                    mixture: Default::default(),
                },
                0,
                0,
                threads(self.threads),
            )?;
            let mut time = |repeats: usize| -> Result<f64> {
                device.sync()?;
                let start = Instant::now();
                for _ in 0..repeats {
                    let batch = loader.next_batch()?;
                    let weights = Weights::new(&layout, &parameters, dtype);
                    let scale = 1.0 / batch.weight().max(1.0);
                    let found = body.gradients(&weights, &batch, scale)?;
                    let gradients = found.of_parameters(&layout, &parameters);
                    gradients.matrices.sum().try_into_scalar::<f32>()?;
                }
                device.sync()?;
                Ok(start.elapsed().as_secs_f64())
            };
            let first = time(1)?;
            let warm = time(self.repeats)?;
            let seconds = time(self.repeats)? / self.repeats as f64;
            println!(
                "{length} tokens: {:.0} k tokens/s, {:.1} ms a micro-batch of {} (the first {first:.1} s, the next {} {warm:.1} s)",
                plan.micro_tokens as f64 / seconds / 1e3,
                seconds * 1e3,
                plan.micro_tokens,
                self.repeats,
            );
        }
        Ok(())
    }
}

fn plan(path: Option<&Path>) -> Result<Plan> {
    path.map_or_else(|| Ok(Plan::default()), Plan::load)
}

fn tasks(data: &Path) -> Result<Arc<Tasks>> {
    Ok(Arc::new(Tasks::new(Arc::new(Corpus::load(data)?))?))
}

fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| {
        thread::available_parallelism().map_or(1, |all| all.get().saturating_sub(2).max(1))
    })
}

fn trained(out: &Path, device: &Device) -> Result<(Layout, Parameters)> {
    let Checkpoint { state, parameters, .. } = checkpoint::load(out, device)?
        .with_context(|| format!("{} holds no checkpoint", out.display()))?;
    Ok((state.layout, parameters))
}

fn draw(out: &Path) -> Result<()> {
    println!("{}", plot(&read_log(out)?, out, "training")?.display());
    Ok(())
}
