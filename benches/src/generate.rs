//! Whole generation: speed, largest batch, and the parts of a decode step's time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use briquette::{
    Budget, CacheShape, HeadScores, KvCache, Policy, Profile, Prompt, QueryStatistics,
    device::Upkeep,
    ops::{Fallback, most_likely},
    policy::{PrefillCompression, Schedule},
    position::RotaryEmbedding,
};
use briquette_graph::StepGraph;
use briquette_models::{Linear, Model};
use burn::{
    module::Module,
    nn::LinearConfig,
    tensor::{DType, Device, Distribution, Int, Tensor},
};
use serde::Serialize;

use crate::{
    measure::{Effort, keep, time},
    model::{Cast, Dimensions, random_llama},
};

/// So many prompts of one length, and the number of tokens generated after each: `8:4096+1024`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Prompts at once.
    pub batch: usize,
    /// Tokens of each.
    pub prompt: usize,
    /// Tokens generated after each.
    pub new: usize,
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = || {
            let (batch, rest) = text.split_once(':')?;
            let (prompt, new) = rest.split_once('+')?;
            let [batch, prompt, new] = [batch, prompt, new].map(|part| part.trim().parse().ok());
            Some(Self { batch: batch?, prompt: prompt?, new: new? })
        };
        let setting: Option<Self> = parts();
        setting
            .filter(|setting| setting.batch > 0 && setting.prompt > 0 && setting.new > 0)
            .with_context(|| format!("`{text}` is not BATCH:PROMPT+NEW, as in 8:4096+1024"))
    }
}

/// Result of one method at one setting, written as a line of JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// `generate`.
    pub kind: &'static str,
    /// The method.
    pub method: String,
    /// Its budget.
    pub budget: String,
    /// Prompts at once.
    pub batch: usize,
    /// Tokens of each.
    pub prompt: usize,
    /// Tokens to generate after each.
    pub new: usize,
    /// Whether caches were filled with noise, so that no prefill was run.
    pub filled: bool,
    /// Decoded tokens between two compressions; absent if it does not compress in decoding.
    pub decode_every: Option<usize>,
    /// Tokens that were decoded before the time was up.
    pub decoded: usize,
    /// Seconds of the prefill; of the first one, compiling included, and of a second one if there
    /// was time.
    pub first_prefill_s: f64,
    /// See `first_prefill_s`.
    pub prefill_s: f64,
    /// Whether there was time for the second.
    pub prefill_warm: bool,
    /// Milliseconds of a decode step, the mean over all measured.
    pub step_ms: f64,
    /// Of these, milliseconds until the host has handed a step to the device: as long as a step, if
    /// something in it waits for the device.
    pub host_ms: f64,
    /// Milliseconds of a step that is replayed from a recording, where steps are.
    pub replayed_step_ms: Option<f64>,
    /// Of these, milliseconds of the host.
    pub replayed_host_ms: Option<f64>,
    /// The reason why steps were not replayed.
    pub launched_because: Option<String>,
    /// Decoded tokens per second, of the batch.
    pub decode_tokens_per_s: f64,
    /// New tokens per second with the prefill counted, of the batch.
    pub tokens_per_s: Option<f64>,
    /// Bytes that the cache reports at the end.
    pub bytes_held: usize,
    /// Bytes that all keys and values seen would take.
    pub bytes_full: usize,
    /// Live buffers on the device at the end, the model's included.
    pub bytes_in_use: Option<u64>,
    /// Bytes that the allocator took from the device for all of it.
    pub bytes_reserved: Option<u64>,
    /// Whether this is the largest batch that fits, to within an eighth.
    pub largest: bool,
    /// Decoding against the full cache at this setting in this run.
    pub decode_ratio: Option<f64>,
    /// The same ratio with the prefill counted.
    pub ratio: Option<f64>,
    /// The error, if the run failed.
    pub error: Option<String>,
    /// The device.
    pub device: String,
}

/// Parts of a decode step's time, in milliseconds on the device's clock, written as a line of JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Split {
    /// `split`.
    pub kind: &'static str,
    /// The method.
    pub method: String,
    /// Prompts at once.
    pub batch: usize,
    /// Tokens seen by then.
    pub seen: usize,
    /// The step.
    pub step_ms: f64,
    /// The products with the weights: projections, feed-forward and head.
    pub matmul_ms: f64,
    /// The cache, all layers: positions, append, attention, compression.
    pub attend_ms: f64,
    /// The rest: norms, activations, residuals, embedding, argmax, and gaps.
    pub rest_ms: f64,
    /// Time to read every weight once at this bandwidth, if it is known.
    pub weights_floor_ms: Option<f64>,
    /// The error, if the run failed.
    pub error: Option<String>,
}

