use std::collections::BTreeSet;

use serde::Serialize;

use super::super::{
    collect::{Collected, Shown},
    key::{Column, Row, Unit, method},
};

/// Answers shown.
const ANSWERS: usize = 600;

/// Answers one by one.
#[derive(Debug, Serialize)]
pub(in super::super) struct SamplesView {
    rows: Vec<SampleView>,
    /// Answers that are not shown.
    left: usize,
    several_models: bool,
}

#[derive(Debug, Serialize)]
struct SampleView {
    #[serde(flatten)]
    row: Row,
    method: String,
    task: String,
    ask: &'static str,
    sample: String,
    turn: Option<usize>,
    said: String,
    references: Vec<String>,
    metric: &'static str,
    score: f64,
    score_text: String,
    /// Scores by other metrics.
    beside: Vec<(&'static str, String)>,
    /// The class of the cell: what colour and sign it has.
    mark: &'static str,
}

/// The first samples of each task, as answered under every policy.
pub(in super::super) fn samples(collected: &Collected) -> SamplesView {
    // Sample after sample, so that each is there under every policy before the next.
    let mut order: BTreeSet<(usize, Column, &Unit)> = BTreeSet::new();
    for tasks in collected.samples.values() {
        for (column, units) in tasks {
            order.extend((0..).zip(units.keys()).map(|(n, unit)| (n, column.clone(), unit)));
        }
    }
    let mut chosen: BTreeSet<(Column, &Unit)> = BTreeSet::new();
    let mut count = 0;
    for (_, column, unit) in order {
        let of_unit =
            answers(collected, &column, unit).map(|(_, shown)| shown.len()).sum::<usize>();
        if count > 0 && count + of_unit > ANSWERS {
            break;
        }
        if chosen.insert((column, unit)) {
            count += of_unit;
        }
    }
    let mut rows: Vec<SampleView> = Vec::new();
    for (column, unit) in &chosen {
        for (row, shown) in answers(collected, column, unit) {
            rows.extend(shown.iter().map(|shown| view(row, column, unit, shown)));
        }
    }
    // One sample alone may have more.
    rows.truncate(ANSWERS);
    let models: BTreeSet<&str> = rows.iter().map(|row| row.row.model.as_str()).collect();
    let several_models = models.len() > 1;
    SamplesView { left: collected.answers.saturating_sub(rows.len()), rows, several_models }
}

fn answers<'a>(
    collected: &'a Collected,
    column: &'a Column,
    unit: &'a Unit,
) -> impl Iterator<Item = (&'a Row, &'a Vec<Shown>)> {
    collected
        .samples
        .iter()
        .filter_map(move |(row, tasks)| Some((row, tasks.get(column)?.get(unit)?)))
}

fn view(row: &Row, column: &Column, unit: &Unit, shown: &Shown) -> SampleView {
    SampleView {
        row: row.clone(),
        method: method(&row.policy).into(),
        task: column.task.clone(),
        ask: column.question(),
        sample: format!("{} (seed {})", unit.sample, unit.seed),
        turn: (shown.turn > 0).then_some(shown.turn),
        said: shown.said.clone(),
        references: shown.references.clone(),
        metric: shown.metric,
        beside: shown.beside.iter().map(|(by, score)| (*by, format!("{score:.2}"))).collect(),
        score: shown.score,
        score_text: format!("{:.2}", shown.score),
        mark: match shown.score {
            score if score >= 1.0 => "right",
            score if score > 0.0 => "partly",
            _ => "wrong",
        },
    }
}
