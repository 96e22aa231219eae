//! Whole generation: speed and largest batch.

mod fill;
mod plain;
mod report;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use briquette::{
    Budget, CacheShape, HeadScores, KvCache, Policy, PrefillCompression, Profile, Prompt,
    QueryStatistics, device::Upkeep, ops::Fallback,
};
use briquette_graph::{StepGraph, room_of};
use briquette_models::{DeviceMap, Model};
use briquette_ops::most_likely;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};

use crate::{
    bench::guard,
    model::{Dimensions, random_llama},
    settings::Setting,
};
use fill::compresses_in_decoding;
use plain::PLAIN;
pub use report::{Point, Report, simpson};

/// A model and the settings of its runs.
#[derive(Debug)]
pub struct Runner {
    /// The model.
    pub model: Model,
    /// Its dimensions.
    pub dimensions: Dimensions,
    /// The device of its embeddings.
    pub device: Device,
    /// The names of its devices, for people.
    pub name: String,
    /// The name of the settings in their file.
    pub settings: Option<String>,
    /// The type of the model and of the cache.
    pub dtype: DType,
    /// Tokens of all prompts given to the model at a time.
    pub chunk: usize,
    /// The longest time of one method at one setting.
    pub limit: Duration,
    /// Bytes of the device that a run may take.
    pub memory: Option<u64>,
    /// Whether caches are filled with noise, as many entries as a prompt leaves, instead of by a
    /// prefill.
    pub fill: bool,
    /// Decoded tokens between two compressions of the methods that compress in decoding, instead of
    /// their own.
    pub decode_every: Option<usize>,
    /// Steps that are timed at the start of an answer, in its middle and at its end, in place of
    /// all.
    pub points: Option<usize>,
    /// Whether steps are recorded and replayed, too.
    pub graph: bool,
    /// Whether the device's memory is cleaned up before each measurement, and not only as a model
    /// does.
    pub clean: bool,
    /// The clean-ups of the model.
    pub upkeep: Upkeep,
}

/// Steps that compile before any are timed.
const WARM_UP: usize = 4;
/// Steps by which a recording is made, or none.
const RECORDED_BY: usize = 16;
/// Steps handed over before the device is waited for.
const AT_ONCE: usize = 16;

impl Runner {
    /// A runner of a model with random weights, on devices of that name, that prefills prompts of
    /// 131 072 tokens at a time and has 50 seconds for a method. Says on stderr how long the model
    /// took to make.
    ///
    /// # Errors
    /// If the dimensions do not fit together.
    pub fn of_random_model(
        dimensions: Dimensions,
        dtype: DType,
        devices: &DeviceMap,
        name: &str,
    ) -> Result<Self> {
        let started = Instant::now();
        let model = random_llama(dimensions, dtype, devices.clone())?;
        model.devices().iter().try_for_each(Device::sync)?;
        model.clean_up();
        let billions = dimensions.parameters() as f64 / 1e9;
        eprintln!("{billions:.2} G parameters in {:.1} s", started.elapsed().as_secs_f64());
        Ok(Self {
            dimensions,
            device: model.device(),
            model,
            name: name.to_owned(),
            settings: None,
            dtype,
            chunk: 131_072,
            limit: Duration::from_secs(50),
            memory: None,
            fill: false,
            decode_every: None,
            points: None,
            graph: false,
            clean: true,
            upkeep: Upkeep::default(),
        })
    }

    /// A policy by name, with a profile drawn at random where it wants one. If it compresses
    /// prompts only, then the first only: tokens that come several at once behind it are kept, as
    /// decoded ones are.
    ///
    /// # Errors
    /// If there is no method of that name.
    pub fn policy(&self, method: &str, budget: Budget) -> Result<Policy> {
        let policy = Policy::named(method, None)?.with_default_budget(budget);
        let mut schedule = policy.schedule();
        match (schedule.decode_every, schedule.prefill) {
            (Some(own), _) => schedule.decode_every = Some(self.decode_every.unwrap_or(own)),
            (None, PrefillCompression::AtEnd) => {
                schedule.prefill = PrefillCompression::FirstPrompt;
            }
            _ => {}
        }
        let profile = random_profile(self.model.cache_shape());
        Ok(policy.with_schedule(schedule).with_profile(Arc::new(profile)))
    }

