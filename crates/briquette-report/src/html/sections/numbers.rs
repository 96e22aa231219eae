use std::{cmp::Ordering, collections::BTreeMap};

use briquette_eval::{stats::Estimate, tasks::Question};
use serde::Serialize;

use super::super::{
    figure::Data,
    key::{Column, NONE, Row, ask},
    measure::Measure,
};

/// Columns of numbers in one table: more are wider than a screen of 1,280 pixels.
const COLUMNS: usize = 8;
/// Columns of scores in the table of the summary, where there is no mean over tasks.
const SCORES: usize = 4;

/// The tables of the page, by section: every policy at every budget, a column a measure.
#[derive(Debug, Serialize)]
pub(in super::super) struct Numbers {
    summary: Vec<TableView>,
    accuracy: Vec<TableView>,
    memory: Vec<TableView>,
    perplexity: Vec<TableView>,
    fidelity: Vec<TableView>,
}

#[derive(Debug, Serialize)]
struct TableView {
    heads: Vec<Head>,
    rows: Vec<RowView>,
    several_models: bool,
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
    /// The number to sort by; `None` where nothing was measured.
    sort: Option<f64>,
    tip: String,
    /// Percent of the cell that a bar fills, for shares.
    bar: Option<f64>,
    /// Whether no other policy is better at this budget.
    best: bool,
}

/// A column, and where its values are.
#[derive(Clone)]
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

pub(in super::super) fn numbers(data: &Data<'_>) -> Numbers {
    let of_all = |measure| Source { column: None, measure, overall: false };
    let known = |measures: &[Measure]| -> Vec<Source> {
        let known = |measure: &&Measure| {
            data.collected.rows().any(|row| data.measures.get(row, None, **measure).is_some())
        };
        measures.iter().filter(known).map(|measure| of_all(*measure)).collect()
    };
    let overall = [Question::Before, Question::After]
        .map(Some)
        .into_iter()
        .filter(|ask| data.collected.rows().any(|row| data.measures.overall(row, *ask).is_some()));
    let overall: Vec<Source> = overall
        .map(|ask| Source {
            column: Some(Column { task: String::new(), ask }),
            measure: Measure::Score,
            overall: true,
        })
        .collect();
    let scores = of_tasks(data, &[Measure::Score]);
    let beside = data.measures.beside();
    let all_scores = [Measure::Score].into_iter().chain(beside).collect::<Vec<_>>();
    let all_scores = of_tasks(data, &all_scores);
    let nats = of_tasks(data, &[Measure::Nats, Measure::NatsOverFull]);
    let kl = of_tasks(data, &[Measure::Kl]);
    let loss = nats.iter().filter(|source| source.measure == Measure::NatsOverFull);

    let all_shown = overall.is_empty() && all_scores.len() <= SCORES;
    let first = match overall.is_empty() {
        true if all_shown => &all_scores,
        true => &scores,
        false => &overall,
    };
    let summary: Vec<Source> = first
        .iter()
        .take(SCORES)
        .cloned()
        .chain(known(&[Measure::HeldShare, Measure::SpareShare]))
        .chain(kl.first().cloned())
        .chain(loss.take(1).cloned())
        .chain(known(&[Measure::Seconds]))
        .collect();
    let measures = [Measure::Kl, Measure::Agreement, Measure::OutputError, Measure::Overlap];
    let costs = [
        Measure::HeldBytes,
        Measure::SpareBytes,
        Measure::Prefill,
        Measure::Decode,
        Measure::Seconds,
    ];
    let table = |sources: &[Source]| tables(data, sources);
    Numbers {
        summary: table(&summary),
        accuracy: if all_shown { Vec::new() } else { table(&all_scores) },
        memory: table(&known(&costs)),
        perplexity: table(&nats),
        fidelity: table(&of_tasks(data, &measures)),
    }
}

/// Measures of tasks, those of one task together.
fn of_tasks(data: &Data<'_>, measures: &[Measure]) -> Vec<Source> {
    let mut found: Vec<(Column, Measure)> = Vec::new();
    for measure in measures {
        found.extend(data.measures.columns(*measure).into_iter().map(|c| (c, *measure)));
    }
    found.sort_by(|(a, m), (b, n)| a.cmp(b).then(m.cmp(n)));
    let source = |(column, measure)| Source { column: Some(column), measure, overall: false };
    found.into_iter().map(source).collect()
}

/// A table of these columns, or several where one would be too wide. A row is in it if it has any
/// of the values.
fn tables(data: &Data<'_>, sources: &[Source]) -> Vec<TableView> {
    sources.chunks(COLUMNS).filter_map(|sources| table(data, sources)).collect()
}

fn table(data: &Data<'_>, sources: &[Source]) -> Option<TableView> {
    let found = |row: &Row| -> Vec<Cell> {
        let value = |source: &Source| {
            cell(data.measures.get(row, source.column.as_ref(), source.measure), source)
        };
        sources.iter().map(value).collect()
    };
    let known = |cells: &[Cell]| cells.iter().any(|cell| cell.sort.is_some());
    let (rows, mut cells): (Vec<&Row>, Vec<Vec<Cell>>) = data
        .collected
        .rows()
        .map(|row| (row, found(row)))
        .filter(|(_, cells)| known(cells))
        .unzip();
    if rows.is_empty() {
        return None;
    }
    mark_best(&rows, sources, &mut cells);
    let view = |(row, cells): (&Row, Vec<Cell>)| RowView {
        row: row.clone(),
        method: method(&row.policy).into(),
        cells,
    };
    Some(TableView {
        heads: sources.iter().map(|source| head(data, source)).collect(),
        rows: rows.into_iter().zip(cells).map(view).collect(),
        several_models: data.models.len() > 1,
    })
}

fn head(data: &Data<'_>, source: &Source) -> Head {
    let Source { column, measure, overall } = source;
    let metric = match (measure, column) {
        (Measure::By(metric), _) => Some(*metric),
        (Measure::Score, Some(column)) => data.measures.metric(column),
        _ => None,
    };
    // Which metric it is stands in the head where there are several, else in the explanation.
    let is_one = data.measures.beside().is_empty();
    let about = match metric {
        Some(metric) if is_one => format!("{} Metric: {}.", measure.about(), metric.name()),
        _ => measure.about().to_owned(),
    };
    let named = metric.filter(|_| !is_one).map_or_else(String::new, |m| format!("{}, ", m.name()));
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
                (Measure::Score | Measure::By(_), when) => format!("{named}asked {when}"),
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
