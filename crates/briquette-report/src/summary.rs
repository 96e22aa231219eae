//! The tables of a run for people.

use std::collections::BTreeSet;

use briquette_eval::{
    metrics::Metric,
    run::{Measure, Row, Summary},
    tasks::Question,
};

use super::table::{self, Cell, Rank, Sheet};

/// A table per kind of task: scores of answers with both questions side by side, losses of texts,
/// distances from the full cache.
pub fn summary(summary: &Summary) -> Vec<Sheet> {
    let rows = |measure| -> Vec<&Row> {
        summary.rows.iter().filter(|row| row.measure == measure).collect()
    };
    let tables = [scores(&rows(Measure::Score)), texts(&rows(Measure::Nats))];
    tables.into_iter().chain([fidelity(&rows(Measure::Kl))]).flatten().collect()
}

/// A task under a policy.
struct Line<'a> {
    /// One row, or one a question.
    rows: Vec<&'a Row>,
    /// The number shown: that of the rows, or one beside it.
    measure: Measure,
}

impl<'a> Line<'a> {
    fn of(row: &'a Row) -> Self {
        Self { rows: vec![row], measure: row.measure }
    }

    fn row(&self) -> &'a Row {
        self.rows[0]
    }

    fn is_beside(&self) -> bool {
        self.measure != self.row().measure
    }
}

/// A column and its cells.
struct Column<'a> {
    column: table::Column,
    cell: Box<dyn Fn(&Line<'_>) -> Cell + 'a>,
}

impl<'a> Column<'a> {
    /// A column whose cells are of lines.
    fn of(column: table::Column, cell: impl Fn(&Line<'_>) -> Cell + 'a) -> Self {
        Self { column, cell: Box::new(cell) }
    }

    fn left<C: Into<Cell>>(head: &str, cell: impl Fn(&Row) -> C + 'a) -> Self {
        Self::of(table::Column::left(head), move |line| cell(line.row()).into())
    }

    fn interval(head: &str, cell: impl Fn(&Row) -> Cell + 'a) -> Self {
        Self::of(table::Column::interval(head), move |line| cell(line.row()))
    }

    fn right<C: Into<Cell>>(head: &str, cell: impl Fn(&Row) -> C + 'a) -> Self {
        Self::of(table::Column::right(head), move |line| cell(line.row()).into())
    }

    fn ranked(self, rank: Rank) -> Self {
        Self { column: self.column.ranked(rank), ..self }
    }
}

fn table<'a>(lines: &[Line<'a>], columns: Vec<Column<'a>>) -> Option<Sheet> {
    let first = lines.first()?.row();
    let rows = || lines.iter().flat_map(|line| &line.rows);
    let mut named = Vec::new();
    if rows().any(|row| row.model != first.model) {
        named.push(Column::left("model", |row| row.model.clone()));
    }
    named.push(Column::left("task", |row| row.task.clone()));
    if lines.iter().any(Line::is_beside) {
        named.push(Column::of(table::Column::left("metric"), |line| metric(line).into()));
    }
    if rows().any(|row| row.length.is_some()) {
        let length = |row: &Row| row.length.map_or("-".into(), |length| length.to_string());
        named.push(Column::right("length", length));
    }
    let named = named.into_iter().map(|column| column.ranked(Rank::Heading));
    let policy = [
        Column::left("policy", |row| row.policy.clone()),
        Column::right("budget", |row| row.budget.clone()),
    ];
    let last = [
        Column::right("samples", |row| row.mean.count.to_string()).ranked(Rank::Extra),
        Column::of(table::Column::right("held\nof full"), |line| match line.is_beside() {
            true => Cell::default(),
            false => table::share(mean(line, |row| Some(row.held_of_full))).into(),
        }),
        Column::of(table::Column::right("spare\nof full"), |line| {
            match line.rows.iter().all(|row| row.spare_of_full.is_some()) {
                _ if line.is_beside() => Cell::default(),
                true => table::share(mean(line, |row| row.spare_of_full)).into(),
                false => "-".into(),
            }
        })
        .ranked(Rank::Extra),
    ];
    let columns: Vec<Column<'_>> = named.chain(policy).chain(columns).chain(last).collect();
    let sheet = Sheet::new(columns.iter().map(|column| column.column.clone()));
    let mut sheet = sheet.with_intervals("Brackets are 95 % intervals over samples");
    for line in lines {
        sheet.row(columns.iter().map(|column| (column.cell)(line)));
    }
    Some(sheet)
}