    /// Tensor operations that have answered for a kernel in the model or a cache, a sentence each;
    /// none on a device that has no kernels.
    pub fn fallbacks(&self) -> Vec<String> {
        // What only CubeCL can tell.
        if self.in_use().is_none() {
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
            settings: self.settings.clone(),
            method: method.into(),
            budget: budget.to_string(),
            batch: setting.batch,
            prompt: setting.prompt,
            new: setting.new,
            filled: self.fill,
            device: self.name.clone(),
            ..Report::default()
        };
        self.clean_up();
        if let Err(error) = guard(|| match method {
            PLAIN => self.measure_plain(setting, &mut report),
            _ => self.measure(method, budget, setting, &mut report),
        }) {
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
        let Setting { batch, prompt, new } = setting;
        let policy = self.policy(method, budget)?;
        report.decode_every = policy.schedule().decode_every;
        let started = Instant::now();
        let (mut cache, mut next) = self.prompts(&policy, setting, report)?;
        let (steps, targets) = match self.points {
            None => (new, vec![0]),
            Some(steps) => {
                // A method that compresses now and then does so among the steps.
                let steps = steps.min(new / 8).max(report.decode_every.unwrap_or(1));
                let taken = WARM_UP + 2 * steps + RECORDED_BY;
                (steps, vec![0, new / 2, new.saturating_sub(taken)])
            }
        };
        // A cache that was filled has seen fewer tokens than it stands for.
        let seen = |cache: &KvCache| cache.tokens_seen().first().copied().unwrap_or(0);
        let begun = seen(&cache);
        for target in targets {
            let decoded = seen(&cache) - begun;
            self.grow(&mut cache, batch, target.saturating_sub(decoded))?;
            let decoded = decoded.max(target);
            // What was needed to fill it is no part of what it takes.
            self.clean_up();
            let mut point = Point { seen: prompt + decoded, ..Point::default() };
            next = self.launched(&mut cache, next, (steps, started), &mut point)?;
            report.bytes_reserved = report.bytes_reserved.max(self.reserved());
            if self.graph {
                let left = match self.points {
                    Some(_) => new - decoded.min(new - 1),
                    None => RECORDED_BY + new,
                };
                // While one is made there is a copy of the cache.
                let copied = self.in_use().map(|bytes| bytes + cache.bytes_held() as u64);
                if self.fits(copied) {
                    next = self.replayed(&mut cache, next, (steps, left), &mut point)?;
                }
                if self.fits(copied) && self.fits(self.reserved()) {
                    report.bytes_reserved = report.bytes_reserved.max(self.reserved());
                } else {
                    (point.replayed_ms, point.recording_ms) = (None, None);
                    let why = "a recording takes a copy of the cache, which does not fit";
                    point.fallback_reason = Some(why.to_owned());
                }
            }
            report.points.push(point);
        }
        report.bytes_held = cache.bytes_held();
        report.bytes_full = batch * (prompt + new) * self.dimensions.token_bytes(self.dtype);
        report.bytes_in_use = self.in_use();
        report.boundary_ms = self.boundary_ms(batch)?;
        report.finish();
        if !self.fits(report.bytes_reserved) {
            let gib = |bytes: Option<u64>| bytes.unwrap_or(0) as f64 / f64::from(1 << 30);
            bail!("takes {:.1} of {:.1} GiB", gib(report.bytes_reserved), gib(self.memory));
        }
        Ok(())
    }

    /// A cache behind its prompts, timed, the second time if there is time for two. Where a few
    /// steps stand for the whole, no more rows are prefilled than come at once, and more are filled
    /// with noise.
    fn prompts(
        &self,
        policy: &Policy,
        setting: Setting,
        report: &mut Report,
    ) -> Result<(KvCache, Tensor<2, Int>)> {
        let rows = match self.points {
            Some(_) if !self.fill => (self.chunk / setting.prompt).clamp(1, setting.batch),
            _ => setting.batch,
        };
        let of_rows = Setting { batch: rows, ..setting };
        let of_all =
            |since: Instant| since.elapsed().as_secs_f64() * setting.batch as f64 / rows as f64;
        let started = Instant::now();
        let mut begun = self.begin(policy, of_rows)?;
        report.first_prefill_s = of_all(started);
        report.prefill_s = report.first_prefill_s;
        report.prefill_rows = rows;
        if self.fill {
            return Ok(begun);
        }
        if started.elapsed() < self.limit / 4 {
            // Compiled by now.
            drop(begun);
            let again = Instant::now();
            begun = self.begin(policy, of_rows)?;
            report.prefill_s = of_all(again);
            report.prefill_warm = true;
        }
        report.bytes_reserved = self.reserved();
        if rows < setting.batch {
            drop(begun);
            self.clean_up();
            begun = self.filled(policy, setting)?;
        }
        Ok(begun)
    }

    /// Steps that are launched, as many as there is time for, and the tokens that come next.
    fn launched(
        &self,
        cache: &mut KvCache,
        mut next: Tensor<2, Int>,
        (steps, started): (usize, Instant),
        point: &mut Point,
    ) -> Result<Tensor<2, Int>> {
        for _ in 0..WARM_UP {
            next = self.step(next, cache)?;
        }
        self.sync()?;
        let (mut on_host, mut all) = (Duration::ZERO, Duration::ZERO);
        while point.steps < steps && (started.elapsed() < self.limit || point.steps == 0) {
            let some = AT_ONCE.min(steps - point.steps);
            let begun = Instant::now();
            for _ in 0..some {
                // As a model of briquette-models does.
                self.count_call();
                next = self.step(next, cache)?;
            }
            on_host += begun.elapsed();
            self.sync()?;
            all += begun.elapsed();
            point.steps += some;
        }
        // A launch that has failed is told where something is read.
        next.clone().try_into_vec_as::<i64>()?;
        let steps = point.steps as f64;
        (point.launched_ms, point.host_ms) = (ms(all) / steps, ms(on_host) / steps);
        Ok(next)
    }

    /// Steps that are replayed, if they are recorded, of those `left`, and the tokens that come
    /// next.
    fn replayed(
        &self,
        cache: &mut KvCache,
        next: Tensor<2, Int>,
        (steps, left): (usize, usize),
        point: &mut Point,
    ) -> Result<Tensor<2, Int>> {
        // Among all steps of an answer are those that record anew.
        let grows = self.points.is_some() && !compresses_in_decoding(cache.policy());
        let run = |tokens, cache: &mut KvCache| -> Result<_> {
            Ok(self.model.forward_last_of_known(tokens, cache)?)
        };
        let mut graph = StepGraph::new(cache, next, run).expecting(left);
        // A step is launched and the next recorded whenever a cache has filled its room.
        let mut anew = [0.0; 2];
        for _ in 0..RECORDED_BY {
            let started = Instant::now();
            graph.step()?;
            self.sync()?;
            let is_refused = graph.fallback_reason().is_some() && graph.dropped() == 0;
            if graph.replayed() > 0 || is_refused {
                break;
            }
            anew = [anew[1], ms(started.elapsed())];
        }
        if graph.replayed() == 0 {
            let why = graph.fallback_reason().unwrap_or("steps were not alike");
            point.fallback_reason = Some(why.to_owned());
            return Ok(graph.tokens());
        }
        let before = graph.replayed();
        let started = Instant::now();
        for _ in 0..steps {
            graph.step()?;
        }
        let on_host = ms(started.elapsed()) / steps as f64;
        self.sync()?;
        let step = ms(started.elapsed()) / steps as f64;
        graph.tokens().try_into_vec_as::<i64>()?;
        let replayed = graph.replayed() - before;
        if replayed < steps / 2 {
            point.fallback_reason = Some(format!("{replayed} of {steps} were replayed"));
            return Ok(graph.tokens());
        }
        (point.replayed_ms, point.replayed_host_ms) = (Some(step), Some(on_host));
        if grows && replayed == steps {
            let kept = graph.cache().tokens_kept(0)?.into_iter().max().unwrap_or(0);
            point.room = Some(room_of(kept, Some(left)));
            point.recording_ms = Some((anew.iter().sum::<f64>() - 2.0 * step).max(0.0));
        }
        Ok(graph.tokens())
    }

    /// The largest batch whose cache, filled with noise, fits into the memory at the end of all
    /// answers, to within an eighth: from the setting's on, each try tells what a row takes, and
    /// the next is what fits by that, four times as much at most. None should go beyond the memory,
    /// which a device may not survive; if one does, the next is half-way back.
    pub fn largest_batch(&self, method: &str, budget: Budget, setting: Setting) -> Option<usize> {
        let memory = self.memory?;
        let tries = |batch: usize| {
            self.model.clean_up();
            let before = self.in_use().unwrap_or(0);
            let used = guard(|| {
                let policy = self.policy(method, budget)?;
                let (mut cache, mut next) = self.filled(&policy, Setting { batch, ..setting })?;
                self.grow(&mut cache, batch, setting.new)?;
                for _ in 0..WARM_UP {
                    next = self.step(next, &mut cache)?;
                }
                next.try_into_vec_as::<i64>()?;
                self.reserved().context("the device counts no bytes")
            });
            match &used {
                Ok(used) => eprintln!("{method}, batch {batch}: {:.1} GB", *used as f64 / 1e9),
                Err(error) => eprintln!("{method}, batch {batch}: {error:#}"),
            }
            used.ok().map(|used| (before, used))
        };
        let (mut batch, mut fits, mut fails) = (setting.batch, 0, usize::MAX);
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

    /// Milliseconds of the moves of a step between devices; `None` on one.
    fn boundary_ms(&self, batch: usize) -> Result<Option<f64>> {
        let devices = self.model.devices();
        let [first, others @ ..] = &devices[..] else { return Ok(None) };
        if others.is_empty() {
            return Ok(None);
        }
        let zeros = |width| Tensor::<3>::zeros([batch, 1, width], (first, self.dtype));
        let moves = |x: &Tensor<3>, logits: &Tensor<3>| {
            let mut x = x.clone();
            for device in others {
                x = x.to_device(device);
            }
            // What is read waits for the moves before.
            let logits = logits.clone().to_device(&x.device()) + x.narrow(2, 0, 1);
            logits.to_device(first)
        };
        let (x, logits) = (zeros(self.dimensions.hidden), zeros(self.dimensions.vocabulary));
        let last = logits.to_device(&others[others.len() - 1]);
        let time = |rounds: usize| -> Result<f64> {
            self.sync()?;
            let started = Instant::now();
            for _ in 0..rounds {
                drop(moves(&x, &last));
            }
            self.sync()?;
            Ok(ms(started.elapsed()) / rounds as f64)
        };
        time(WARM_UP)?;
        Ok(Some(time(AT_ONCE)?))
    }

    /// Bytes that the allocator has taken from the device that has given most.
    fn reserved(&self) -> Option<u64> {
        let of = |device: &Device| device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        self.model.devices().iter().map(of).max()?
    }

    /// Bytes of live buffers on the device that has most.
    fn in_use(&self) -> Option<u64> {
        self.model.devices().iter().map(briquette::device::bytes_in_use).max()?
    }

    fn sync(&self) -> Result<()> {
        self.model.devices().iter().try_for_each(Device::sync)?;
        Ok(())
    }

    /// Counts a call of the model, as that does.
    fn count_call(&self) {
        self.upkeep.call_on(&self.model.devices());
    }

    /// Whether so many bytes are within the memory, as far as either is known.
    fn fits(&self, bytes: Option<u64>) -> bool {
        bytes.zip(self.memory).is_none_or(|(bytes, memory)| bytes <= memory)
    }

    fn clean_up(&self) {
        if self.clean {
            self.model.clean_up();
        }
    }

    /// A cache that has seen the prompts, and the first new token of each, `[batch, 1]`.
    fn begin(&self, policy: &Policy, setting: Setting) -> Result<(KvCache, Tensor<2, Int>)> {
        if self.fill { self.filled(policy, setting) } else { self.prefill(policy, setting) }
    }

    /// As a model's own cache, with the room a full one needs made at once.
    fn cache(&self, policy: &Policy, capacity: usize) -> Result<KvCache> {
        let config = self.model.cache_config(policy)?.with_capacity(capacity);
        let shape = self.model.cache_shape();
        Ok(KvCache::with_config(shape, policy.clone(), config, &self.device)?)
    }

    /// Prompts drawn at random, `[batch, prompt]`.
    fn random_tokens(&self, Setting { batch, prompt, .. }: Setting) -> Tensor<2, Int> {
        let uniform = Distribution::Uniform(0.0, self.dimensions.vocabulary as f64 - 1.0);
        Tensor::<2>::random([batch, prompt], uniform, (&self.device, DType::F32)).int()
    }

    fn prefill(&self, policy: &Policy, setting: Setting) -> Result<(KvCache, Tensor<2, Int>)> {
        let Setting { batch, prompt, new } = setting;
        if prompt + new + 16 > self.dimensions.context {
            bail!("{prompt} + {new} tokens do not fit in {} of context", self.dimensions.context);
        }
        let mut cache = self.cache(policy, prompt + new + 16)?;
        let tokens = self.random_tokens(setting);
        cache.begin_prompt(Prompt::new(prompt))?;
        let chunk = (self.chunk / batch).clamp(1, prompt);
        let mut logits = None;
        for start in (0..prompt).step_by(chunk) {
            let part = tokens.clone().narrow(1, start, chunk.min(prompt - start));
            self.count_call();
            logits = Some(self.model.forward_last_of_known(part, &mut cache)?);
        }
        let logits = logits.ok_or_else(|| anyhow!("the prompt is empty"))?;
        let next = most_likely(logits);
        self.sync()?;
        Ok((cache, next))
    }

    /// The next token of each row, `[batch, 1]`. Nothing of it is read back.
    fn step(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<2, Int>> {
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
    let heads = HeadScores { semantic: table(0), copy_paste: table(1), headkv: table(2) };
    let layer_errors = (0..shape.layers).map(|layer| 0.5 + number(layer + 1)).collect();
    Profile::new(shape, heads, layer_errors).with_queries(QueryStatistics {
        directions: channels(shape.kv_heads, shape.head_dim),
        means: channels(shape.query_heads, shape.head_dim),
        lengths: channels(shape.query_heads, shape.head_dim / 2),
        reach: channels(1, shape.kv_heads).into_iter().flatten().collect(),
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
