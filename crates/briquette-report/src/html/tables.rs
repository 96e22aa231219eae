//! The numbers of a run as Markdown or LaTeX, for a text that quotes them: a table a task and
//! measure, policies down and budgets across.

use std::collections::BTreeMap;

use briquette_eval::stats::Estimate;

use super::{
    collect::Collected,
    differences::{Compared, Difference, Differences},
    facts::Facts,
    key::{Column, Methods, NONE, Row, compare_budgets, compare_policies, method},
    measure::{Measure, Measures},
};
use crate::{align::Align, latex, markdown, plural};

/// Rows of a table of pairs; what has more is in `differences.csv` alone.
const PAIRS: usize = 200;

/// The language of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// `tables.md`.
    Markdown,
    /// `tables.tex`, with the rules of `booktabs`.
    Latex,
}

impl TableFormat {
    fn plain(self, text: &str) -> String {
        match self {
            Self::Markdown => markdown::plain(text),
            Self::Latex => latex::plain(text),
        }
    }

    /// A table with its heading and a sentence on it; nothing without a row.
    fn section(
        self,
        heading: &str,
        what: &str,
        header: &[(Align, &str)],
        rows: &[Vec<String>],
    ) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let [heading, what] = [heading, what].map(|text| self.plain(text));
        let head = |(align, head): &(Align, &str)| (*align, self.plain(head));
        let header: Vec<(Align, String)> = header.iter().map(head).collect();
        let cell = |(column, cell): (usize, &String)| match (self, column) {
            (Self::Markdown, 0) => markdown::code(cell),
            (Self::Markdown, _) => cell.clone(),
            (Self::Latex, 0) => latex::code(cell),
            (Self::Latex, _) => latex::plain(cell),
        };
        let row = |row: &Vec<String>| row.iter().enumerate().map(cell).collect();
        let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
        match self {
            Self::Markdown => {
                format!("\n### {heading}\n\n{what}\n\n{}", markdown::table(&header, &rows))
            }
            Self::Latex => format!(
                "\n\\begin{{table}}\n\\centering\n\\caption{{{heading}. {what}}}\n{}\\end{{table}}\n",
                latex::table(&header, &rows)
            ),
        }
    }

    /// A table of these rows; nothing if there is no cell.
    fn grid(
        self,
        heading: &str,
        what: &str,
        rows: &[&Row],
        cell: impl Fn(&Row) -> Option<String>,
    ) -> String {
        let mut budgets: Vec<&str> = rows.iter().map(|row| row.budget.as_str()).collect();
        budgets.sort_by(|a, b| (*a != NONE).cmp(&(*b != NONE)).then(compare_budgets(a, b)));
        budgets.dedup();
        let line = |policy: &str| {
            let cells = budgets.iter().map(|budget| {
                let row = rows.iter().find(|row| row.policy == policy && row.budget == *budget);
                row.and_then(|row| cell(row))
            });
            let cells: Vec<Option<String>> = cells.collect();
            cells.iter().any(Option::is_some).then(|| {
                let cells = cells.into_iter().map(Option::unwrap_or_default);
                [policy.to_owned()].into_iter().chain(cells).collect()
            })
        };
        let lines: Vec<Vec<String>> = policies(rows).into_iter().filter_map(line).collect();
        let heads = budgets.iter().map(|budget| if *budget == NONE { "no budget" } else { budget });
        let heads = heads.map(|head| (Align::Right, head));
        let header: Vec<(Align, &str)> =
            [(Align::Left, "policy")].into_iter().chain(heads).collect();
        self.section(heading, what, &header, &lines)
    }
}