/// A model and the settings of its runs.
#[derive(Debug)]
pub struct Runner {
    /// The model.
    pub model: Model,
    /// Its dimensions.
    pub dimensions: Dimensions,
    /// The device.
    pub device: Device,
    /// Its name, for people.
    pub name: String,
    /// The type of the model and of the cache.
    pub dtype: DType,
    /// Tokens of all prompts given to the model at a time.
    pub chunk: usize,
    /// The longest time of one method at one setting.
    pub limit: Duration,
    /// Bytes per second, for the floor of a step.
    pub bandwidth: Option<f64>,
    /// Whether caches are filled with noise, as many entries as a prompt leaves, instead of by a
    /// prefill.
    pub fill: bool,
    /// Decoded tokens between two compressions of the methods that compress in decoding, instead of
    /// their own.
    pub decode_every: Option<usize>,
    /// Whether steps are recorded and replayed, too.
    pub graph: bool,
}

/// Tokens that a cache which compresses them is filled with at once.
const FILLED_AT_ONCE: usize = 512;

/// Layers whose products with weights are timed in turn.
const LAYERS_IN_TURN: usize = 4;

impl Runner {
    /// A runner of a model with random weights, on a device of that name, that prefills prompts of
    /// 131 072 tokens at a time and has 50 seconds for a method. Says on stderr how long the model
    /// took to make.
    ///
    /// # Errors
    /// If the dimensions do not fit together.
    pub fn of_random_model(
        dimensions: Dimensions,
        dtype: DType,
        device: &Device,
        name: &str,
    ) -> Result<Self> {
        let started = Instant::now();
        let model = random_llama(dimensions, dtype, device)?;
        device.sync()?;
        device.memory_cleanup();
        let billions = dimensions.parameters() as f64 / 1e9;
        eprintln!("{billions:.2} G parameters in {:.1} s", started.elapsed().as_secs_f64());
        Ok(Self {
            model,
            dimensions,
            device: device.clone(),
            name: name.to_owned(),
            dtype,
            chunk: 131_072,
            limit: Duration::from_secs(50),
            bandwidth: None,
            fill: false,
            decode_every: None,
            graph: false,
        })
    }

    /// A policy by name, with a profile drawn at random where it wants one.
    ///
    /// # Errors
    /// If there is no method of that name.
    pub fn policy(&self, method: &str, budget: Budget) -> Result<Policy> {
        let mut policy = Policy::named(method, None)?.with_default_budget(budget);
        let schedule = policy.schedule();
        if let (Some(_), Some(every)) = (schedule.decode_every, self.decode_every) {
            policy = policy.with_schedule(Schedule { decode_every: Some(every), ..schedule });
        }
        Ok(policy.with_profile(Arc::new(random_profile(self.model.cache_shape()))))
    }

    /// Tensor operations that have answered for a kernel in the model or a cache, a sentence each;
    /// none on a device that has no kernels.
    pub fn fallbacks(&self) -> Vec<String> {
        // What only CubeCL can tell.
        if briquette::device::bytes_in_use(&self.device).is_none() {
            return Vec::new();
        }
        let sentence = |Fallback { operation, calls, reason }| {
            format!("{operation} was not answered by a kernel, {calls} times: {reason}")
        };
        self.model.fallbacks().into_iter().map(sentence).collect()
    }

    /// Prefill and decoding of one method at one setting.
    pub fn run(&self, method: &str, budget: Budget, setting: Setting) -> Report {
        let mut report = Report {
            kind: "generate",
            method: method.into(),
            budget: budget.to_string(),
            batch: setting.batch,
            prompt: setting.prompt,
            new: setting.new,
            filled: self.fill,
            device: self.name.clone(),
            ..Report::default()
        };
        self.device.memory_cleanup();
        if let Err(error) = guard(|| self.measure(method, budget, setting, &mut report)) {
            report.error = Some(format!("{error:#}"));
        }
        report
    }

