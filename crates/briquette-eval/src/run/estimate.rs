use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    batch::{Batch, rounds},
    execute::{Ended, Prepared, Runner, UnitRunner, pending},
    pace::Pace,
    plan::{ModelPlan, Plan, Unit},
};
use crate::{
    Error, Result,
    jobs::{self, Found},
    record::Key,
};

/// The time that the units of a model which are left are expected to take.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeNeeded {
    /// The label of the model.
    pub model: String,
    /// Units that are left.
    pub units: usize,
    /// Units that were measured for it; 0 where none ended in time, and the tokens read until then
    /// were counted.
    pub measured: usize,
    /// The time; `None` where nothing was read.
    pub time: Option<Duration>,
}

/// Looks at an interrupt this often.
const LOOK: Duration = Duration::from_millis(50);

/// Measures the first units that are left of each model for about `seconds`, and says how long all
/// take. A unit that is at work then may end within as long again. `is_done` says which have
/// results.
///
/// # Errors
/// [`Error::Model`] for weights that cannot be read, and for a run that is interrupted; what a unit
/// fails with, without [`Runner::keep_going`].
pub fn estimate(
    plan: &Plan,
    runner: &Runner,
    seconds: Duration,
    is_done: impl Fn(&Key) -> bool,
) -> Result<Vec<TimeNeeded>> {
    let is_here = |unit: &Unit| runner.shard.is_none_or(|shard| shard.holds(&unit.key));
    let is_left = |unit: &Unit| is_here(unit) && !is_done(&unit.key);
    let models = plan.models.iter().filter(|model| model.units.iter().any(is_left));
    models.map(|model| of_model(plan, model, runner, seconds, (&is_here, &is_left))).collect()
}

fn of_model(
    plan: &Plan,
    planned: &ModelPlan,
    runner: &Runner,
    seconds: Duration,
    (is_here, is_left): (impl Fn(&Unit) -> bool, impl Fn(&Unit) -> bool),
) -> Result<TimeNeeded> {
    let stop = briquette_models::Interrupt::new();
    let model = planned.opened.load(&runner.devices)?.with_interrupt(stop.clone());
    let units = || planned.units.iter().filter(|unit| is_here(unit));
    let left = units().filter(|unit| is_left(unit));
    let Prepared { fitted, refused } = Prepared::new(planned, &model, &plan.tasks, left)?;
    let can = |unit: &&Unit| !refused.iter().any(|(entry, _)| *entry == unit.entry);
    let batches = pending(planned, units().filter(can), runner, &is_left);
    let left = || batches.iter().flat_map(Batch::units).filter(|unit| is_left(unit));
    let (count, tokens) =
        left().fold((0, 0), |(count, tokens), unit| (count + 1, tokens + unit.tokens));
    let mut pace = Pace::new(left());
    let mut measured = 0;
    let mut time = None;
    let unit_runner = UnitRunner::new(planned, &model, &plan.tasks, fitted, &batches)?;
    let rounds = rounds(planned, batches, runner.policies);
    let (began, read) = (Instant::now(), stop.tokens_read());
    let ended = AtomicBool::new(false);
    let worked = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                if runner.interrupt.is_set() || began.elapsed() > 2 * seconds {
                    stop.set();
                }
                thread::sleep(LOOK);
            }
        });
        let work = |round, found: &mut Found<'_, _>| unit_runner.measure_round(round, found);
        let worked =
            jobs::run_each(&rounds, runner.threads, work, |(batch, rows, _): Ended<'_>| {
                for (row, records) in batch.rows.iter().zip(rows) {
                    match records {
                        Ok(records) => {
                            for (record, unit) in records.into_iter().zip(row) {
                                pace.add(unit, record.seconds);
                                measured += 1;
                            }
                        }
                        Err(error) if runner.keep_going && !error.is_interrupt() => {}
                        Err(error) => return Err(error),
                    }
                }
                time = pace.left().map(|left| began.elapsed() + left);
                if began.elapsed() < seconds {
                    return Ok(());
                }
                stop.set();
                Err(Error::Model(briquette_models::Error::Interrupted))
            });
        ended.store(true, Ordering::Relaxed);
        worked
    });
    match worked {
        Err(error) if !error.is_interrupt() || runner.interrupt.is_set() => return Err(error),
        _ => {}
    }
    let by_tokens = || {
        let share = tokens as f64 / (stop.tokens_read() - read) as f64;
        Duration::try_from_secs_f64(began.elapsed().as_secs_f64() * share).ok()
    };
    let model = planned.opened.label.clone();
    Ok(TimeNeeded { model, units: count, measured, time: time.or_else(by_tokens) })
}
