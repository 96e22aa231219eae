//! The tables of a run for people.

use std::collections::BTreeSet;

use briquette_eval::{
    metrics::Metric,
    run::{Measure, Row, Summary},
    tasks::Question,
};
use comfy_table::{Cell, Table};

use super::table;

/// A table a kind of task: scores of answers with both questions side by side, losses of texts,
/// distances from the full cache. Lines have at most `width` columns.
pub fn summary(summary: &Summary, width: Option<u16>) -> String {
    let rows = |measure| -> Vec<&Row> {
        summary.rows.iter().filter(|row| row.measure == measure).collect()
    };
    let tables = [scores(&rows(Measure::Score)), texts(&rows(Measure::Nats))];
    let tables = tables.into_iter().chain([fidelity(&rows(Measure::Kl))]).flatten();
    let fitted = tables.map(|mut table| {
        table::fit(&mut table, width);
        table.to_string()
    });
    fitted.collect::<Vec<String>>().join("\n\n")
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

/// A column: its head, its cell, and whether it is to the right.
struct Column<'a> {
    head: &'a str,
    cell: Box<dyn Fn(&Line<'_>) -> String + 'a>,
    right: bool,
}

impl<'a> Column<'a> {
    fn left(head: &'a str, cell: impl Fn(&Row) -> String + 'a) -> Self {
        Self { head, cell: Box::new(move |line| cell(line.row())), right: false }
    }

    fn right(head: &'a str, cell: impl Fn(&Row) -> String + 'a) -> Self {
        Self { head, cell: Box::new(move |line| cell(line.row())), right: true }
    }
}

fn table<'a>(lines: &[Line<'a>], columns: Vec<Column<'a>>) -> Option<Table> {
    let first = lines.first()?.row();
    let rows = || lines.iter().flat_map(|line| &line.rows);
    let mut named = vec![Column::left("task", |row| row.task.clone())];
    if lines.iter().any(Line::is_beside) {
        let cell = Box::new(|line: &Line<'_>| metric(line).to_owned());
        named.push(Column { head: "metric", cell, right: false });
    }
    if rows().any(|row| row.model != first.model) {
        named.insert(0, Column::left("model", |row| row.model.clone()));
    }
    if rows().any(|row| row.length.is_some()) {
        let length = |row: &Row| row.length.map_or("-".into(), |length| length.to_string());
        named.push(Column::right("length", length));
    }
    named.push(Column::left("policy", |row| row.policy.clone()));
    named.push(Column::right("budget", |row| row.budget.clone()));
    let last = [
        Column::right("samples", |row| row.mean.count.to_string()),
        Column {
            head: "held\nof full",
            cell: Box::new(|line| match line.is_beside() {
                true => String::new(),
                false => table::share(mean(line, |row| Some(row.held_of_full))),
            }),
            right: true,
        },
        Column {
            head: "spare\nof full",
            cell: Box::new(|line| match line.rows.iter().all(|row| row.spare_of_full.is_some()) {
                _ if line.is_beside() => String::new(),
                true => table::share(mean(line, |row| row.spare_of_full)),
                false => "-".into(),
            }),
            right: true,
        },
    ];
    let columns: Vec<Column<'_>> = named.into_iter().chain(columns).chain(last).collect();
    let mut table = table::new(None);
    table.set_header(columns.iter().map(|column| column.head));
    for line in lines {
        table.add_row(columns.iter().map(|column| -> Cell {
            let text = (column.cell)(line);
            if column.right { table::right(text) } else { table::left(text) }
        }));
    }
    Some(table)
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

fn scores(rows: &[&Row]) -> Option<Table> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for &row in rows {
        match lines.iter_mut().find(|line| place(line.row()) == place(row)) {
            Some(line) => line.rows.push(row),
            None => lines.push(Line::of(row)),
        }
    }
    let lines = by_metric(lines);
    let mut columns = Vec::new();
    for (ask, head) in [(Question::Before, "asked before"), (Question::After, "asked after")] {
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
        columns.push(Column { head, cell: Box::new(score), right: false });
        if rows.iter().any(|row| row.beside.contains_key(&Measure::RightTokens)) {
            let right = shown(|row, measure| {
                let right = row.beside.get(&Measure::RightTokens);
                let right = right.filter(|_| measure == row.measure)?;
                Some((right.mean, right.interval))
            });
            columns.push(Column { head: "\nright tokens", cell: Box::new(right), right: false });
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

fn texts(rows: &[&Row]) -> Option<Table> {
    let lines: Vec<Line<'_>> = rows.iter().map(|row| Line::of(row)).collect();
    let over = |row: &Row| match row.over_full {
        Some(over) => table::difference(over, 3),
        None => "-".into(),
    };
    let columns = vec![
        Column::left("nats\na token", |row| table::interval(row.mean.mean, row.interval, 3)),
        Column::right("above\nthe full cache", over),
        Column::right("perplexity", |row| format!("{:.1}", row.mean.mean.exp())),
    ];
    table(&lines, columns)
}

fn fidelity(rows: &[&Row]) -> Option<Table> {
    let lines: Vec<Line<'_>> = rows.iter().map(|row| Line::of(row)).collect();
    let beside = |row: &Row, measure| row.beside.get(&measure).map(|of| of.mean);
    let columns = vec![
        Column::left("KL\nnats a token", |row| table::interval(row.mean.mean, row.interval, 4)),
        Column::right("same\ntoken", move |row| {
            beside(row, Measure::Agreement).map_or("-".into(), table::share)
        }),
        Column::right("output error\nof a layer", move |row| {
            beside(row, Measure::OutputError).map_or("-".into(), |error| format!("{error:.3}"))
        }),
        Column::right("overlap with\nthe oracle", move |row| {
            beside(row, Measure::Overlap).map_or("-".into(), |overlap| format!("{overlap:.2}"))
        }),
    ];
    table(&lines, columns)
}
