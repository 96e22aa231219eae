use serde::Serialize;

use super::super::{
    collect::Collected,
    key::{Row, compare_budgets, compare_policies, method},
};

/// The filters of the page.
#[derive(Debug, Serialize)]
pub(in super::super) struct Choices {
    methods: Vec<String>,
    budgets: Vec<String>,
    tasks: Vec<String>,
    asks: Vec<&'static str>,
}

pub(in super::super) fn choices(collected: &Collected) -> Choices {
    let rows: Vec<&Row> = collected.rows().collect();
    let mut methods: Vec<String> = rows.iter().map(|row| method(&row.policy).to_owned()).collect();
    methods.sort_by(|a, b| compare_policies(a, b));
    methods.dedup();
    let mut budgets: Vec<String> = rows.iter().map(|row| row.budget.clone()).collect();
    budgets.sort_by(|a, b| compare_budgets(a, b));
    budgets.dedup();
    let mut asks = vec!["query-aware", "query-agnostic"];
    asks.retain(|ask| collected.columns().iter().any(|column| column.question() == *ask));
    let tasks = collected.units.keys().cloned().collect();
    Choices { methods, budgets, tasks, asks }
}

/// A policy that cannot hold.
#[derive(Debug, Serialize)]
pub(in super::super) struct UnavailableView {
    #[serde(flatten)]
    row: Row,
    method: String,
    reason: String,
    tasks: String,
}

pub(in super::super) fn unavailable(collected: &Collected) -> Vec<UnavailableView> {
    let mut views = Vec::new();
    for (row, reasons) in &collected.unavailable {
        for (reason, tasks) in reasons {
            let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
            views.push(UnavailableView {
                row: row.clone(),
                method: method(&row.policy).into(),
                reason: reason.clone(),
                tasks: tasks.join(", "),
            });
        }
    }
    views
}