    fn measure(
        &self,
        method: &str,
        budget: Budget,
        setting: Setting,
        report: &mut Report,
    ) -> Result<()> {
        let Setting { batch, new, .. } = setting;
        let policy = self.policy(method, budget)?;
        report.decode_every = policy.schedule().decode_every;
        let reserved = || self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        let started = Instant::now();
        let (mut cache, mut next) = self.begin(&policy, setting)?;
        report.first_prefill_s = started.elapsed().as_secs_f64();
        report.prefill_s = report.first_prefill_s;
        if !self.fill && started.elapsed() < self.limit / 4 {
            // Compiled by now.
            drop((cache, next));
            let again = Instant::now();
            (cache, next) = self.begin(&policy, setting)?;
            report.prefill_s = again.elapsed().as_secs_f64();
            report.prefill_warm = true;
        }
        // The first steps compile, and belong to nobody.
        for _ in 0..4 {
            next = self.step(next, &mut cache)?;
        }
        self.device.sync()?;
        let upkeep = Upkeep::default();
        let (mut on_host, mut all) = (Duration::ZERO, Duration::ZERO);
        while report.decoded < new && (started.elapsed() < self.limit || report.decoded == 0) {
            let steps = 16.min(new - report.decoded);
            let begun = Instant::now();
            for _ in 0..steps {
                // As a model of briquette-models does.
                upkeep.call(&self.device);
                next = self.step(next, &mut cache)?;
            }
            on_host += begun.elapsed();
            self.device.sync()?;
            all += begun.elapsed();
            report.decoded += steps;
        }
        // A launch that has failed is told where something is read.
        next.clone().try_into_vec_as::<i64>()?;
        if self.graph {
            self.replay(next, &mut cache, new, report)?;
        }
        let step = all.as_secs_f64() / report.decoded as f64;
        report.step_ms = step * 1e3;
        report.host_ms = on_host.as_secs_f64() / report.decoded as f64 * 1e3;
        report.decode_tokens_per_s = batch as f64 / step;
        // The first new token comes out of the prefill.
        let whole = report.prefill_s + step * (new - 1) as f64;
        report.tokens_per_s = (!self.fill).then(|| (batch * new) as f64 / whole);
        report.bytes_held = cache.bytes_held();
        // A cache that was filled has seen fewer tokens than it stands for.
        let seen = setting.prompt + 4 + report.decoded;
        let CacheShape { layers, kv_heads, head_dim, .. } = cache.shape();
        report.bytes_full = batch * seen * layers * kv_heads * head_dim * 2 * self.dtype.size();
        report.bytes_in_use = briquette::device::bytes_in_use(&self.device);
        report.bytes_reserved = reserved();
        Ok(())
    }

    /// Steps that are recorded and replayed.
    fn replay(
        &self,
        next: Tensor<2, Int>,
        cache: &mut KvCache,
        new: usize,
        report: &mut Report,
    ) -> Result<()> {
        let run = |tokens, cache: &mut KvCache| -> Result<_> {
            Ok(self.model.forward_last_of_known(tokens, cache)?)
        };
        let mut steps = StepGraph::new(cache, next, run).expecting(8 + new);
        for _ in 0..8 {
            steps.step()?;
        }
        self.device.sync()?;
        let before = steps.replayed();
        let begun = Instant::now();
        for _ in 0..new {
            steps.step()?;
        }
        let on_host = begun.elapsed();
        self.device.sync()?;
        let all = begun.elapsed();
        steps.tokens().try_into_vec_as::<i64>()?;
        report.launched_because = steps.launched_because().map(str::to_owned);
        if steps.replayed() - before < new / 2 {
            let counted = format!("{} of {new} were replayed", steps.replayed() - before);
            report.launched_because.get_or_insert(counted);
            return Ok(());
        }
        let of_step = |time: Duration| Some(time.as_secs_f64() / new as f64 * 1e3);
        report.replayed_step_ms = of_step(all);
        report.replayed_host_ms = of_step(on_host);
        Ok(())
    }

    /// The largest batch that runs in `memory` bytes of the device, to within an eighth: from the
    /// setting's on, each try tells what a row takes, and the next is what fits by that, four times
    /// as much at most. A try begins and makes four steps. None should go beyond the memory, which
    /// a device may not survive; if one does, the next is half-way back.
    pub fn largest_batch(
        &self,
        method: &str,
        budget: Budget,
        setting: Setting,
        memory: u64,
    ) -> Option<usize> {
        let begin = |batch| {
            let policy = self.policy(method, budget)?;
            self.begin(&policy, Setting { batch, ..setting })
        };
        self.largest(method, setting.batch, memory, &begin)
    }