fn mean(line: &Line<'_>, of: impl Fn(&Row) -> Option<f64>) -> f64 {
    let numbers: Vec<f64> = line.rows.iter().filter_map(|row| of(row)).collect();
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

/// The metric of the scores of a line.
fn metric(line: &Line<'_>) -> &'static str {
    match line.measure {
        Measure::By(metric) => metric.name(),
        _ => line.row().metric.map_or("several", Metric::name),
    }
}

/// A mean with the ends of its interval.
type Shown = (f64, Option<[f64; 2]>);

/// The place of a row in the table, whenever the question came.
fn place(row: &Row) -> (&str, &str, Option<u64>, &str, &str) {
    (&row.model, &row.task, row.length, &row.policy, &row.budget)
}

fn scores(rows: &[&Row]) -> Option<Sheet> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for &row in rows {
        match lines.iter_mut().find(|line| place(line.row()) == place(row)) {
            Some(line) => line.rows.push(row),
            None => lines.push(Line::of(row)),
        }
    }
    let lines = by_metric(lines);
    let mut columns = Vec::new();
    for (ask, head) in [(Question::Before, "query-aware"), (Question::After, "query-agnostic")] {
        if !rows.iter().any(|row| row.ask == Some(ask)) {
            continue;
        }
        let shown = |of: fn(&Row, Measure) -> Option<Shown>| {
            move |line: &Line<'_>| {
                let row = line.rows.iter().find(|row| row.ask == Some(ask));
                let found = row.and_then(|row| of(row, line.measure));
                found.map_or("-".into(), |(mean, ends)| table::interval(mean, ends, 2))
            }
        };
        let score = shown(|row, measure| match row.beside.get(&measure) {
            Some(beside) => Some((beside.mean, beside.interval)),
            None => (measure == row.measure).then_some((row.mean.mean, row.interval)),
        });
        columns.push(Column::of(table::Column::interval(head), score));
        if rows.iter().any(|row| row.beside.contains_key(&Measure::RightTokens)) {
            let right = shown(|row, measure| {
                let right = row.beside.get(&Measure::RightTokens);
                let right = right.filter(|_| measure == row.measure)?;
                Some((right.mean, right.interval))
            });
            let head = table::Column::interval("\nright tokens").ranked(Rank::Detail);
            columns.push(Column::of(head, right));
        }
    }
    table(&lines, columns)
}

/// The lines of each task, and behind them those of each metric beside the score.
fn by_metric(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let is_one_task = |a: &Line<'_>, b: &Line<'_>| {
        let (a, b) = (a.row(), b.row());
        (&a.model, &a.task, a.length) == (&b.model, &b.task, b.length)
    };
    let mut all = Vec::with_capacity(lines.len());
    for lines in lines.chunk_by(is_one_task) {
        let rows = || lines.iter().flat_map(|line| &line.rows);
        let beside = rows().flat_map(|row| row.beside.keys().copied());
        let beside: BTreeSet<Measure> =
            beside.filter(|measure| matches!(measure, Measure::By(_))).collect();
        for measure in [Measure::Score].into_iter().chain(beside) {
            all.extend(lines.iter().map(|line| Line { rows: line.rows.clone(), measure }));
        }
    }
    all
}

fn texts(rows: &[&Row]) -> Option<Sheet> {
    let lines: Vec<Line<'_>> = rows.iter().map(|row| Line::of(row)).collect();
    let over = |row: &Row| match row.over_full {
        Some(over) => table::difference(over, 3),
        None => "-".into(),
    };
    let columns = vec![
        Column::interval("nats\nper token", |row| table::interval(row.mean.mean, row.interval, 3)),
        Column::right("above\nthe full cache", over),
        Column::right("perplexity", |row| format!("{:.1}", row.mean.mean.exp()))
            .ranked(Rank::Extra),
    ];
    table(&lines, columns)
}

fn fidelity(rows: &[&Row]) -> Option<Sheet> {
    let lines: Vec<Line<'_>> = rows.iter().map(|row| Line::of(row)).collect();
    let beside = |row: &Row, measure| row.beside.get(&measure).map(|of| of.mean);
    let columns = vec![
        Column::interval("KL\nnats per token", |row| {
            table::interval(row.mean.mean, row.interval, 4)
        }),
        Column::right("same\ntoken", move |row| {
            beside(row, Measure::Agreement).map_or("-".into(), table::share)
        }),
        Column::right("output error\nof a layer", move |row| {
            beside(row, Measure::OutputError).map_or("-".into(), |error| format!("{error:.3}"))
        })
        .ranked(Rank::Extra),
        Column::right("overlap with\nthe oracle", move |row| {
            beside(row, Measure::Overlap).map_or("-".into(), |overlap| format!("{overlap:.2}"))
        })
        .ranked(Rank::Extra),
    ];
    table(&lines, columns)
}
