use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Environment,
    files::{create_dir, write_csv, write_json, write_text},
    markdown, plural, weak,
};
use crate::{
    Result,
    compare::{Found, Plan, Row},
    grid::{Accuracy, Summary},
    stats::{Mean, Proportion},
};

/// Every method at every budget.
#[derive(Clone, Debug, Serialize)]
pub struct CompareReport {
    /// With what.
    #[serde(flatten)]
    pub environment: Environment,
    /// `built-in`, or the folder of the haystack.
    pub haystack: String,
    /// `built-in`, or the name of the text.
    pub text: String,
    /// The sizes.
    pub plan: Plan,
    /// One for each policy and budget.
    pub rows: Vec<Row>,
}

/// A measure of a policy in a table.
type Measure<'a> = (&'a str, &'a dyn Fn(&Summary, &[f64]) -> String);

impl CompareReport {
    /// The tables as Markdown: policies by budgets, one table a measure. What a policy cannot hold
    /// is a dash with a footnote.
    pub fn markdown(&self) -> String {
        let Plan { length, depths, samples, tokens, windows, seed } = &self.plan;
        let Environment { briquette, burn, date, model, dtype, device, .. } = &self.environment;
        let prompts = depths.len() * samples;
        let (low, high) = {
            let middle = Proportion::wilson(prompts as f64 / 2.0, prompts);
            (middle.low, middle.high)
        };
        let mut notes = Notes::default();
        let full = self.full();
        let weak = self.row("full", "-").and_then(|row| match &row.found {
            Found::Measured { needles, .. } => weak(needles.after.exact),
            Found::Unavailable(_) => None,
        });
        let mut text = weak.map_or_else(String::new, |said| said + "\n\n");
        let _ = write!(
            text,
            "{model}, {dtype}, {device}; briquette {briquette}, burn {burn}, {date}, seed {seed}.\n\n\
             Needles: {length} tokens, {} a cell, depths {depths:?} %, haystack {}. Shares of exact answers / of right \
             tokens. The 95 % interval of a share of 0.50 is {low:.2} to {high:.2}; the others are in `compare.csv`.\n\n\
             Text: {}, {} of {length} tokens each, then {tokens} predicted. Nats a token{}.\n\n\
             Cache: KiB held behind an answer (of a full cache) + KiB of spare room for tokens to come.\n",
            plural(prompts, "prompt"),
            self.haystack,
            self.text,
            plural(*windows, "prompt"),
            if full.is_some() { " (above the full cache)" } else { "" },
        );
        let accuracy = |accuracy: &Accuracy| {
            format!("{:.2} / {:.2}", accuracy.exact.rate, accuracy.per_token.rate)
        };
        let before = |needles: &Summary, _: &[f64]| accuracy(&needles.before);
        let after = |needles: &Summary, _: &[f64]| accuracy(&needles.after);
        let cache = |needles: &Summary, _: &[f64]| {
            let Summary { bytes_held, bytes_spare, bytes_full, .. } = needles;
            let kept = bytes_held - bytes_spare.unwrap_or(0.0);
            let share = 100.0 * kept / bytes_full.max(1.0);
            let spare =
                bytes_spare.map_or_else(String::new, |room| format!(" + {:.0}", room / 1024.0));
            format!("{:.0} ({share:.0} %){spare}", kept / 1024.0)
        };
        let nats = |_: &Summary, nats: &[f64]| match over(nats, full) {
            Some(over) => format!("{:.3} ({:+.3})", Mean::of(nats).mean, over.mean),
            None => format!("{:.3}", Mean::of(nats).mean),
        };
        let measures: [Measure<'_>; 4] = [
            ("Needle, question asked before compression", &before),
            ("Needle, question asked after compression", &after),
            ("Text", &nats),
            ("Cache", &cache),
        ];

        let unlimited: Vec<&Row> = self.rows.iter().filter(|row| row.budget == "-").collect();
        if !unlimited.is_empty() {
            let header = ["policy", "needle before", "needle after", "text", "cache"];
            let rows = unlimited.iter().map(|row| {
                let cells = measures.iter().map(|(_, show)| notes.cell(Some(*row), *show));
                [format!("`{}`", row.policy)].into_iter().chain(cells).collect()
            });
            let table = markdown::table(&header, &rows.collect::<Vec<Vec<String>>>());
            let _ = write!(text, "\n### Policies without a budget\n\n{table}");
        }
        let (policies, budgets) = self.axes();
        if !policies.is_empty() {
            for (title, show) in measures {
                let header: Vec<&str> =
                    ["policy"].into_iter().chain(budgets.iter().copied()).collect();
                let rows: Vec<Vec<String>> = policies
                    .iter()
                    .map(|policy| {
                        let cells =
                            budgets.iter().map(|budget| notes.cell(self.row(policy, budget), show));
                        [format!("`{policy}`")].into_iter().chain(cells).collect()
                    })
                    .collect();
                let table = markdown::table(&header, &rows);
                let _ = write!(text, "\n### {title}\n\n{table}");
            }
        }
        text + &notes.text()
    }