    /// The largest batch, from `batch` on, for which `begin` makes a cache.
    pub(crate) fn largest(
        &self,
        method: &str,
        mut batch: usize,
        memory: u64,
        begin: &dyn Fn(usize) -> Result<(KvCache, Tensor<2, Int>)>,
    ) -> Option<usize> {
        let in_use = || briquette::device::bytes_in_use(&self.device).unwrap_or(0);
        let tries = |batch: usize| {
            self.device.memory_cleanup();
            let before = in_use();
            let used = guard(|| {
                let (mut cache, mut next) = begin(batch)?;
                for _ in 0..4 {
                    next = self.step(next, &mut cache)?;
                }
                next.try_into_vec_as::<i64>()?;
                let usage =
                    self.device.memory_pool_usage().context("the device counts no bytes")?;
                Ok(usage.bytes_reserved)
            });
            match &used {
                Ok(used) => eprintln!("{method}, batch {batch}: {:.1} GB", *used as f64 / 1e9),
                Err(error) => eprintln!("{method}, batch {batch}: {error:#}"),
            }
            used.ok().map(|used| (before, used))
        };
        let (mut fits, mut fails) = (0, usize::MAX);
        while fits == 0 || batch > fits + fits / 8 {
            let next = match tries(batch) {
                Some((before, used)) => {
                    fits = batch;
                    // A twentieth is left for what is not the allocator's.
                    let room = (memory / 20 * 19).saturating_sub(before);
                    let row = used.saturating_sub(before).div_ceil(batch as u64).max(1);
                    ((room / row) as usize).min(4 * batch)
                }
                None => {
                    fails = batch;
                    batch
                }
            };
            if fits == 0 {
                break;
            }
            batch = if next < fails { next } else { fits.midpoint(fails) };
        }
        (fits > 0).then_some(fits)
    }

    /// Measures the parts of a decode step's time.
    pub fn split(&self, method: &str, budget: Budget, setting: Setting) -> Split {
        let mut split = Split {
            kind: "split",
            method: method.into(),
            batch: setting.batch,
            ..Split::default()
        };
        self.device.memory_cleanup();
        if let Err(error) = guard(|| self.measure_split(method, budget, setting, &mut split)) {
            split.error = Some(format!("{error:#}"));
        }
        split
    }

    fn measure_split(
        &self,
        method: &str,
        budget: Budget,
        setting: Setting,
        split: &mut Split,
    ) -> Result<()> {
        let batch = setting.batch;
        let policy = self.policy(method, budget)?;
        let (mut cache, mut next) = self.begin(&policy, setting)?;
        for _ in 0..4 {
            next = self.step(next, &mut cache)?;
        }
        split.seen = cache.tokens_seen().first().copied().unwrap_or(0);
        const STEPS: usize = 8;
        split.step_ms = self.mean(STEPS, || {
            next = self.step(next.clone(), &mut cache)?;
            Ok(())
        })?;

        let Dimensions { layers, query_heads, kv_heads, head_dim, context, .. } = self.dimensions;
        let noise = |heads| {
            let normal = Distribution::Normal(0.0, 1.0);
            let options = (&self.device, self.dtype);
            Tensor::<4>::random([batch, heads, 1, head_dim], normal, options)
        };
        let (queries, keys, values) = (noise(query_heads), noise(kv_heads), noise(kv_heads));
        let rope = RotaryEmbedding::new(head_dim, context, 500_000.0, &self.device)?;
        let mut attend = || -> Result<()> {
            for layer in 0..layers {
                let (queries, keys, values) = (queries.clone(), keys.clone(), values.clone());
                drop(cache.attend(layer, queries, keys, values, &rope)?);
            }
            Ok(())
        };
        for _ in 0..4 {
            attend()?;
        }
        split.attend_ms = self.mean(STEPS, attend)?;
        drop(cache);
        split.matmul_ms = self.matmuls(batch)?;
        split.rest_ms = split.step_ms - split.attend_ms - split.matmul_ms;
        // The embedding is a look-up.
        let read =
            self.dimensions.parameters() - self.dimensions.vocabulary * self.dimensions.hidden;
        let bytes = (read * self.dtype.size()) as f64;
        split.weights_floor_ms = self.bandwidth.map(|bandwidth| bytes / bandwidth * 1e3);
        Ok(())
    }

