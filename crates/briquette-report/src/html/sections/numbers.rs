use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use briquette_eval::{stats::Estimate, tasks::Question};
use serde::Serialize;

use super::super::{
    differences::{ByCompared, Compared, Difference},
    figure::{Data, Tags},
    key::{Column, NONE, Row, method},
    measure::Measure,
};
use crate::plural;

/// Columns of numbers in one table: more are wider than a screen of 1,280 pixels.
const COLUMNS: usize = 8;
/// Columns of scores in the table of the summary, where there is no mean over tasks.
const SCORES: usize = 4;
/// Cells of differences, so that a page stays small.
const DIFFERENCES: usize = 4_000;

/// The tables of the page, by section: every policy at every budget, a column a measure.
#[derive(Debug, Serialize)]
pub(in super::super) struct Numbers {
    summary: Vec<TableView>,
    accuracy: Vec<TableView>,
    memory: Vec<TableView>,
    perplexity: Vec<TableView>,
    fidelity: Vec<TableView>,
    /// From the full cache.
    over_full: Vec<TableView>,
    /// Between policies at one budget.
    pairs: Vec<TableView>,
    /// Whether all differences are in these.
    all_differences: bool,
}

#[derive(Debug, Serialize)]
struct TableView {
    heads: Vec<Head>,
    rows: Vec<RowView>,
    several_models: bool,
}

#[derive(Debug, Default, Serialize)]
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
    /// The method of the second of a pair.
    other: Option<String>,
    cells: Vec<Cell>,
}

/// A value with its interval.
#[derive(Clone, Debug, Default, Serialize)]
struct Cell {
    text: String,
    /// The ends of its interval.
    bounds: Option<String>,
    p: Option<String>,
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
struct Source<'a> {
    column: Option<Column>,
    measure: Measure,
    /// The length of the samples, if it is one.
    length: Option<u64>,
    differences: Option<&'a BTreeMap<Row, Difference>>,
}

impl Source<'_> {
    fn new(column: Option<Column>, measure: Measure) -> Self {
        Self { column, measure, length: None, differences: None }
    }
}

pub(in super::super) fn numbers(data: &Data<'_>) -> Numbers {
    let is_known = |Source { column, measure, .. }: &Source<'_>| {
        let of = |row| data.measures.get(row, column.as_ref(), *measure);
        data.collected.rows().any(|row| of(row).is_some())
    };
    let known = |measures: &[Measure]| -> Vec<Source<'_>> {
        let sources = measures.iter().map(|measure| Source::new(None, *measure));
        sources.filter(is_known).collect()
    };
    let overall = [Question::Before, Question::After].map(|ask| Column::all(Some(ask)));
    let overall = overall.into_iter().map(|column| Source::new(Some(column), Measure::Score));
    let overall: Vec<Source<'_>> = overall.filter(is_known).collect();
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
    let summary: Vec<_> = first
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
    let all_rows: Vec<&Row> = data.collected.rows().collect();
    let table = |sources: &[Source<'_>]| tables(data, &all_rows, sources);
    let (over_full, all_over_full) = differences(data, &data.differences.full);
    let (pairs, all_pairs) = differences(data, &data.differences.pairs);
    Numbers {
        summary: table(&summary),
        accuracy: if all_shown { Vec::new() } else { table(&all_scores) },
        memory: table(&known(&costs)),
        perplexity: table(&nats),
        fidelity: table(&of_tasks(data, &measures)),
        over_full,
        pairs,
        all_differences: all_over_full && all_pairs,
    }
}

/// Measures of tasks, those of one task together.
fn of_tasks<'a>(data: &Data<'_>, measures: &[Measure]) -> Vec<Source<'a>> {
    let mut found: Vec<(Column, Measure)> = Vec::new();
    for measure in measures {
        found.extend(data.measures.columns(*measure).into_iter().map(|c| (c, *measure)));
    }
    found.sort_by(|(a, m), (b, n)| a.cmp(b).then(m.cmp(n)));
    found.into_iter().map(|(column, measure)| Source::new(Some(column), measure)).collect()
}

/// Tables of differences, and whether they have all: what is too much for a page goes without
/// single lengths, then without the last rows.
fn differences(data: &Data<'_>, all: &ByCompared) -> (Vec<TableView>, bool) {
    let rows: BTreeSet<&Row> = all.values().flat_map(BTreeMap::keys).collect();
    let source = |(of, found): (&Compared, _)| Source {
        length: of.length,
        differences: Some(found),
        ..Source::new(Some(of.column.clone()), of.measure)
    };
    let mut sources: Vec<Source<'_>> = all.iter().map(source).collect();
    let fit = rows.len() * sources.len() <= DIFFERENCES;
    sources.retain(|source| fit || source.length.is_none());
    let room = DIFFERENCES / sources.len().max(1);
    let rows: Vec<&Row> = rows.into_iter().take(room).collect();
    (tables(data, &rows, &sources), fit)
}

