use std::{cmp::Ordering, collections::BTreeMap};

use briquette::policy::MethodInfo;
pub(super) use briquette_eval::run::FULL;
use briquette_eval::{record::Key, tasks::Question};
use serde::Serialize;

use super::natural;
use crate::budget_axis::BudgetUnit;

/// The budget of a policy without one.
pub(super) const NONE: &str = "-";

/// A row of the comparison: a model on a policy at a budget. Ordered for people: the full cache
/// first, then by name, and budgets from small to large.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) model: String,
    pub(super) policy: String,
    pub(super) budget: String,
}

impl Row {
    pub(super) fn of(key: &Key) -> Self {
        let Key { model, policy, budget, .. } = key;
        Self { model: model.clone(), policy: policy.clone(), budget: budget.clone() }
    }

    /// The full cache of the same model.
    pub(super) fn full(&self) -> Self {
        Self { model: self.model.clone(), policy: FULL.into(), budget: NONE.into() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.policy == FULL
    }

    /// The policy with its budget, if it has one.
    pub(super) fn label(&self) -> String {
        if self.budget == NONE {
            self.policy.clone()
        } else {
            format!("{} · {}", self.policy, self.budget)
        }
    }
}

impl Ord for Row {
    fn cmp(&self, other: &Self) -> Ordering {
        natural::compare(&self.model, &other.model)
            .then_with(|| compare_policies(&self.policy, &other.policy))
            .then_with(|| compare_budgets(&self.budget, &other.budget))
    }
}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The method of a label such as `snapkv:kernel=15`.
pub(super) fn method(policy: &str) -> &str {
    policy.split(':').next().unwrap_or(policy)
}

/// The named methods, by name.
pub(super) type Methods = BTreeMap<String, MethodInfo>;

pub(super) fn methods() -> Methods {
    briquette::methods().into_iter().map(|method| (method.name.clone(), method)).collect()
}

/// The full cache is first.
pub(super) fn compare_policies(a: &str, b: &str) -> Ordering {
    (a != FULL).cmp(&(b != FULL)).then_with(|| natural::compare(a, b))
}

/// Tokens, shares, bytes, each from small to large; then other texts.
pub(super) fn compare_budgets(a: &str, b: &str) -> Ordering {
    let ((unit_a, size_a), (unit_b, size_b)) = (BudgetUnit::of(a), BudgetUnit::of(b));
    unit_a.cmp(&unit_b).then(size_a.total_cmp(&size_b)).then_with(|| natural::compare(a, b))
}

/// A task, and when its question came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) task: String,
    pub(super) ask: Option<Question>,
}

impl Column {
    pub(super) fn of(key: &Key) -> Self {
        Self { task: key.task.clone(), ask: key.ask }
    }

    /// All tasks with this question.
    pub(super) fn all(ask: Option<Question>) -> Self {
        Self { task: String::new(), ask }
    }

    /// `before` or `after`, as in results; empty for a task that asks nothing.
    pub(super) fn ask(&self) -> &'static str {
        match self.ask {
            Some(Question::Before) => "before",
            Some(Question::After) => "after",
            None => "",
        }
    }

    /// The same in the terms of papers.
    pub(super) fn question(&self) -> &'static str {
        match self.ask {
            Some(Question::Before) => "query-aware",
            Some(Question::After) => "query-agnostic",
            None => "",
        }
    }

    pub(super) fn label(&self) -> String {
        let task = if self.task.is_empty() { "all tasks" } else { &self.task };
        match self.question() {
            "" => task.to_owned(),
            question => format!("{task}, {question}"),
        }
    }
}

impl Ord for Column {
    fn cmp(&self, other: &Self) -> Ordering {
        natural::compare(&self.task, &other.task).then(self.ask.cmp(&other.ask))
    }
}

impl PartialOrd for Column {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One sample of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) seed: u64,
    pub(super) sample: String,
}

impl Unit {
    pub(super) fn of(key: &Key) -> Self {
        Self { seed: key.seed, sample: key.sample.clone() }
    }
}

impl Ord for Unit {
    fn cmp(&self, other: &Self) -> Ordering {
        self.seed.cmp(&other.seed).then_with(|| natural::compare(&self.sample, &other.sample))
    }
}

impl PartialOrd for Unit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_as_people_expect() {
        let row = |policy: &str, budget: &str| Row {
            model: "m".into(),
            policy: policy.into(),
            budget: budget.into(),
        };
        let mut rows = [
            row("snapkv", "10%"),
            row("snapkv", "2KiB"),
            row("snapkv", "128"),
            row("h2o", "64"),
            row("snapkv", "64"),
            row("full", "-"),
            row("snapkv", "5%"),
            row("snapkv", "1KiB"),
        ];
        rows.sort();
        assert_eq!(
            rows.map(|row| row.label()),
            [
                "full",
                "h2o · 64",
                "snapkv · 64",
                "snapkv · 128",
                "snapkv · 5%",
                "snapkv · 10%",
                "snapkv · 1KiB",
                "snapkv · 2KiB"
            ]
        );
    }
}
