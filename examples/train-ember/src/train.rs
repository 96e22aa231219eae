use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use briquette_models::ModelConfig;
use burn::tensor::{DType, Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    Line, Plan,
    checkpoint::{self, Checkpoint, Position},
    data::{Draw, Loader, Tasks},
    evaluate::{self, Question},
    log,
    model::{Body, Layout, Parameters, Weights},
    optimizer::Optimizer,
};

/// Contexts of the held-out text in a measurement during training.
const CONTEXTS: usize = 16;

/// The length of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// So many minutes of training, over all runs.
    Minutes(f64),
    /// So many steps, over all runs.
    Steps(usize),
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of checkpoint and log, made if missing.
    pub out: PathBuf,
    /// The whole training.
    pub span: Span,
    /// Continue from the checkpoint in `out`, under the same plan.
    pub resume: bool,
    /// Continue under another plan than the checkpoint's.
    pub change_plan: bool,
    /// This run ends after so many minutes, with a checkpoint to continue from.
    pub pause_after: Option<f64>,
    /// This run ends after so many steps, with a checkpoint to continue from.
    pub pause_after_steps: Option<usize>,
    /// Seconds between two checkpoints.
    pub checkpoint_seconds: f64,
    /// Steps between two lines of the log.
    pub log_steps: usize,
    /// Threads that draw sequences.
    pub threads: usize,
    /// Seeds weights and sequences.
    pub seed: u64,
    /// Type of the computation, f32 or bf16.
    pub dtype: DType,
    /// Shows a bar and lines.
    pub show: bool,
}

/// State of a training at the end of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The position of the training.
    pub position: Position,
    /// Whether it is over; if not, it can be resumed.
    pub finished: bool,
    /// Lines of the log that this run wrote.
    pub lines: Vec<Line>,
    /// The weights.
    pub parameters: Parameters,
}

/// Trains a model of this configuration, or goes on where the last run stopped.
///
/// # Errors
/// If the plan or the configuration cannot be trained, a checkpoint is there and not asked for or
/// the other way round, a file cannot be written, or the loss is not finite.
pub fn train(
    config: &ModelConfig,
    plan: &Plan,
    tasks: &Arc<Tasks>,
    device: &Device,
    options: &Options,
) -> Result<Outcome> {
    Run::start(config, plan, tasks, device, options)?.run()
}

struct Run<'a> {
    plan: &'a Plan,
    tasks: &'a Arc<Tasks>,
    options: &'a Options,
    body: Body,
    parameters: Parameters,
    optimizer: Optimizer,
    position: Position,
    log: File,
    lines: Vec<Line>,
    bar: ProgressBar,
}

impl<'a> Run<'a> {
    fn start(
        config: &ModelConfig,
        plan: &'a Plan,
        tasks: &'a Arc<Tasks>,
        device: &Device,
        options: &'a Options,
    ) -> Result<Self> {
        plan.check()?;
        ensure!(
            config.max_position_embeddings >= plan.longest(),
            "the plan has {} tokens, the model {} positions",
            plan.longest(),
            config.max_position_embeddings
        );
        let vocabulary = tasks.corpus().tokenizer.vocab_size();
        ensure!(
            config.vocab_size >= vocabulary,
            "the tokenizer has {vocabulary} entries, the model {}",
            config.vocab_size
        );
        let layout = Layout::new(config)?;
        let body = Body::new(&layout, plan.longest(), options.dtype, device);
        let mut optimizer = Optimizer::new(plan);
        std::fs::create_dir_all(&options.out)
            .with_context(|| format!("{} cannot be made", options.out.display()))?;
        let out = options.out.display();
        let (position, parameters) = match (checkpoint::load(&options.out, device)?, options.resume)
        {
            (Some(_), false) => bail!("{out} holds a checkpoint: --resume continues it"),
            (None, true) => bail!("{out} holds no checkpoint to resume"),
            (None, false) => {
                (Position::default(), Parameters::random(&layout, options.seed, device))
            }
            (Some(Checkpoint { state, parameters, memory }), true) => {
                ensure!(
                    state.seed == options.seed,
                    "the checkpoint was begun with seed {}, not {}",
                    state.seed,
                    options.seed
                );
                ensure!(
                    state.layout == layout,
                    "the checkpoint is of another architecture: {:?}, not {layout:?}",
                    state.layout
                );
                let differences = state.plan.differences(plan)?;
                ensure!(
                    differences.is_empty() || options.change_plan,
                    "the checkpoint has another plan ({}): --change-plan goes on under this one",
                    differences.join("; ")
                );
                ensure!(
                    state.position.stage <= plan.stages.len(),
                    "the checkpoint is in stage {}, the plan has {} stages",
                    state.position.stage,
                    plan.stages.len()
                );
                optimizer.state = memory;
                (state.position, parameters)
            }
        };
        let log = log::open(&options.out, position.step)?;
        let bar = if options.show { ProgressBar::new(1000) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}")?);
        let lines = Vec::new();
        Ok(Self { plan, tasks, options, body, parameters, optimizer, position, log, lines, bar })
    }

