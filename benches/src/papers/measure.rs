//! Prompts and decode steps of a setting, timed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use briquette::{
    Budget, KvCache, Policy, Prompt,
    device::Upkeep,
    policy::{PrefillCompression, Schedule},
};
use briquette_graph::{StepGraph, room_of};
use burn::tensor::{Distribution, Int, Tensor};

use super::{Case, Line, Point, Run, Table};
use crate::{
    generate::{Runner, Setting, guard},
    model::Dimensions,
    record::today,
};

/// Settings of all measurements.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps of each timing.
    pub steps: usize,
    /// Tokens of all prompts that are prefilled at once; more rows are filled with noise, and their
    /// prefill is reckoned from that of fewer.
    pub prompt_tokens: usize,
    /// The longest time of one measurement.
    pub limit: Duration,
    /// GiB of the device, where cards of tables are larger.
    pub memory: Option<f64>,
}

/// A line, and what the largest batch of the same method takes from it.
#[derive(Debug)]
pub struct Measured {
    /// The line.
    pub line: Line,
    /// Seconds of the prefill of one row.
    pub row_prefill_s: Option<f64>,
}

/// Steps that compile before any are timed.
const WARM_UP: usize = 4;
/// Steps by which a recording is made, or none.
const RECORDED_BY: usize = 16;
/// Tokens of all rows that grow a cache at once.
const GROWN_AT_ONCE: usize = 65_536;
/// Tokens of a row that do.
const GROWN_AT_MOST: usize = 512;

impl Plan {
    /// Bytes of a table's card, of the device's if that is smaller.
    fn memory(&self, table: &Table) -> u64 {
        let gib = self.memory.map_or(table.memory, |memory| memory.min(table.memory));
        (gib * f64::from(1 << 30)) as u64
    }

    /// Rows that are prefilled at once.
    pub fn prefill_rows(&self, batch: usize, prompt: usize) -> usize {
        (self.prompt_tokens / prompt.max(1)).clamp(1, batch)
    }
}

impl Runner {
    /// A method at the batch of a table.
    pub fn whole(&self, plan: Plan, table: &Table, case: &Case, run: &Run) -> Measured {
        self.whole_at(plan, table, case, run, run.batch, None)
    }

    /// The same method at the largest batch that fits into the table's card at the end of all
    /// answers; `None` if none does.
    pub fn whole_at_largest(
        &self,
        plan: Plan,
        table: &Table,
        case: &Case,
        run: &Run,
        row_prefill_s: Option<f64>,
    ) -> Option<Measured> {
        // Where nobody counts bytes, none is too large.
        self.device.memory_pool_usage()?;
        let begin = |batch| {
            let policy = self.policy_of(run.method, case.budget)?;
            let cache = self.filled(&policy, setting(case, batch), case.new)?;
            Ok((cache, Tensor::zeros([batch, 1], &self.device)))
        };
        // Of the full cache it is known what it takes.
        let memory = plan.memory(table);
        let from = match run.method {
            "full" => {
                let row = (case.prompt + case.new) * self.dimensions.token_bytes(self.dtype);
                let weights = self.dimensions.parameters() * self.dtype.size();
                let room = (memory as usize / 20 * 17).saturating_sub(weights);
                (room / row).max(1)
            }
            _ => run.batch,
        };
        let batch = self.largest(run.method, from, memory, &begin)?;
        let mut measured = self.whole_at(plan, table, case, run, batch, row_prefill_s);
        measured.line.largest = true;
        measured.line.published_tokens_per_s = None;
        measured.line.published_ratio = run.published_largest;
        Some(measured)
    }

