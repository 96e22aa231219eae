use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use briquette_models::ModelConfig;
use burn::{
    module::{Module, ModuleVisitor, Param, ParamGroup},
    optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{DType, Device, Tensor},
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    data::{Drawn, Tasks, generator},
    model::{Batch, Ember},
    plan::Plan,
};

/// Tokens that go through the model at once. The graph holds the matrices of weights of all heads
/// and layers for as many.
const PASS: usize = 16_384;
/// Steps between two lines of the log.
const LOG_STEPS: usize = 20;
/// Seconds between two checkpoints.
const CHECKPOINT_SECONDS: u64 = 60;

#[derive(Deserialize, Serialize)]
struct State {
    seed: u64,
    /// Steps done.
    step: usize,
    seconds: f64,
}

/// A training, which goes on from the checkpoint in its folder if there is one.
pub struct Training<'a> {
    plan: &'a Plan,
    tasks: &'a Tasks,
    run: &'a Path,
    device: Device,
    /// Type of products, f32 or bf16.
    dtype: DType,
    pub model: Ember,
    optimizer: ModuleOptimizer,
    state: State,
    log: File,
}

impl<'a> Training<'a> {
    pub fn start(
        plan: &'a Plan,
        tasks: &'a Tasks,
        run: &'a Path,
        (device, dtype): (Device, DType),
        seed: u64,
    ) -> Result<Self> {
        let device = device.autodiff();
        let config = ModelConfig::from_file(run.join("config.json"))?;
        let mut model = Ember::new(&config, seed, &device)?;
        let adamw = AdamWConfig::new().with_beta_1(0.9).with_beta_2(0.95).with_epsilon(1e-8);
        let norms = adamw.clone().with_weight_decay(0.0).build();
        let adamw = adamw.with_weight_decay(plan.weight_decay).init();
        let mut optimizer = adamw.with_group(ParamGroup::from_predicate("norm"), norms, None);
        let mut state = State { seed, step: 0, seconds: 0.0 };
        if run.join(STATE).exists() {
            state = read_state(run)?;
            ensure!(state.seed == seed, "the training was begun with seed {}", state.seed);
            model = model.try_load_file(file(run, "model", state.step))?;
            optimizer = optimizer.load(file(run, "optimizer", state.step))?;
        }
        let log = open_log(&run.join("log.jsonl"), state.step)?;
        Ok(Self { plan, tasks, run, device, dtype, model, optimizer, state, log })
    }

    /// Trains, at most `pause` steps. Returns whether the training is over.
    pub fn run(&mut self, pause: Option<usize>) -> Result<bool> {
        let mut saved = (self.state.step, Instant::now());
        let mut since = Vec::new();
        let mut began = Instant::now();
        let end = pause.map_or(usize::MAX, |pause| self.state.step + pause);
        while let Some((index, of_stage)) = self.plan.stage(self.state.step)
            && self.state.step < end
        {
            let rate = self.plan.rate(self.state.step, index, of_stage);
            since.push(self.step(index, of_stage, rate)?);
            self.state.step += 1;
            let last = self.state.step == end || self.plan.stage(self.state.step).is_none();
            if last || self.state.step.is_multiple_of(LOG_STEPS) {
                self.log_steps(std::mem::take(&mut since), index, rate, began)?;
                began = Instant::now();
            }
            if last || saved.1.elapsed().as_secs() >= CHECKPOINT_SECONDS {
                self.save(saved.0)?;
                saved = (self.state.step, Instant::now());
            }
        }
        Ok(self.plan.stage(self.state.step).is_none())
    }

    /// A micro-batch of a stage. A sequence depends on the seed, the stage and its number in the
    /// stage only, wherever a run begins again.
    fn draw(&self, index: usize, number: usize) -> Vec<Drawn> {
        let (tasks, stage, seed) = (self.tasks, &self.plan.stages[index], self.state.seed);
        let length = stage.lengths[number % stage.lengths.len()];
        let draw = |row: usize| {
            let mut rng = generator([seed, index as u64, number as u64, row as u64]);
            tasks.draw(&mut rng, length, &stage.mixture)
        };
        (0..self.plan.micro_tokens / length).into_par_iter().map(draw).collect()
    }

