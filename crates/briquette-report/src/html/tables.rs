//! The numbers of a run as Markdown, for a text that quotes them: a table a task, policies down and
//! budgets across.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    collect::Collected,
    facts::Facts,
    key::{Column, NONE, Row, compare_budgets, compare_policies},
    measure::{Measure, Measures},
};
use crate::{markdown, plural};

/// The head of what has no budget.
const NO_BUDGET: &str = "no budget";

/// Number that the tables of a task show, and one that stands beside it where it is known.
struct Shown {
    measure: Measure,
    beside: Measure,
    what: [&'static str; 2],
}

const SHOWN: [Shown; 3] = [
    Shown {
        measure: Measure::Score,
        beside: Measure::RightTokens,
        what: ["Score", "share of right tokens"],
    },
    Shown {
        measure: Measure::Nats,
        beside: Measure::NatsOverFull,
        what: ["Nats a token", "above the full cache"],
    },
    Shown {
        measure: Measure::Kl,
        beside: Measure::Agreement,
        what: ["KL to the full cache, nats", "share of tokens where the likeliest is the same"],
    },
];

/// All of it. The same results give the same text.
pub(super) fn tables(facts: &Facts, collected: &Collected, measures: &Measures) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("<!-- briquette {version} -->\n{}\n", markdown::plain(&facts.line()));
    for model in collected.each(|row| &row.model) {
        let grid = Grid::new(collected, model);
        for shown in &SHOWN {
            for column in measures.columns(shown.measure) {
                text += &grid.numbers(model, measures, &column, shown);
                // Of a metric beside the score nothing stands beside.
                let others = measures.beside().into_iter();
                for measure in others.filter(|_| shown.measure == Measure::Score) {
                    let other = Shown { measure, beside: measure, what: ["Score", ""] };
                    text += &grid.numbers(model, measures, &column, &other);
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
        text += &grid.section(model, "cache", what, bytes);
    }
    text
}

/// The rows of a model, as a table has them.
struct Grid<'a> {
    several_models: bool,
    rows: Vec<&'a Row>,
    policies: Vec<&'a str>,
    budgets: Vec<&'a str>,
    /// Policies that cannot hold: why, and in which tasks.
    unavailable: &'a BTreeMap<Row, BTreeMap<String, BTreeSet<String>>>,
}

impl<'a> Grid<'a> {
    fn new(collected: &'a Collected, model: &str) -> Self {
        let rows: Vec<&Row> = collected.rows().filter(|row| row.model == model).collect();
        let missing = collected.unavailable.keys().filter(|row| row.model == model);
        let all = || rows.iter().copied().chain(missing.clone());
        let mut policies: Vec<&str> = all().map(|row| row.policy.as_str()).collect();
        let mut budgets: Vec<&str> = all().map(|row| row.budget.as_str()).collect();
        policies.sort_by(|a, b| compare_policies(a, b));
        policies.dedup();
        budgets.sort_by(|a, b| (*a != NONE).cmp(&(*b != NONE)).then(compare_budgets(a, b)));
        budgets.dedup();
        let several_models = collected.each(|row| &row.model).len() > 1;
        Self { several_models, rows, policies, budgets, unavailable: &collected.unavailable }
    }

    fn cannot_hold(&self, row: &Row, column: &Column) -> bool {
        let reasons = self.unavailable.get(row);
        reasons.is_some_and(|all| all.values().any(|tasks| tasks.contains(&column.task)))
    }

    /// The table of a number of a task, and of what stands beside it.
    fn numbers(
        &self,
        model: &str,
        measures: &Measures,
        column: &Column,
        Shown { measure, beside: other, what: [what, other_is] }: &Shown,
    ) -> String {
        let of = |row: &Row, measure: Measure| measures.get(row, Some(column), measure);
        let beside = |row: &Row| of(row, *other).filter(|_| other != measure);
        let cell = |row: &Row| {
            let found = measure.text(of(row, *measure)?.mean);
            Some(match beside(row) {
                Some(beside) => format!("{found} / {}", other.text(beside.mean)),
                None => found,
            })
        };
        let counts = self.rows.iter().filter_map(|row| Some(of(row, *measure)?.count));
        let (least, most) = counts
            .fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
        let samples = if least == most {
            plural(most, "sample")
        } else {
            format!("{least} to {}", plural(most, "sample"))
        };
        let metric = match measure {
            Measure::By(metric) => Some(*metric),
            Measure::Score if !measures.beside().is_empty() => measures.metric(column),
            _ => None,
        };
        let by = metric.map_or_else(String::new, |metric| format!(" by {}", metric.name()));
        let both = self.rows.iter().any(|row| beside(row).is_some());
        let and = if both { format!(" / {other_is}") } else { String::new() };
        let what = format!("{what}{by}{and}; {samples}.");
        let heading = match measure {
            Measure::By(metric) => format!("{}, {}", column.label(), metric.name()),
            _ => column.label(),
        };
        self.section(model, &heading, &what, |row| {
            cell(row).or_else(|| self.cannot_hold(row, column).then(|| "cannot hold".into()))
        })
    }

    /// A heading, a sentence and a table; nothing if there is no cell.
    fn section(
        &self,
        model: &str,
        heading: &str,
        what: &str,
        cell: impl Fn(&Row) -> Option<String>,
    ) -> String {
        let row = |policy: &&str| {
            let cells: Vec<Option<String>> = self
                .budgets
                .iter()
                .map(|budget| {
                    let row = Row {
                        model: model.to_owned(),
                        policy: (*policy).to_owned(),
                        budget: (*budget).to_owned(),
                    };
                    cell(&row)
                })
                .collect();
            cells.iter().any(Option::is_some).then(|| {
                let cells = cells.into_iter().map(Option::unwrap_or_default);
                [markdown::code(policy)].into_iter().chain(cells).collect::<Vec<_>>()
            })
        };
        let rows: Vec<Vec<String>> = self.policies.iter().filter_map(row).collect();
        if rows.is_empty() {
            return String::new();
        }
        let head = |budget: &&str| match *budget {
            NONE => NO_BUDGET.to_owned(),
            budget => markdown::plain(budget),
        };
        let heads: Vec<String> = self.budgets.iter().map(head).collect();
        let header: Vec<&str> =
            ["policy"].into_iter().chain(heads.iter().map(String::as_str)).collect();
        let of = if self.several_models { format!("{model}: ") } else { String::new() };
        let heading = markdown::plain(&format!("{of}{heading}"));
        format!("\n### {heading}\n\n{what}\n\n{}", markdown::table(&header, &rows))
    }
}