    /// Milliseconds of all products with weights in one decode step.
    fn matmuls(&self, batch: usize) -> Result<f64> {
        let Dimensions {
            layers, hidden, inner, query_heads, kv_heads, head_dim, vocabulary, ..
        } = self.dimensions;
        let (queries, keys) = (query_heads * head_dim, kv_heads * head_dim);
        // As the model's layers have them, a layer at a time: weights of one would stay in the
        // cache of the device.
        let product = |input: usize, output: usize| -> (Linear, Tensor<3>) {
            let linear = LinearConfig::new(input, output).with_bias(false).init(&self.device);
            let normal = Distribution::Normal(0.0, 1.0);
            let options = (&self.device, self.dtype);
            let x = Tensor::<3>::random([batch, 1, input], normal, options);
            (Linear::from(linear).map(&mut Cast(self.dtype)), x)
        };
        let of_layer = || {
            [
                product(hidden, queries + 2 * keys),
                product(queries, hidden),
                product(hidden, 2 * inner),
                product(inner, hidden),
            ]
        };
        let some = layers.min(LAYERS_IN_TURN);
        let of_layers: Vec<_> = (0..some).flat_map(|_| of_layer()).collect();
        let head = [product(hidden, vocabulary)];
        let all = |products: &[(Linear, Tensor<3>)]| {
            let effort = Effort { windows: 5, ..Effort::FULL };
            let timing = time(&self.device, effort, 1, &|_| {
                let outputs = products.iter().map(|(linear, x)| linear.forward(x.clone()));
                keep(outputs.collect::<briquette_models::Result<Vec<Tensor<3>>>>()?)
            })?;
            anyhow::Ok(timing.device)
        };
        Ok(all(&of_layers)? * layers as f64 / some as f64 + all(&head)?)
    }

    /// Milliseconds of `work`, on the host's clock with the device done at both ends, the mean of
    /// so many.
    fn mean(&self, times: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        self.device.sync()?;
        let started = Instant::now();
        for _ in 0..times {
            work()?;
        }
        self.device.sync()?;
        Ok(started.elapsed().as_secs_f64() * 1e3 / times as f64)
    }

    /// A cache that has seen the prompts, and the first new token of each, `[batch, 1]`.
    fn begin(&self, policy: &Policy, setting: Setting) -> Result<(KvCache, Tensor<2, Int>)> {
        if self.fill { self.fill(policy, setting) } else { self.prefill(policy, setting) }
    }

    /// A cache that holds what it would after the prompts, without the model's work for them:
    /// noise, a layer at a time. One that compresses to so many columns is given twice as many
    /// tokens, and compresses them whenever some have come; another the whole prompts, in parts.
    fn fill(&self, policy: &Policy, setting: Setting) -> Result<(KvCache, Tensor<2, Int>)> {
        let Setting { batch, prompt, new } = setting;
        let Dimensions { layers, query_heads, kv_heads, head_dim, context, .. } = self.dimensions;
        let (tokens, chunk) = match policy.budget() {
            Some(Budget::Tokens(budget)) => {
                let tokens = (2 * policy.reducer().columns(budget)).min(prompt);
                // Layers that are compressed together hold what comes at once, all of them.
                (tokens, (self.chunk / batch).clamp(1, tokens.min(FILLED_AT_ONCE)))
            }
            _ => (prompt, (self.chunk / batch).clamp(1, prompt)),
        };
        let schedule = policy.schedule();
        let policy = match schedule.prefill {
            PrefillCompression::Never => policy.clone(),
            // What comes at once would take more room than what is held.
            _ => policy
                .clone()
                .with_schedule(Schedule { prefill: PrefillCompression::EveryChunk, ..schedule }),
        };
        let mut cache = self.cache(&policy, prompt + new + 16)?;
        let rope = RotaryEmbedding::new(head_dim, context, 500_000.0, &self.device)?;
        cache.begin_prompt(Prompt::new(tokens))?;
        for start in (0..tokens).step_by(chunk) {
            let part = chunk.min(tokens - start);
            // Not normal: of 10^8 numbers of normal noise some came out infinite.
            let noise = |heads| {
                let uniform = Distribution::Uniform(-1.7, 1.7);
                let shape = [batch, heads, part, head_dim];
                Tensor::<4>::random(shape, uniform, (&self.device, self.dtype))
            };
            for layer in 0..layers {
                let (queries, keys) = (noise(query_heads), noise(kv_heads));
                drop(cache.attend(layer, queries, keys, noise(kv_heads), &rope)?);
            }
        }
        self.device.sync()?;
        // What was needed to fill it is no part of what it takes.
        self.device.memory_cleanup();
        Ok((cache, Tensor::zeros([batch, 1], &self.device)))
    }