/// A table of these columns, or several where one would be too wide. A row is in it if it has any
/// of the values.
fn tables(data: &Data<'_>, rows: &[&Row], sources: &[Source<'_>]) -> Vec<TableView> {
    sources.chunks(COLUMNS).filter_map(|sources| table(data, rows, sources)).collect()
}

fn table(data: &Data<'_>, rows: &[&Row], sources: &[Source<'_>]) -> Option<TableView> {
    let found = |row| sources.iter().map(|source| cell(data, row, source)).collect::<Vec<Cell>>();
    let known = |cells: &[Cell]| cells.iter().any(|cell| cell.sort.is_some());
    let (rows, mut cells): (Vec<&Row>, Vec<Vec<Cell>>) =
        rows.iter().map(|row| (*row, found(*row))).filter(|(_, cells)| known(cells)).unzip();
    if rows.is_empty() {
        return None;
    }
    mark_best(&rows, sources, &mut cells);
    let view = |(row, cells): (&Row, Vec<Cell>)| {
        let mut methods = row.policy.split(" vs ").map(|policy| method(policy).to_owned());
        let method = methods.next().unwrap_or_default();
        RowView { row: row.clone(), method, other: methods.next(), cells }
    };
    Some(TableView {
        heads: sources.iter().map(|source| head(data, source)).collect(),
        rows: rows.into_iter().zip(cells).map(view).collect(),
        several_models: data.models.len() > 1,
    })
}

fn head(data: &Data<'_>, source: &Source<'_>) -> Head {
    let Source { column, measure, length, .. } = source;
    // Which metric it is stands in the head where there are several, else in the explanation.
    let metric = data.measures.metric_name(column.as_ref(), *measure);
    let (named, about) = match (metric, data.measures.beside().is_empty()) {
        ("", _) => (String::new(), measure.about().to_owned()),
        (metric, true) => (String::new(), format!("{} Metric: {metric}.", measure.about())),
        (metric, false) => (format!("{metric}, "), measure.about().to_owned()),
    };
    let Some(column) = column else {
        return Head { label: measure.label().into(), about, ..Head::default() };
    };
    let label = match (measure, column.question()) {
        (Measure::Score, "") => "score".into(),
        (Measure::Score | Measure::By(_), question) => named + question,
        (measure, _) => measure.label().to_owned(),
    };
    let length = length.map_or_else(String::new, |length| format!(", {length} tokens"));
    match Tags::of(column) {
        Tags { task: None, ask, .. } => {
            let about = "Mean of the tasks' mean scores, for policies that have them all.".into();
            Head { group: "all tasks".into(), label, about, ask, ..Head::default() }
        }
        Tags { task, ask, .. } => {
            Head { group: format!("{}{length}", column.task), label, about, task, ask }
        }
    }
}

fn cell(data: &Data<'_>, row: &Row, source: &Source<'_>) -> Cell {
    let measure = source.measure;
    if let Some(found) = source.differences.and_then(|all| all.get(row)) {
        let Estimate { mean, interval, count } = found.estimate;
        let bounds =
            |[low, high]: [f64; 2]| format!("{} to {}", measure.signed(low), measure.signed(high));
        return Cell {
            text: measure.signed(mean),
            bounds: interval.map(bounds),
            p: Some(found.p_text()),
            sort: Some(mean),
            tip: plural(count, "sample"),
            ..Cell::default()
        };
    }
    let estimate = data.measures.get(row, source.column.as_ref(), measure);
    let Some(estimate) = estimate.filter(|_| source.differences.is_none()) else {
        return Cell { text: "–".into(), tip: "not measured".into(), ..Cell::default() };
    };
    Cell {
        text: measure.text(estimate.mean),
        bounds: estimate.interval.map(|ends| measure.bounds(ends)),
        sort: Some(estimate.mean),
        tip: measure.tip(&estimate),
        bar: measure.is_share().then(|| (1000.0 * estimate.mean).round() / 10.0),
        ..Cell::default()
    }
}

/// Marks the best of each column among policies with the same budget, if there are several.
fn mark_best(rows: &[&Row], sources: &[Source<'_>], cells: &mut [Vec<Cell>]) {
    let mut groups: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        if row.budget != NONE {
            groups.entry((&row.model, &row.budget)).or_default().push(i);
        }
    }
    for group in groups.values() {
        for (c, source) in sources.iter().enumerate() {
            let better = source.measure.better().filter(|_| source.differences.is_none());
            let Some(better) = better else { continue };
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
