use std::{cmp::Ordering, collections::BTreeMap};

use serde::Serialize;

use super::super::{
    collect::Collected,
    figure::Data,
    key::{Column, NONE, Row, ask, compare_budgets, compare_policies},
    measure::Measure,
};
use crate::{grid::Question, stats::Estimate};

/// Every policy at every budget, a column a measure.
#[derive(Debug, Serialize)]
pub(in super::super) struct Summary {
    heads: Vec<Head>,
    rows: Vec<RowView>,
    several_models: bool,
    /// What a reader can filter by.
    methods: Vec<String>,
    budgets: Vec<String>,
    tasks: Vec<String>,
    asks: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Head {
    /// The task, if the measure is of one.
    group: String,
    label: String,
    about: String,
    task: Option<String>,
    ask: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct RowView {
    #[serde(flatten)]
    row: Row,
    method: String,
    cells: Vec<Cell>,
}

/// A value with its interval.
#[derive(Clone, Debug, Default, Serialize)]
struct Cell {
    text: String,
    /// The ends of its interval.
    bounds: Option<String>,
    /// What it is sorted by; nothing where nothing was measured.
    sort: Option<f64>,
    tip: String,
    /// Percent of the cell that a bar fills, for shares.
    bar: Option<f64>,
    /// Whether no other policy is better at this budget.
    best: bool,
}

/// A column, and where its values are.
struct Source {
    column: Option<Column>,
    measure: Measure,
    /// A mean over all tasks.
    overall: bool,
}

/// The method of a label such as `snapkv:kernel=15`.
pub(in super::super) fn method(policy: &str) -> &str {
    policy.split(':').next().unwrap_or(policy)
}

pub(in super::super) fn summary(data: &Data<'_>) -> Summary {
    let sources = sources(data);
    let rows: Vec<&Row> = data.collected.rows().collect();
    let mut cells: Vec<Vec<Cell>> = Vec::new();
    for row in &rows {
        cells.push(sources.iter().map(|source| cell(value(data, source, row), source)).collect());
    }
    mark_best(&rows, &sources, &mut cells);
    let mut methods: Vec<String> = rows.iter().map(|row| method(&row.policy).to_owned()).collect();
    methods.sort_by(|a, b| compare_policies(a, b));
    methods.dedup();
    let mut budgets: Vec<String> = rows.iter().map(|row| row.budget.clone()).collect();
    budgets.sort_by(|a, b| compare_budgets(a, b));
    budgets.dedup();
    let mut asks: Vec<&str> = data.collected.columns().iter().map(Column::ask).collect();
    asks.retain(|ask| !ask.is_empty());
    asks.sort_by_key(|ask| *ask != "before");
    asks.dedup();
    Summary {
        heads: sources.iter().map(head).collect(),
        rows: rows
            .iter()
            .zip(cells)
            .map(|(row, cells)| RowView {
                row: (*row).clone(),
                method: method(&row.policy).into(),
                cells,
            })
            .collect(),
        several_models: data.models.len() > 1,
        methods,
        budgets,
        tasks: data.collected.units.keys().cloned().collect(),
        asks,
    }
}

fn sources(data: &Data<'_>) -> Vec<Source> {
    let of_all = |measure| Source { column: None, measure, overall: false };
    let mut sources = Vec::new();
    for ask in [Question::Before, Question::After].map(Some) {
        if data.collected.rows().any(|row| data.measures.overall(row, ask).is_some()) {
            let column = Some(Column { task: String::new(), ask });
            sources.push(Source { column, measure: Measure::Score, overall: true });
        }
    }
    let of_tasks = |measures: &[Measure]| {
        let mut found: Vec<(Column, Measure)> = Vec::new();
        for measure in measures {
            found.extend(data.measures.columns(*measure).into_iter().map(|c| (c, *measure)));
        }
        found.sort_by(|(a, m), (b, n)| a.cmp(b).then(m.cmp(n)));
        found.into_iter().map(|(column, measure)| Source {
            column: Some(column),
            measure,
            overall: false,
        })
    };
    let known = |measure: &Measure| {
        data.collected.rows().any(|row| data.measures.get(row, None, *measure).is_some())
    };
    // A reader of a narrow page sees these: a score, memory, divergence, time.
    let overall = !sources.is_empty();
    if !overall {
        sources.extend(of_tasks(&[Measure::Score]));
    }
    sources.push(of_all(Measure::CacheShare));
    sources.extend(of_tasks(&[Measure::Kl]));
    sources.extend([Measure::Seconds].into_iter().filter(known).map(of_all));
    if overall {
        sources.extend(of_tasks(&[Measure::Score]));
    }
    sources.push(of_all(Measure::CacheBytes));
    sources.extend(of_tasks(&[Measure::Nats, Measure::NatsOverFull]));
    sources.extend(of_tasks(&[Measure::Agreement, Measure::OutputError, Measure::Overlap]));
    sources.extend([Measure::Prefill, Measure::Decode].into_iter().filter(known).map(of_all));
    sources
}

fn value(data: &Data<'_>, source: &Source, row: &Row) -> Option<Estimate> {
    data.measures.get(row, source.column.as_ref(), source.measure)
}

fn head(source: &Source) -> Head {
    let Source { column, measure, overall } = source;
    let about = measure.about().to_owned();
    match column {
        None => Head {
            group: String::new(),
            label: measure.label().into(),
            about,
            task: None,
            ask: None,
        },
        Some(column) => {
            let when = ask(column.ask);
            let label = match (measure, when) {
                (Measure::Score, "") => "score".into(),
                (Measure::Score, when) => format!("asked {when}"),
                (measure, _) => measure.label().to_owned(),
            };
            let about = if *overall {
                "Mean of the tasks' mean scores, for policies that have them all.".to_owned()
            } else {
                about
            };
            Head {
                group: if *overall { "all tasks".into() } else { column.task.clone() },
                label,
                about,
                task: (!overall).then(|| column.task.clone()),
                ask: column.ask.is_some().then_some(when),
            }
        }
    }
}

fn cell(estimate: Option<Estimate>, source: &Source) -> Cell {
    let measure = source.measure;
    let Some(estimate) = estimate else {
        return Cell { text: "–".into(), tip: "not measured".into(), ..Cell::default() };
    };
    Cell {
        text: measure.text(estimate.mean),
        bounds: estimate.interval.map(|ends| measure.bounds(ends)),
        sort: Some(estimate.mean),
        tip: measure.tip(&estimate),
        bar: measure.is_share().then(|| (1000.0 * estimate.mean).round() / 10.0),
        best: false,
    }
}

/// Marks the best of each column among policies with the same budget, if there are several.
fn mark_best(rows: &[&Row], sources: &[Source], cells: &mut [Vec<Cell>]) {
    let mut groups: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        if row.budget != NONE {
            groups.entry((&row.model, &row.budget)).or_default().push(i);
        }
    }
    for group in groups.values() {
        for (c, source) in sources.iter().enumerate() {
            let Some(better) = source.measure.better() else { continue };
            let values: Vec<f64> = group.iter().filter_map(|i| cells[*i][c].sort).collect();
            let best = values
                .iter()
                .copied()
                .reduce(|best, value| if value.total_cmp(&best) == better { value } else { best });
            // Where all are alike, none is best.
            let differ = values.iter().any(|value| Some(*value) != best);
            for i in group {
                let cell = &mut cells[*i][c];
                cell.best = differ
                    && matches!((cell.sort, best), (Some(a), Some(b)) if a.total_cmp(&b) == Ordering::Equal);
            }
        }
    }
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