    /// Writes `compare.md`, `compare.csv` and `compare.json`. Returns the files.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        create_dir(dir)?;
        let files = ["md", "csv", "json"].map(|ending| dir.join(format!("compare.{ending}")));
        write_text(&files[0], &self.markdown())?;
        let full = self.full();
        write_csv(&files[1], self.rows.iter().map(|row| CsvRow::new(row, full)))?;
        write_json(&files[2], self)?;
        Ok(files.to_vec())
    }

    /// Policies with a budget, and the budgets, each once.
    fn axes(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut policies, mut budgets): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for Row { policy, budget, .. } in self.rows.iter().filter(|row| row.budget != "-") {
            if !policies.contains(&policy.as_str()) {
                policies.push(policy);
            }
            if !budgets.contains(&budget.as_str()) {
                budgets.push(budget);
            }
        }
        (policies, budgets)
    }

    fn row(&self, policy: &str, budget: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.policy == policy && row.budget == budget)
    }

    /// Nats of the full cache, one number a window.
    fn full(&self) -> Option<&[f64]> {
        match &self.row("full", "-")?.found {
            Found::Measured { nats, .. } => Some(nats),
            Found::Unavailable(_) => None,
        }
    }
}

/// Nats a token above the full cache, window by window.
fn over(nats: &[f64], full: Option<&[f64]>) -> Option<Mean> {
    let over: Vec<f64> = nats.iter().zip(full?).map(|(nats, full)| nats - full).collect();
    Some(Mean::of(&over))
}

/// Reasons, each once, in the order they are first given.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn cell(&mut self, row: Option<&Row>, show: impl Fn(&Summary, &[f64]) -> String) -> String {
        match row.map(|row| &row.found) {
            None => String::new(),
            Some(Found::Measured { needles, nats, .. }) => show(needles, nats),
            Some(Found::Unavailable(reason)) => format!("-[^{}]", self.number(reason)),
        }
    }

    fn number(&mut self, reason: &str) -> usize {
        match self.0.iter().position(|other| other == reason) {
            Some(at) => at + 1,
            None => {
                self.0.push(reason.to_owned());
                self.0.len()
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (number, reason) in (1..).zip(&self.0) {
            let _ = write!(text, "\n[^{number}]: {reason}\n");
        }
        text
    }
}

/// A row without nesting. Numbers are empty where nothing was measured.
#[derive(Default, Serialize)]
struct CsvRow<'a> {
    policy: &'a str,
    budget: &'a str,
    prompts: Option<usize>,
    before_exact: Option<f64>,
    before_exact_low: Option<f64>,
    before_exact_high: Option<f64>,
    before_per_token: Option<f64>,
    before_per_token_low: Option<f64>,
    before_per_token_high: Option<f64>,
    after_exact: Option<f64>,
    after_exact_low: Option<f64>,
    after_exact_high: Option<f64>,
    after_per_token: Option<f64>,
    after_per_token_low: Option<f64>,
    after_per_token_high: Option<f64>,
    bytes_held: Option<f64>,
    bytes_spare: Option<f64>,
    bytes_full: Option<f64>,
    windows: Option<usize>,
    nats: Option<f64>,
    nats_error: Option<f64>,
    nats_over_full: Option<f64>,
    nats_over_full_error: Option<f64>,
    text_bytes_held: Option<f64>,
    unavailable: Option<&'a str>,
}