    fn whole_at(
        &self,
        plan: Plan,
        table: &Table,
        case: &Case,
        run: &Run,
        batch: usize,
        row_prefill_s: Option<f64>,
    ) -> Measured {
        let line = Line {
            kind: "papers",
            table: table.name.into(),
            method: run.method.into(),
            budget: case.budget,
            batch,
            prompt: case.prompt,
            new: case.new,
            memory_gib: plan.memory(table) as f64 / f64::from(1 << 30),
            published_tokens_per_s: run.published.tokens_per_s,
            published_ratio: run.published.ratio,
            dtype: format!("{:?}", self.dtype).to_lowercase(),
            device: self.name.clone(),
            date: today(),
            ..Line::default()
        };
        let mut measured = Measured { line, row_prefill_s };
        self.device.memory_cleanup();
        let memory = plan.memory(table);
        let done = guard(|| self.measure_whole(plan, memory, setting(case, batch), &mut measured));
        if let Err(error) = done {
            measured.line.error = Some(format!("{error:#}"));
        }
        measured
    }

    fn measure_whole(
        &self,
        plan: Plan,
        memory: u64,
        setting: Setting,
        measured: &mut Measured,
    ) -> Result<()> {
        let Setting { batch, prompt, new } = setting;
        let started = Instant::now();
        let Measured { line, row_prefill_s } = measured;
        let policy = self.policy_of(&line.method, line.budget)?;
        line.decode_every = policy.schedule().decode_every;
        let all = batch * (prompt + new) * self.dimensions.token_bytes(self.dtype);
        let all = (all + self.dimensions.parameters() * self.dtype.size()) as u64;
        if policy.name() == "full" && all > memory {
            line.refused = Some(format!("takes {:.1} GiB", gib(all)));
            return Ok(());
        }

        let (cache, prefill) = match *row_prefill_s {
            Some(seconds) => {
                (None, Prefill { seconds: seconds * batch as f64, rows: 1, warm: true })
            }
            None => self.timed_prefill(plan, &policy, setting)?,
        };
        let reserved = || self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        line.bytes_reserved = reserved();
        *row_prefill_s = Some(prefill.seconds / batch as f64);
        line.prefill_s = Some(prefill.seconds);
        (line.prefill_rows, line.prefill_warm) = (prefill.rows, prefill.warm);

        let (mut cache, mut next) = match cache {
            Some(begun) => begun,
            None => {
                self.device.memory_cleanup();
                let cache = self.filled(&policy, setting, 0)?;
                (cache, Tensor::zeros([batch, 1], &self.device))
            }
        };
        // A method that compresses now and then does so among the steps.
        let steps = plan.steps.min(new / 8).max(line.decode_every.unwrap_or(1));
        let taken = WARM_UP + 2 * steps + RECORDED_BY;
        // What was filled has seen fewer tokens than it stands for.
        let of_row = |cache: &KvCache| cache.tokens_seen().first().copied().unwrap_or(0);
        let begun = of_row(&cache);
        for target in [0, new / 2, new.saturating_sub(taken)] {
            if started.elapsed() > plan.limit {
                bail!("{} of 3 points were measured within the limit", line.points.len());
            }
            let decoded = of_row(&cache) - begun;
            self.grow(&mut cache, batch, target.saturating_sub(decoded))?;
            self.device.memory_cleanup();
            let (mut point, tokens) = self.launched(&mut cache, next, steps)?;
            line.bytes_reserved = line.bytes_reserved.max(reserved());
            // While one is made there is a copy of the cache.
            let in_use = briquette::device::bytes_in_use(&self.device);
            let with_copy = in_use.map(|bytes| bytes + cache.bytes_held() as u64);
            let goes_beyond = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > memory);
            next = match goes_beyond(with_copy) {
                true => tokens,
                false => {
                    let left = new - decoded.max(target).min(new - 1);
                    self.replayed(&mut cache, tokens, (steps, left), &mut point)?
                }
            };
            if goes_beyond(with_copy) || goes_beyond(reserved()) {
                (point.replayed_ms, point.recording_ms, point.room) = (None, None, None);
                let why = "a recording takes a copy of the cache, which does not fit";
                point.launched_because = Some(why.to_owned());
            } else {
                line.bytes_reserved = line.bytes_reserved.max(reserved());
            }
            point.seen = prompt + target.max(decoded);
            line.points.push(point);
        }
        line.bytes_held = cache.bytes_held();
        line.finish();
        if let Some(bytes) = line.bytes_reserved.filter(|&bytes| bytes > memory) {
            line.refused =
                Some(format!("beyond {:.0} GiB by {:.1}", gib(memory), gib(bytes - memory)));
        }
        Ok(())
    }

    /// A policy that keeps what comes after its first prompt, if it compresses prompts only: by
    /// that it grows as in decoding.
    fn policy_of(&self, method: &str, budget: usize) -> Result<Policy> {
        let policy = self.policy(method, Budget::Tokens(budget))?;
        let schedule = policy.schedule();
        Ok(match (schedule.decode_every, schedule.prefill) {
            (None, PrefillCompression::AtEnd) => {
                let prefill = PrefillCompression::FirstPrompt;
                policy.with_schedule(Schedule { prefill, ..schedule })
            }
            _ => policy,
        })
    }

    /// The prefill of all rows, or of some, the second if there is time; and the cache it leaves.
    fn timed_prefill(
        &self,
        plan: Plan,
        policy: &Policy,
        setting: Setting,
    ) -> Result<(Option<Begun>, Prefill)> {
        let rows = plan.prefill_rows(setting.batch, setting.prompt);
        let of_rows = Setting { batch: rows, ..setting };
        let started = Instant::now();
        let mut begun = self.prefill(policy, of_rows)?;
        let mut seconds = started.elapsed().as_secs_f64();
        let warm = started.elapsed() < plan.limit / 4;
        if warm {
            drop(begun);
            let again = Instant::now();
            begun = self.prefill(policy, of_rows)?;
            seconds = again.elapsed().as_secs_f64();
        }
        let seconds = seconds * setting.batch as f64 / rows as f64;
        let is_whole = rows == setting.batch;
        Ok((is_whole.then_some(begun), Prefill { seconds, rows, warm }))
    }

    /// A cache that holds what it would after the prompts and so many decoded tokens, of noise. One
    /// row is filled and the others are its copies, so that no more than a row comes at once, where
    /// the store copies what it is given.
    fn filled(&self, policy: &Policy, setting: Setting, decoded: usize) -> Result<KvCache> {
        let Setting { batch, prompt, new } = setting;
        // What comes at once is compressed layer by layer.
        let tokens = match (policy.schedule().prefill, most_needed(policy)) {
            (PrefillCompression::Never, _) | (_, None) => prompt,
            (_, Some(needed)) => needed.min(prompt),
        };
        let fill = |rows: usize| -> Result<KvCache> {
            let mut cache = self.cache(policy, prompt + new + 16)?;
            cache.begin_prompt(Prompt::new(tokens))?;
            let part = (self.chunk / rows).clamp(1, tokens);
            for start in (0..tokens).step_by(part) {
                self.take(&mut cache, rows, part.min(tokens - start))?;
            }
            self.grow(&mut cache, rows, decoded)?;
            Ok(cache)
        };
        if batch > 1 && policy.store().name() == "dense" {
            let row = fill(1)?;
            if let Ok(cache) = row.fork_rows(batch) {
                return Ok(cache);
            }
        }
        fill(batch)
    }

    /// Gives a cache as many tokens of noise as would have been decoded, a few hundred at once: no
    /// more than it takes to fill one that compresses in decoding.
    fn grow(&self, cache: &mut KvCache, rows: usize, tokens: usize) -> Result<()> {
        let most = most_needed(cache.policy()).filter(|_| compresses_in_decoding(cache.policy()));
        let tokens = most.map_or(tokens, |most| most.min(tokens));
        let part = (GROWN_AT_ONCE / rows).clamp(1, GROWN_AT_MOST);
        for start in (0..tokens).step_by(part) {
            self.take(cache, rows, part.min(tokens - start))?;
        }
        self.device.sync()?;
        Ok(())
    }

    /// Gives tokens of noise to all layers.
    fn take(&self, cache: &mut KvCache, rows: usize, tokens: usize) -> Result<()> {
        let Dimensions { layers, query_heads, kv_heads, head_dim, .. } = self.dimensions;
        // Not normal: of 10^8 numbers of normal noise some came out infinite.
        let noise = |heads| {
            let uniform = Distribution::Uniform(-1.7, 1.7);
            let options = (&self.device, self.dtype);
            Tensor::<4>::random([rows, heads, tokens, head_dim], uniform, options)
        };
        for layer in 0..layers {
            let (queries, keys) = (noise(query_heads), noise(kv_heads));
            let encoding = self.model.position_encoding(layer);
            drop(cache.attend(layer, queries, keys, noise(kv_heads), encoding)?);
        }
        Ok(())
    }

    /// Steps that are launched, and the tokens that come next.
    fn launched(
        &self,
        cache: &mut KvCache,
        mut next: Tensor<2, Int>,
        steps: usize,
    ) -> Result<(Point, Tensor<2, Int>)> {
        for _ in 0..WARM_UP {
            next = self.step(next, cache)?;
        }
        self.device.sync()?;
        let upkeep = Upkeep::default();
        let started = Instant::now();
        for _ in 0..steps {
            // As a model of briquette-models does.
            upkeep.call(&self.device);
            next = self.step(next, cache)?;
        }
        self.device.sync()?;
        let launched_ms = milliseconds(started) / steps as f64;
        // A launch that has failed is told where something is read.
        next.clone().try_into_vec_as::<i64>()?;
        Ok((Point { steps, launched_ms, ..Point::default() }, next))
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
        let grows = !compresses_in_decoding(cache.policy());
        let run = |tokens, cache: &mut KvCache| -> Result<_> {
            Ok(self.model.forward_last_of_known(tokens, cache)?)
        };
        let mut graph = StepGraph::new(cache, next, run).expecting(left);
        // A step is launched and the next recorded whenever a cache has filled its room.
        let mut anew = [0.0; 2];
        for _ in 0..RECORDED_BY {
            let started = Instant::now();
            graph.step()?;
            self.device.sync()?;
            let is_refused = graph.launched_because().is_some() && graph.dropped() == 0;
            if graph.replayed() > 0 || is_refused {
                break;
            }
            anew = [anew[1], milliseconds(started)];
        }
        if graph.replayed() == 0 {
            let why = graph.launched_because().unwrap_or("steps were not alike");
            point.launched_because = Some(why.to_owned());
            return Ok(graph.tokens());
        }
        let before = graph.replayed();
        let started = Instant::now();
        for _ in 0..steps {
            graph.step()?;
        }
        self.device.sync()?;
        let step = milliseconds(started) / steps as f64;
        graph.tokens().try_into_vec_as::<i64>()?;
        let replayed = graph.replayed() - before;
        if replayed < steps / 2 {
            point.launched_because = Some(format!("{replayed} of {steps} were replayed"));
            return Ok(graph.tokens());
        }
        point.replayed_ms = Some(step);
        if grows && replayed == steps {
            let kept = graph.cache().tokens_kept(0)?.into_iter().max().unwrap_or(0);
            point.room = Some(room_of(kept, Some(left)));
            point.recording_ms = Some((anew.iter().sum::<f64>() - 2.0 * step).max(0.0));
        }
        Ok(graph.tokens())
    }
}

/// A cache behind its prompts, and the first new token of each row, `[rows, 1]`.
type Begun = (KvCache, Tensor<2, Int>);

/// The time of a prefill.
struct Prefill {
    /// Seconds of all rows.
    seconds: f64,
    /// Rows that were timed.
    rows: usize,
    /// Whether it was a second one.
    warm: bool,
}

fn setting(case: &Case, batch: usize) -> Setting {
    Setting { batch, prompt: case.prompt, new: case.new }
}

/// Tokens that fill a cache of a fixed budget: what it holds, twice.
fn most_needed(policy: &Policy) -> Option<usize> {
    match policy.budget() {
        Some(Budget::Tokens(budget)) => Some(2 * policy.reducer().columns(budget)),
        _ => None,
    }
}

fn compresses_in_decoding(policy: &Policy) -> bool {
    policy.budget().is_some() && policy.schedule().decode_every.is_some()
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