    /// As a model's own cache, with the room a full one needs made at once.
    pub(crate) fn cache(&self, policy: &Policy, capacity: usize) -> Result<KvCache> {
        let config = self.model.cache_config(policy).with_capacity(capacity);
        let shape = self.model.cache_shape();
        Ok(KvCache::with_config(shape, policy.clone(), config, &self.device)?)
    }

    pub(crate) fn prefill(
        &self,
        policy: &Policy,
        setting: Setting,
    ) -> Result<(KvCache, Tensor<2, Int>)> {
        let Setting { batch, prompt, new } = setting;
        if prompt + new + 16 > self.dimensions.context {
            bail!("{prompt} + {new} tokens do not fit in {} of context", self.dimensions.context);
        }
        let mut cache = self.cache(policy, prompt + new + 16)?;
        let highest = self.dimensions.vocabulary as f64 - 1.0;
        let uniform = Distribution::Uniform(0.0, highest);
        let tokens =
            Tensor::<2>::random([batch, prompt], uniform, (&self.device, DType::F32)).int();
        cache.begin_prompt(Prompt::new(prompt))?;
        let chunk = (self.chunk / batch).clamp(1, prompt);
        let mut logits = None;
        for start in (0..prompt).step_by(chunk) {
            let part = tokens.clone().narrow(1, start, chunk.min(prompt - start));
            logits = Some(self.model.forward_last_of_known(part, &mut cache)?);
        }
        let logits = logits.ok_or_else(|| anyhow!("the prompt is empty"))?;
        let next = most_likely(logits);
        self.device.sync()?;
        Ok((cache, next))
    }

    /// The next token of each row, `[batch, 1]`. Nothing of it is read back.
    pub(crate) fn step(
        &self,
        tokens: Tensor<2, Int>,
        cache: &mut KvCache,
    ) -> Result<Tensor<2, Int>> {
        Ok(most_likely(self.model.forward_last_of_known(tokens, cache)?))
    }
}

/// A profile of a model that was never trained.
pub fn random_profile(shape: CacheShape) -> Profile {
    // Any numbers do; these differ from each other.
    let number = |seed: usize| (seed * 7919 % 1009) as f64 / 1009.0;
    let table = |kind: usize| {
        let heads = |layer: usize| {
            let score = |head: usize| number(1 + kind + 3 * (layer * shape.query_heads + head));
            (0..shape.query_heads).map(score).collect()
        };
        (0..shape.layers).map(heads).collect()
    };
    let channels = |heads: usize, width: usize| -> Vec<Vec<Vec<f64>>> {
        let head = |at: usize| (0..width).map(|channel| number(1 + at * width + channel)).collect();
        (0..shape.layers)
            .map(|layer| (0..heads).map(|index| head(layer * heads + index)).collect())
            .collect()
    };
    Profile {
        model: "random weights".into(),
        made: "drawn".into(),
        weights: None,
        shape,
        heads: HeadScores { semantic: table(0), copy_paste: table(1), headkv: table(2) },
        layer_errors: (0..shape.layers).map(|layer| 0.5 + number(layer + 1)).collect(),
        queries: Some(QueryStatistics {
            directions: channels(shape.kv_heads, shape.head_dim),
            means: channels(shape.query_heads, shape.head_dim),
            lengths: channels(shape.query_heads, shape.head_dim / 2),
            reach: channels(1, shape.kv_heads).into_iter().flatten().collect(),
        }),
        patterns: None,
    }
}

/// Turns a panic, as of memory that ran out, into an error.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()));
        Err(anyhow!("panicked: {}", text.unwrap_or_default()))
    })
}