    fn run(mut self) -> Result<Outcome> {
        let mut clock = Clock::new(self.position.seconds);
        let mut saved = Instant::now();
        let begun = self.position.step;
        while self.position.stage < self.plan.stages.len() {
            let paused = self.stage(&mut clock, &mut saved, begun)?;
            if paused {
                break;
            }
            self.position.stage += 1;
            self.position.stage_step = 0;
            self.position.seconds_before_stage = self.position.seconds;
            self.position.steps_before_stage = self.position.step;
        }
        self.save()?;
        self.bar.finish_and_clear();
        Ok(Outcome {
            finished: self.position.stage == self.plan.stages.len(),
            position: self.position,
            lines: self.lines,
            parameters: self.parameters,
        })
    }

    /// Trains a stage to its end, or to where this run pauses; returns which.
    fn stage(&mut self, clock: &mut Clock, saved: &mut Instant, begun: usize) -> Result<bool> {
        let index = self.position.stage;
        let stage = &self.plan.stages[index];
        let micro = stage.step_tokens / self.plan.micro_tokens;
        let draw = Draw {
            stage: index,
            lengths: stage.lengths.clone(),
            tokens: self.plan.micro_tokens,
            mixture: stage.mixture,
        };
        let first = self.position.stage_step * micro;
        let (seed, threads) = (self.options.seed, self.options.threads);
        let mut loader = Loader::start(self.tasks, &draw, seed, first, threads)?;
        let mut since = Since::default();
        loop {
            let progress = self.progress();
            if progress >= 1.0 {
                self.write(&mut since, clock)?;
                return Ok(false);
            }
            let rate = self.plan.rate(index, progress, self.position.step);
            let (loss, norm) = self.step(&mut loader, micro, rate)?;
            if self.position.step == begun && matches!(self.options.span, Span::Minutes(_)) {
                // Kernels are compiled in the first step of a run: its time is not training.
                self.body.device().sync()?;
                clock.restart();
            }
            self.position.step += 1;
            self.position.stage_step += 1;
            self.position.tokens += stage.step_tokens as u64;
            since.add(loss, norm, rate, stage.step_tokens);
            let ends = self.pauses(clock, begun);
            if self.position.step.is_multiple_of(self.options.log_steps) || ends {
                self.write(&mut since, clock)?;
            }
            self.position.seconds = clock.seconds();
            if self.position.stage_step.is_multiple_of(self.plan.probe_steps) {
                // First, so that the speed of these steps is not that of the measurement.
                self.write(&mut since, clock)?;
                let enough = self.probe(index)?;
                self.position.seconds = clock.seconds();
                since.began = Instant::now();
                if enough {
                    return Ok(false);
                }
            }
            if ends {
                return Ok(true);
            }
            if saved.elapsed().as_secs_f64() >= self.options.checkpoint_seconds {
                self.save()?;
                *saved = Instant::now();
            }
        }
    }