/// All of it. The same results give the same text.
pub(super) fn tables(
    format: TableFormat,
    facts: &Facts,
    (collected, measures, differences): (&Collected, &Measures, &Differences),
    methods: &Methods,
) -> String {
    let version = concat!("briquette ", env!("CARGO_PKG_VERSION"));
    let line = format.plain(&facts.line());
    let mut text = match format {
        TableFormat::Markdown => format!("<!-- {version} -->\n{line}\n"),
        TableFormat::Latex => format!("% {version}\n% {line}\n"),
    };
    let mut shown = vec![Measure::Score, Measure::RightTokens];
    shown.extend(measures.beside());
    shown.extend([Measure::Nats, Measure::Kl, Measure::Agreement]);
    let models = collected.each(|row| &row.model);
    let all: Vec<&Row> = collected.rows().chain(collected.unavailable.keys()).collect();
    for model in &models {
        let rows: Vec<&Row> = all.iter().copied().filter(|row| row.model == *model).collect();
        let named = if models.len() > 1 { format!("{model}: ") } else { String::new() };
        for measure in &shown {
            for column in measures.columns(*measure) {
                let mut heading = format!("{named}{}", column.label());
                if *measure != Measure::Score {
                    heading += &format!(", {}", measure.label());
                }
                let (what, cell) = numbers(collected, measures, &column, *measure);
                text += &format.grid(&heading, &what, &rows, cell);
                for (of, found) in differences.full.iter().chain(&differences.pairs) {
                    if of.column == column && of.measure == *measure {
                        text += &compared(format, (&heading, model), of, found);
                    }
                }
            }
        }
        let bytes = |row: &Row| {
            let text =
                |measure: Measure| Some(measure.text(measures.get(row, None, measure)?.mean));
            let spare = text(Measure::SpareBytes).unwrap_or_else(|| "-".into());
            Some(format!("{} / {} / {spare}", text(Measure::HeldBytes)?, text(Measure::HeldShare)?))
        };
        let what = "KiB of what is kept at the end of a sample, the mean / its share of what full caches take / KiB of spare room.";
        text += &format.grid(&format!("{named}cache"), what, &rows, bytes);
    }
    let about = |policy: &str| {
        let known = methods.get(method(policy))?;
        Some(vec![policy.to_owned(), known.title.clone(), known.paper.clone()])
    };
    let papers: Vec<Vec<String>> = policies(&all).into_iter().filter_map(about).collect();
    let header = ["policy", "method", "paper"].map(|head| (Align::Left, head));
    text + &format.section("methods", "Methods and their papers.", &header, &papers)
}

fn policies<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut policies: Vec<&str> = rows.iter().map(|row| row.policy.as_str()).collect();
    policies.sort_by(|a, b| compare_policies(a, b));
    policies.dedup();
    policies
}

/// A sentence on a number of a task, and its cells.
fn numbers<'a>(
    collected: &'a Collected,
    measures: &'a Measures,
    column: &'a Column,
    measure: Measure,
) -> (String, impl Fn(&Row) -> Option<String> + 'a) {
    let of = move |row: &Row| measures.get(row, Some(column), measure);
    let cannot_hold = |row: &Row| {
        let reasons = collected.unavailable.get(row);
        reasons.is_some_and(|all| all.values().any(|tasks| tasks.contains(&column.task)))
    };
    let metric = match measures.metric_name(Some(column), measure) {
        "" => String::new(),
        name => format!(" Metric: {name}."),
    };
    let samples = samples(collected.rows().filter_map(|row| Some(of(row)?.count)));
    let what = format!("{}{metric} {samples}, 95 % intervals.", measure.about());
    let cell = move |row: &Row| match of(row) {
        Some(known) => Some(with_bounds(&known, |value| measure.text(value))),
        None => cannot_hold(row).then(|| "cannot hold".into()),
    };
    (what, cell)
}

/// A table of differences: those from the full cache, or those of pairs, which are folded.
fn compared(
    format: TableFormat,
    (heading, model): (&str, &str),
    of: &Compared,
    found: &BTreeMap<Row, Difference>,
) -> String {
    let rows: Vec<&Row> = found.keys().filter(|row| row.model == model).collect();
    let pairs = found.values().all(Difference::is_of_pair);
    if policies(&rows).len() > PAIRS {
        return String::new();
    }
    let (kind, what) = match pairs {
        true => ("pairs", "The first policy minus the second"),
        false => ("over full", "Each policy minus the full cache"),
    };
    let length = of.length.map_or_else(String::new, |length| format!(", {length} tokens"));
    let samples = samples(rows.iter().map(|row| found[row].estimate.count));
    let what = format!("{what}; {samples}, 95 % intervals; p is corrected for the table (Holm).");
    let table = format.grid(&format!("{heading}{length}: {kind}"), &what, &rows, |row| {
        let found = &found[row];
        let difference = with_bounds(&found.estimate, |value| of.measure.signed(value));
        Some(format!("{difference}, {}", found.p_text()))
    });
    match format {
        TableFormat::Markdown if pairs && !table.is_empty() => {
            format!("\n<details><summary>Pairs</summary>\n{table}\n</details>\n")
        }
        _ => table,
    }
}

/// `0.75 [0.30, 0.95]`
fn with_bounds(known: &Estimate, text: impl Fn(f64) -> String) -> String {
    let bounds = known.interval.map(|[low, high]| format!(" [{}, {}]", text(low), text(high)));
    text(known.mean) + &bounds.unwrap_or_default()
}

/// `2 to 4 samples`
fn samples(counts: impl Iterator<Item = usize>) -> String {
    let (least, most) =
        counts.fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
    let samples = plural(most, "sample");
    if least < most { format!("{least} to {samples}") } else { samples }
}