impl<'a> CsvRow<'a> {
    fn new(row: &'a Row, full: Option<&[f64]>) -> Self {
        let (policy, budget) = (&row.policy, &row.budget);
        let (needles, nats, text_bytes_held) = match &row.found {
            Found::Unavailable(reason) => {
                return Self { policy, budget, unavailable: Some(reason), ..Self::default() };
            }
            Found::Measured { needles, nats, text_bytes_held } => (needles, nats, text_bytes_held),
        };
        let Summary { before, after, bytes_held, bytes_spare, bytes_full } = needles;
        let mean = Mean::of(nats);
        let over = over(nats, full);
        Self {
            policy,
            budget,
            prompts: Some(before.exact.trials),
            before_exact: Some(before.exact.rate),
            before_exact_low: Some(before.exact.low),
            before_exact_high: Some(before.exact.high),
            before_per_token: Some(before.per_token.rate),
            before_per_token_low: Some(before.per_token.low),
            before_per_token_high: Some(before.per_token.high),
            after_exact: Some(after.exact.rate),
            after_exact_low: Some(after.exact.low),
            after_exact_high: Some(after.exact.high),
            after_per_token: Some(after.per_token.rate),
            after_per_token_low: Some(after.per_token.low),
            after_per_token_high: Some(after.per_token.high),
            bytes_held: Some(*bytes_held),
            bytes_spare: *bytes_spare,
            bytes_full: Some(*bytes_full),
            windows: Some(mean.count),
            nats: Some(mean.mean),
            nats_error: Some(mean.error),
            nats_over_full: over.map(|over| over.mean),
            nats_over_full_error: over.map(|over| over.error),
            text_bytes_held: Some(*text_bytes_held),
            unavailable: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::CacheShape;

    use super::*;

    fn report() -> CompareReport {
        let share = Proportion::wilson(5.0, 10);
        let accuracy = Accuracy { exact: share, per_token: Proportion::wilson(7.5, 10) };
        let needles = Summary {
            before: accuracy,
            after: accuracy,
            bytes_held: 3072.0,
            bytes_spare: Some(1024.0),
            bytes_full: 8192.0,
        };
        let row = |policy: &str, budget: &str, nats: Option<f64>| Row {
            policy: policy.into(),
            budget: budget.into(),
            found: match nats {
                Some(nats) => Found::Measured {
                    needles,
                    nats: vec![nats, nats + 1.0],
                    text_bytes_held: 1024.0,
                },
                None => Found::Unavailable(format!("{policy} is too large")),
            },
        };
        let shape = CacheShape { layers: 8, query_heads: 8, kv_heads: 2, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        CompareReport {
            environment: Environment::new(text("MODEL"), shape, text("f32"), text("flex")),
            haystack: text("built-in"),
            text: text("a.txt"),
            plan: Plan {
                length: 1024,
                depths: vec![0, 100],
                samples: 5,
                tokens: 64,
                windows: 2,
                seed: 0,
            },
            rows: vec![
                row("full", "-", Some(3.0)),
                row("snapkv", "16", None),
                row("snapkv", "64", Some(3.25)),
                row("h2o", "16", Some(3.5)),
                row("h2o", "64", Some(3.125)),
            ],
        }
    }

    #[test]
    fn tables_have_policies_by_budgets_and_say_what_is_missing() {
        let text = report().markdown();
        let line = |start: &str| {
            text.lines()
                .filter(|line| line.starts_with(start))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(line("### ").len(), 1 + 4, "{text}");
        let snapkv = line("| `snapkv`");
        assert_eq!(snapkv.len(), 4, "{text}");
        assert!(snapkv.iter().all(|line| line.contains("-[^1]")), "{text}");
        assert!(snapkv[0].contains("0.50 / 0.75"), "{text}");
        assert!(snapkv[2].contains("3.750 (+0.250)"), "{text}");
        assert!(snapkv[3].contains("2 (25 %) + 1"), "{text}");
        assert_eq!(line("[^1]: "), ["[^1]: snapkv is too large"]);
        assert!(line("| `full`")[0].contains("3.500 (+0.000)"), "{text}");
    }

    #[test]
    fn files_hold_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let files = report().write(dir.path()).unwrap();
        let csv = fs::read_to_string(&files[1]).unwrap();
        assert_eq!(csv.lines().count(), 1 + 5, "{csv}");
        let columns = |line: &str| line.matches(',').count();
        assert!(csv.lines().all(|line| columns(line) == columns(&csv[..csv.find('\n').unwrap()])));
        assert!(csv.contains("snapkv is too large"));
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&files[2]).unwrap()).unwrap();
        assert_eq!(json["rows"][1]["unavailable"], "snapkv is too large");
        assert_eq!(json["rows"][2]["measured"]["nats"][0], 3.25);
    }
}