    fn step(
        &mut self,
        loader: &mut Loader,
        micro: usize,
        rate: f64,
    ) -> Result<(Tensor<1>, Tensor<1>)> {
        let batches = (0..micro).map(|_| loader.next_batch()).collect::<Result<Vec<_>>>()?;
        let weight: f64 = batches.iter().map(crate::model::Batch::weight).sum();
        let scale = 1.0 / weight.max(1.0);
        let layout = self.body.layout();
        let weights = Weights::new(layout, &self.parameters, self.body.dtype());
        let mut sum = None;
        for batch in &batches {
            let found = self.body.gradients(&weights, batch, scale)?;
            sum = Some(match sum {
                Some(sum) => found.add(sum),
                None => found,
            });
        }
        let sum = sum.context("a step without a micro-batch")?;
        let loss = sum.loss.clone();
        let gradients = sum.of_parameters(layout, &self.parameters);
        let (parameters, norm) = self.optimizer.step(rate, self.parameters.clone(), gradients);
        self.parameters = parameters;
        Ok((loss, norm))
    }

    /// Progress in the stage, from 0 to 1. The rest of the training is shared among the remaining
    /// stages.
    fn progress(&self) -> f64 {
        let left: f64 = self.plan.stages[self.position.stage..].iter().map(|s| s.share).sum();
        let share = self.plan.stages[self.position.stage].share / left;
        let p = &self.position;
        match self.options.span {
            Span::Minutes(minutes) => {
                let room = (minutes * 60.0 - p.seconds_before_stage) * share;
                (p.seconds - p.seconds_before_stage) / room.max(1e-9)
            }
            Span::Steps(steps) => {
                let room = (steps.saturating_sub(p.steps_before_stage)) as f64 * share;
                p.stage_step as f64 / room.round().max(1e-9)
            }
        }
    }

    fn pauses(&self, clock: &Clock, begun: usize) -> bool {
        let steps = self.options.pause_after_steps;
        let minutes = self.options.pause_after;
        steps.is_some_and(|steps| self.position.step - begun >= steps)
            || minutes.is_some_and(|minutes| clock.run.elapsed().as_secs_f64() >= minutes * 60.0)
    }

    /// Reads back losses and norms of the steps since the last line.
    fn write(&mut self, since: &mut Since, clock: &Clock) -> Result<()> {
        let Some((loss, norm)) = since.read()? else { return Ok(()) };
        self.position.seconds = clock.seconds();
        let speed = since.tokens as f64 / since.began.elapsed().as_secs_f64().max(1e-9);
        ensure!(
            loss.is_finite() && norm.is_finite(),
            "the loss is {loss} and the gradient's norm {norm} at step {}",
            self.position.step
        );
        let line = Line::Steps {
            step: self.position.step,
            stage: self.position.stage,
            tokens: self.position.tokens,
            seconds: self.position.seconds,
            loss,
            norm,
            rate: since.rate,
            speed,
        };
        let text = format!(
            "stage {} step {}: loss {loss:.3}, norm {norm:.2}, {:.0} k tokens/s, {:.1} M tokens, {:.0} s",
            self.position.stage,
            self.position.step,
            speed / 1e3,
            self.position.tokens as f64 / 1e6,
            self.position.seconds,
        );
        *since = Since::default();
        self.show(&text);
        self.push(line)
    }

