//! Budgets by the bytes that their caches hold.

use std::collections::{BTreeMap, BTreeSet};

use briquette::{Budget, Policy};
use briquette_models::Model;

use super::{
    ask::first_prompts,
    plan::{ModelPlan, TaskData, Unit},
    tasks::{Planned, Work},
};
use crate::{
    Result,
    fidelity::{Largest, Reference},
};

/// A budget that was found for a share of the full cache's bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedBudget {
    /// The label of the model.
    pub model: String,
    /// The label of the policy.
    pub policy: String,
    /// The share as text, `held 25%`.
    pub asked: String,
    /// The label of the task.
    pub task: String,
    /// Tokens of the prompt it was found on.
    pub prompt: usize,
    /// The budget.
    pub budget: Budget,
    /// The share of the full cache's bytes that the cache holds behind that prompt.
    pub held: f64,
}

/// Budgets that were looked for.
#[derive(Default)]
pub(super) struct Fitted {
    /// Policies with theirs, by entry, group and length.
    policies: BTreeMap<(usize, usize, u64), Policy>,
    /// The same for people.
    pub(super) found: Vec<FittedBudget>,
    /// Entries that no budget helps, with the reasons.
    pub(super) refused: Vec<(usize, String)>,
}

/// Steps of a budget, in all tokens.
const STEPS: usize = 1000;

impl Fitted {
    /// Looks for the budgets of all units whose policy is to hold a share of the bytes, on the
    /// first prompt of each task and length.
    pub(super) fn new<'a>(
        plan: &ModelPlan,
        model: &Model,
        tasks: &[Planned],
        units: impl Iterator<Item = &'a Unit>,
    ) -> Result<Self> {
        let mut prompts: BTreeMap<(usize, u64), (Vec<u32>, BTreeSet<usize>)> = BTreeMap::new();
        for unit in units.filter(|unit| plan.entries[unit.entry].held.is_some()) {
            let place = (unit.group, length(plan, unit));
            let first = || (first_prompt(plan, tasks, unit), BTreeSet::new());
            prompts.entry(place).or_insert_with(first).1.insert(unit.entry);
        }
        let mut fitted = Self::default();
        for ((group, length), (prompt, entries)) in prompts {
            let task = &tasks[plan.groups[group].task].label;
            // There must be a token behind the prompt.
            let window: Vec<u32> = prompt.iter().chain(prompt.last()).copied().collect();
            let reference = Reference::new(model, &window, prompt.len())?;
            for entry in entries {
                let planned = &plan.entries[entry];
                let (policy, target) = (&planned.entry.policy, planned.held.unwrap_or(1.0));
                let budget = |size| Budget::Ratio(size as f64 / STEPS as f64);
                let (largest, _) = reference.largest_budget(policy, budget, STEPS, target, None)?;
                match largest {
                    Largest::Size(size, held) => {
                        let budget = budget(size);
                        fitted
                            .policies
                            .insert((entry, group, length), policy.clone().with_budget(budget));
                        fitted.found.push(FittedBudget {
                            model: plan.opened.label.clone(),
                            policy: planned.entry.label.clone(),
                            asked: planned.budget.clone(),
                            task: task.clone(),
                            prompt: prompt.len(),
                            budget,
                            held,
                        });
                    }
                    Largest::TooMuch(size, held) => fitted.refused.push((
                        entry,
                        format!(
                            "its smallest budget on `{task}`, {}, holds {:.1} %",
                            budget(size),
                            100.0 * held
                        ),
                    )),
                    Largest::Refused(reason) => fitted.refused.push((entry, reason)),
                }
            }
        }
        Ok(fitted)
    }

    /// The policy of a unit, with the budget that was found for it, if it was to be found.
    pub(super) fn policy<'a>(&'a self, plan: &'a ModelPlan, unit: &Unit) -> &'a Policy {
        let own = &plan.entries[unit.entry].entry.policy;
        self.policies.get(&(unit.entry, unit.group, length(plan, unit))).unwrap_or(own)
    }
}

/// The length that the sample of a unit was made for, else 0.
fn length(plan: &ModelPlan, unit: &Unit) -> u64 {
    plan.sample(unit).and_then(|sample| sample.axes.get("length").copied()).unwrap_or(0)
}

/// Tokens that a unit gives to the cache before it is compressed.
fn first_prompt(plan: &ModelPlan, tasks: &[Planned], unit: &Unit) -> Vec<u32> {
    let group = &plan.groups[unit.group];
    match (&group.data, &tasks[group.task].work, unit.key.ask) {
        (TaskData::Samples(samples), _, Some(ask)) => {
            first_prompts(&[&samples[unit.sample]], ask).swap_remove(0)
        }
        (TaskData::Windows(windows), Work::Text(task), _) => {
            windows[unit.sample].tokens[..task.prompt()].to_vec()
        }
        (TaskData::Windows(windows), Work::Fidelity(task), _) => {
            windows[unit.sample].tokens[..task.prompt].to_vec()
        }
        _ => Vec::new(),
    }
}