    /// Makes one step. Returns the loss and the norm of all gradients before clipping.
    fn step(&mut self, index: usize, of_stage: usize, rate: f64) -> Result<[Tensor<1>; 2]> {
        let micro = self.plan.step_tokens / self.plan.micro_tokens;
        let numbers = of_stage * micro..(of_stage + 1) * micro;
        let batches: Vec<_> = numbers.map(|number| self.draw(index, number)).collect();
        let weights = batches.iter().flatten().flat_map(|row| &row.weights);
        let weight = weights.map(|weight| f64::from(*weight)).sum::<f64>().max(1.0);
        let (mut accumulator, mut losses) = (GradientsAccumulator::new(), Vec::new());
        for rows in
            batches.iter().flat_map(|rows| rows.chunks((PASS / rows[0].tokens.len()).max(1)))
        {
            let batch = Batch::new(rows, &self.device);
            let loss = (self.model.losses(&batch, self.dtype) * batch.weights).sum() / weight;
            let found = GradientsParams::from_grads(loss.backward(), &self.model);
            accumulator.accumulate(&self.model, found);
            losses.push(loss.inner());
        }
        let mut clipping = Clipping { gradients: accumulator.grads(), squares: vec![], by: None };
        self.model.visit(&mut clipping);
        let norm = Tensor::cat(std::mem::take(&mut clipping.squares), 0).sum().sqrt();
        let by = (norm.clone().add_scalar(1e-6).recip() * self.plan.clip).clamp_max(1.0);
        clipping.by = Some(by);
        self.model.visit(&mut clipping);
        self.model = self.optimizer.step(rate, self.model.clone(), clipping.gradients);
        Ok([Tensor::cat(losses, 0).sum(), norm])
    }

    /// Reads back losses and norms of the steps that `began` then, and writes their means.
    fn log_steps(
        &mut self,
        since: Vec<[Tensor<1>; 2]>,
        stage: usize,
        rate: f64,
        began: Instant,
    ) -> Result<()> {
        let mean = |of: usize| -> Result<f64> {
            let all: Vec<Tensor<1>> = since.iter().map(|step| step[of].clone()).collect();
            Ok(Tensor::cat(all, 0).mean().try_into_scalar::<f64>()?)
        };
        let (loss, norm) = (mean(0)?, mean(1)?);
        let (step, seconds) = (self.state.step, began.elapsed().as_secs_f64());
        ensure!(loss.is_finite(), "the loss is {loss} at step {step}");
        self.state.seconds += seconds;
        let speed = (since.len() * self.plan.step_tokens) as f64 / seconds;
        let line = json!({
            "kind": "steps", "step": step, "stage": stage, "tokens": step * self.plan.step_tokens,
            "seconds": self.state.seconds, "loss": loss, "norm": norm, "rate": rate, "speed": speed
        });
        println!("{line}");
        Ok(writeln!(self.log, "{line}")?)
    }

    /// Writes the files of a checkpoint beside those of step `old`, then the state that names them:
    /// a crash leaves one of the two.
    fn save(&self, old: usize) -> Result<()> {
        let (run, step) = (self.run, self.state.step);
        self.model.clone().save_file(file(run, "model", step))?;
        self.optimizer.save(file(run, "optimizer", step))?;
        let fresh = run.join("state.json.new");
        fs::write(&fresh, serde_json::to_string(&self.state)?)?;
        fs::rename(fresh, run.join(STATE))?;
        if old > 0 {
            fs::remove_file(file(run, "model", old))?;
            fs::remove_file(file(run, "optimizer", old))?;
        }
        Ok(())
    }
}

const STATE: &str = "state.json";

fn read_state(run: &Path) -> Result<State> {
    let text = fs::read_to_string(run.join(STATE)).context("--run holds no checkpoint")?;
    Ok(serde_json::from_str(&text)?)
}

fn file(run: &Path, name: &str, step: usize) -> PathBuf {
    run.join(format!("{name}-{step}.bpk"))
}

/// The model of a training's checkpoint.
pub fn trained(run: &Path, device: &Device) -> Result<Ember> {
    let model = Ember::new(&ModelConfig::from_file(run.join("config.json"))?, 0, device)?;
    Ok(model.try_load_file(file(run, "model", read_state(run)?.step))?)
}

/// Opens the log of a training that goes on behind `step`, without the lines behind it: these steps
/// are trained again.
fn open_log(path: &Path, step: usize) -> Result<File> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let kept = text.lines().filter(|line| {
        // A run that was killed may have left half a line.
        let line = serde_json::from_str::<Value>(line).unwrap_or_default();
        line["step"].as_u64().is_some_and(|of_line| of_line <= step as u64)
    });
    fs::write(path, kept.map(|line| line.to_owned() + "\n").collect::<String>())?;
    Ok(OpenOptions::new().append(true).open(path)?)
}

/// Gradients, which a visit multiplies by a number, `[1]`, or without one sums up the squares of.
struct Clipping {
    gradients: GradientsParams,
    squares: Vec<Tensor<1>>,
    by: Option<Tensor<1>>,
}

impl ModuleVisitor for Clipping {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(mut gradient) = self.gradients.remove::<D>(param.id) else { return };
        match &self.by {
            Some(by) => gradient = gradient * by.clone().unsqueeze::<D>(),
            None => self.squares.push(gradient.clone().square().sum()),
        }
        self.gradients.register(param.id, gradient);
    }
}