    /// Measures, and tells whether that is enough for this stage.
    fn probe(&mut self, index: usize) -> Result<bool> {
        let stage = &self.plan.stages[index];
        let (body, plan) = (&self.body, self.plan);
        let weights = Weights::new(body.layout(), &self.parameters, body.dtype());
        let length = stage.lengths[0];
        let seed = self.options.seed;
        let measure = |question| {
            let questions =
                evaluate::questions(self.tasks, question, length, plan.probe_samples, seed)?;
            evaluate::accuracy(body, &weights, &questions)
        };
        let accuracy = measure(Question::Needle(stage.probe_needles))?;
        let fits = stage.enough_variables.is_some()
            || evaluate::questions(self.tasks, Question::Variable, length, 1, seed).is_ok();
        let variables =
            fits.then(|| measure(Question::Variable)).transpose()?.map(|found| found.exact);
        let held_out = evaluate::held_out(body, &weights, self.tasks, length, CONTEXTS)?;
        let line = Line::Probe {
            step: self.position.step,
            stage: index,
            tokens: self.position.tokens,
            length,
            needles: stage.probe_needles,
            exact: accuracy.exact,
            digits: accuracy.digits,
            variables,
            held_out,
        };
        self.show(&format!(
            "    {} needles in {length} tokens: {:.2} exact, {:.2} digits; variables {}; held out {held_out:.3}",
            stage.probe_needles,
            accuracy.exact,
            accuracy.digits,
            variables.map_or("not asked for".into(), |exact| format!("{exact:.2} exact")),
        ));
        self.push(line)?;
        let goals = [(stage.enough, Some(accuracy.exact)), (stage.enough_variables, variables)];
        let reached: Vec<bool> =
            goals.into_iter().filter_map(|(enough, share)| Some(share? >= enough?)).collect();
        Ok(!reached.is_empty() && reached.iter().all(|reached| *reached))
    }

    fn push(&mut self, line: Line) -> Result<()> {
        writeln!(self.log, "{}", serde_json::to_string(&line)?)?;
        self.lines.push(line);
        Ok(())
    }

    fn show(&self, text: &str) {
        if !self.options.show {
            return;
        }
        let done = match self.options.span {
            Span::Minutes(minutes) => self.position.seconds / (60.0 * minutes),
            Span::Steps(steps) => self.position.step as f64 / steps.max(1) as f64,
        };
        let left = self.position.seconds * (1.0 / done.max(1e-9) - 1.0);
        self.bar.set_position((done * 1000.0) as u64);
        self.bar.set_message(format!("{left:.0} s left"));
        self.bar.suspend(|| println!("{text}"));
    }

    fn save(&self) -> Result<()> {
        checkpoint::save(
            &self.options.out,
            self.plan,
            self.options.seed,
            self.body.layout(),
            &self.position,
            &self.parameters,
            &self.optimizer,
        )
    }
}

/// Seconds of training over all runs.
struct Clock {
    before: f64,
    began: Instant,
    /// Time at which this run began.
    run: Instant,
}

impl Clock {
    fn new(before: f64) -> Self {
        Self { before, began: Instant::now(), run: Instant::now() }
    }

    fn restart(&mut self) {
        self.began = Instant::now();
    }

    fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }
}

/// Losses and norms that still lie on the device.
struct Since {
    losses: Vec<Tensor<1>>,
    norms: Vec<Tensor<1>>,
    rate: f64,
    tokens: usize,
    began: Instant,
}

impl Default for Since {
    fn default() -> Self {
        Self { losses: vec![], norms: vec![], rate: 0.0, tokens: 0, began: Instant::now() }
    }
}

impl Since {
    fn add(&mut self, loss: Tensor<1>, norm: Tensor<1>, rate: f64, tokens: usize) {
        self.losses.push(loss);
        self.norms.push(norm);
        self.rate = rate;
        self.tokens += tokens;
    }

    /// Their means; `None` if there are none.
    fn read(&mut self) -> Result<Option<(f64, f64)>> {
        if self.losses.is_empty() {
            return Ok(None);
        }
        let mean = |tensors: &mut Vec<Tensor<1>>| -> Result<f64> {
            let all = Tensor::cat(std::mem::take(tensors), 0).mean();
            Ok(all.try_into_scalar::<f64>()?)
        };
        Ok(Some((mean(&mut self.losses)?, mean(&mut self.norms)?)))
    }
}

/// The default of [`Options::checkpoint_seconds`].
pub const CHECKPOINT_SECONDS: f64 = Duration::from_secs(60).as_secs() as f64;
