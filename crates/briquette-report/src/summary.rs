//! The tables of a run for people.

use briquette_eval::{
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

/// A task under a policy, with one row or one a question.
type Line<'a> = Vec<&'a Row>;

/// A column: its head, its cell, and whether it is to the right.
struct Column<'a> {
    head: &'a str,
    cell: Box<dyn Fn(&Line<'_>) -> String + 'a>,
    right: bool,
}

impl<'a> Column<'a> {
    fn left(head: &'a str, cell: impl Fn(&Row) -> String + 'a) -> Self {
        Self { head, cell: Box::new(move |line| cell(line[0])), right: false }
    }

    fn right(head: &'a str, cell: impl Fn(&Row) -> String + 'a) -> Self {
        Self { head, cell: Box::new(move |line| cell(line[0])), right: true }
    }
}

fn table<'a>(lines: &[Line<'a>], columns: Vec<Column<'a>>) -> Option<Table> {
    let first = lines.first()?[0];
    let rows = || lines.iter().flatten();
    let mut named = vec![Column::left("task", |row| row.task.clone())];
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
            cell: Box::new(|line| table::share(mean(line, |row| Some(row.held_of_full)))),
            right: true,
        },
        Column {
            head: "spare\nof full",
            cell: Box::new(|line| match line.iter().all(|row| row.spare_of_full.is_some()) {
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
    let numbers: Vec<f64> = line.iter().filter_map(|row| of(row)).collect();
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

/// A mean with the ends of its interval.
type Shown = (f64, Option<[f64; 2]>);

/// The place of a row in the table, whenever the question came.
fn place(row: &Row) -> (&str, &str, Option<u64>, &str, &str) {
    (&row.model, &row.task, row.length, &row.policy, &row.budget)
}

fn scores(rows: &[&Row]) -> Option<Table> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        match lines.iter_mut().find(|line| place(line[0]) == place(row)) {
            Some(line) => line.push(row),
            None => lines.push(vec![row]),
        }
    }
    let mut columns = Vec::new();
    for (ask, head) in [(Question::Before, "asked before"), (Question::After, "asked after")] {
        if !rows.iter().any(|row| row.ask == Some(ask)) {
            continue;
        }
        let shown = |of: fn(&Row) -> Option<Shown>| {
            move |line: &Line<'_>| {
                let row = line.iter().find(|row| row.ask == Some(ask));
                let found = row.and_then(|row| of(row));
                found.map_or("-".into(), |(mean, ends)| table::interval(mean, ends, 2))
            }
        };
        let score = shown(|row| Some((row.mean.mean, row.interval)));
        columns.push(Column { head, cell: Box::new(score), right: false });
        if rows.iter().any(|row| row.beside.contains_key(&Measure::RightTokens)) {
            let right = shown(|row| {
                let right = row.beside.get(&Measure::RightTokens)?;
                Some((right.mean, right.interval))
            });
            columns.push(Column { head: "\nright tokens", cell: Box::new(right), right: false });
        }
    }
    table(&lines, columns)
}

fn texts(rows: &[&Row]) -> Option<Table> {
    let lines: Vec<Line<'_>> = rows.iter().map(|row| vec![*row]).collect();
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
    let lines: Vec<Line<'_>> = rows.iter().map(|row| vec![*row]).collect();
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
