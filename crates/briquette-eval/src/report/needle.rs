use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use briquette::{CacheShape, Policy};
use serde::Serialize;

use crate::{
    Result,
    grid::{Accuracy, Answer, Axes, Question, Summary, summarize},
    report::{
        budget_axis::BudgetAxis,
        environment::Environment,
        files::{create_dir, write_csv, write_json},
        plot,
        plot::{HeatMap, Overview, Panel, Point, Series},
        plural, table,
    },
    stats::Proportion,
};

/// The result of a needle grid.
#[derive(Clone, Debug, Serialize)]
pub struct NeedleReport {
    /// When, with what and over what.
    pub settings: Settings,
    /// Seconds the grid ran, without loading the model.
    pub seconds: f64,
    /// One for each policy, budget, length, depth and number of needles.
    pub cells: Vec<Cell>,
    #[serde(skip)]
    answers: Vec<Answer>,
}

/// Settings that it takes to measure the same again.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// With what, and when.
    #[serde(flatten)]
    pub environment: Environment,
    /// `built-in`, or the folder of the haystack.
    pub haystack: String,
    /// Seed of the prompts.
    pub seed: u64,
    /// Prompts a cell.
    pub samples: usize,
    /// Prompts that ran at once.
    pub batch: usize,
    /// Lengths of prompt and answer, in tokens.
    pub lengths: Vec<usize>,
    /// Depths in percent.
    pub depths: Vec<u32>,
    /// Numbers of needles.
    pub needles: Vec<usize>,
    /// How the profile was made that some policies read.
    pub profile: Option<String>,
    /// The policies, each at every budget.
    pub policies: Vec<Entry>,
}

/// A policy of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Label in the report.
    pub label: String,
    /// Budget as text, `-` for a policy that keeps everything.
    pub budget: String,
    /// The policy as in a file; null for one with a custom stage.
    pub file: Option<serde_json::Value>,
}

/// A policy at one place of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Label of the policy.
    pub policy: String,
    /// Budget as text.
    pub budget: String,
    /// Needles in the haystack.
    pub needles: usize,
    /// Tokens of prompt and answer.
    pub length: usize,
    /// Depth in percent.
    pub depth: u32,
    /// The result.
    #[serde(flatten)]
    pub summary: Summary,
}

impl Settings {
    /// Gathers them, with the date of now.
    pub fn new(
        model: String,
        cache_shape: CacheShape,
        dtype: String,
        device: String,
        haystack: String,
        batch: usize,
        axes: &Axes,
    ) -> Self {
        // What a policy reads of a profile is said once.
        let file_form = |policy: &Policy| {
            let json = policy.to_json().ok()?;
            let mut file: serde_json::Value = serde_json::from_str(&json).ok()?;
            file.as_object_mut()?.remove("profile");
            Some(file)
        };
        Self {
            environment: Environment::new(model, cache_shape, dtype, device),
            haystack,
            seed: axes.seed,
            samples: axes.samples,
            batch,
            lengths: axes.lengths.clone(),
            depths: axes.depths.clone(),
            needles: axes.needles.clone(),
            profile: axes
                .entries
                .iter()
                .find_map(|entry| Some(entry.policy.profile()?.made.clone())),
            policies: axes
                .entries
                .iter()
                .map(|entry| Entry {
                    label: entry.label.clone(),
                    budget: entry.budget(),
                    file: file_form(&entry.policy),
                })
                .collect(),
        }
    }
}

impl NeedleReport {
    /// Sums up the answers.
    pub fn new(settings: Settings, elapsed: Duration, answers: Vec<Answer>) -> Self {
        let key = |answer: &Answer| {
            (
                answer.policy.clone(),
                answer.budget.clone(),
                answer.needles,
                answer.length,
                answer.depth,
            )
        };
        let cells = summarize(&answers, key)
            .into_iter()
            .map(|((policy, budget, needles, length, depth), summary)| Cell {
                policy,
                budget,
                needles,
                length,
                depth,
                summary,
            })
            .collect();
        Self { settings, seconds: elapsed.as_secs_f64(), cells, answers }
    }

    /// Every answer.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Exact answers with everything kept.
    pub fn full(&self) -> Proportion {
        let of_full = |answer: &&Answer| answer.policy == "full" && answer.budget == "-";
        let after = |answer: &&Answer| answer.question == Question::After;
        let answers: Vec<&Answer> = self.answers.iter().filter(of_full).filter(after).collect();
        let right = answers.iter().filter(|answer| answer.exact).count();
        Proportion::wilson(right as f64, answers.len())
    }

    /// The table for people: one row a policy, budget, number of needles and length; depths
    /// together.
    pub fn table(&self) -> String {
        let key = |answer: &Answer| {
            (answer.policy.clone(), answer.budget.clone(), answer.needles, answer.length)
        };
        table::needle(&summarize(&self.answers, key), self.settings.needles.len() > 1)
    }

    /// Writes `needle.json`, `needle.csv` (a row a cell), `answers.csv` (a row an answer), a heat
    /// map for every policy and the overview, the pictures as SVG and PNG. Returns the files.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        create_dir(dir)?;
        let json = dir.join("needle.json");
        write_json(&json, self)?;
        let csv = dir.join("needle.csv");
        write_csv(&csv, self.cells.iter().map(CsvCell::new))?;
        let answers = dir.join("answers.csv");
        write_csv(&answers, self.answers.iter())?;

        let mut files = vec![json, csv, answers];
        for policy in self.policies() {
            files.extend(plot::save(
                &self.heat_map(policy),
                dir,
                &format!("heatmap-{}", file_name(policy)),
            )?);
        }
        if let Some(overview) = self.overview() {
            files.extend(plot::save(&overview, dir, "overview")?);
        }
        Ok(files)
    }

    /// Labels, each once.
    fn policies(&self) -> Vec<&str> {
        let mut labels = Vec::new();
        for Entry { label, .. } in &self.settings.policies {
            if !labels.contains(&label.as_str()) {
                labels.push(label.as_str());
            }
        }
        labels
    }

    /// Budgets of a policy in the order of the grid.
    fn budgets(&self, policy: &str) -> Vec<&str> {
        let of = self.settings.policies.iter().filter(|entry| entry.label == policy);
        of.map(|entry| entry.budget.as_str()).collect()
    }

    fn heat_map(&self, policy: &str) -> HeatMap {
        let Settings { lengths, depths, needles, samples, .. } = &self.settings;
        let compresses = self.budgets(policy) != ["-"];
        let share = |budget: &str, count, length, depth, before: bool| {
            let same = |cell: &&Cell| {
                cell.policy == policy
                    && cell.budget == budget
                    && (cell.needles, cell.length, cell.depth) == (count, length, depth)
            };
            let Summary { before: first, after, .. } = self.cells.iter().find(same)?.summary;
            Some(if before { first } else { after }.exact.rate)
        };
        let mut rows = Vec::new();
        for &count in needles {
            for budget in self.budgets(policy) {
                let mut label =
                    if compresses { vec![format!("budget {budget}")] } else { Vec::new() };
                if needles.len() > 1 {
                    label.push(plural(count, "needle"));
                }
                let panel = |before| -> Panel {
                    let line = |depth: &u32| {
                        lengths
                            .iter()
                            .map(|length| share(budget, count, *length, *depth, before))
                            .collect()
                    };
                    depths.iter().map(line).collect()
                };
                let panels =
                    if compresses { vec![panel(true), panel(false)] } else { vec![panel(true)] };
                rows.push((label.join(", "), panels));
            }
        }
        let columns: &[&str] = if compresses {
            &["question before", "question after"]
        } else {
            &["question before or after"]
        };
        HeatMap {
            title: format!("Needle in a haystack: {policy}"),
            subtitle: format!("Share of exact answers, {} a cell", plural(*samples, "prompt")),
            columns: columns.iter().map(|text| (*text).to_owned()).collect(),
            rows,
            lengths: lengths.clone(),
            depths: depths.clone(),
        }
    }

    /// `None` if nothing compresses.
    fn overview(&self) -> Option<Overview> {
        let key = |answer: &Answer| (answer.policy.clone(), answer.budget.clone());
        let summaries = summarize(&self.answers, key);
        let panels = |Summary { before, after, .. }: &Summary| {
            let row = |share: fn(&Accuracy) -> Proportion| vec![share(before), share(after)];
            vec![row(|accuracy| accuracy.exact), row(|accuracy| accuracy.per_token)]
        };
        let of = |policy: &str, budget: &str| {
            let found = summaries.iter().find(|((p, b), _)| p == policy && b == budget)?;
            Some(panels(&found.1))
        };
        let budgets = self.settings.policies.iter().map(|entry| entry.budget.as_str());
        let axes = BudgetAxis::each(budgets.filter(|budget| *budget != "-"));
        let compressing =
            self.policies().into_iter().filter(|policy| self.budgets(policy) != ["-"]);
        let series: Vec<Series> = compressing
            .map(|policy| Series {
                name: policy.to_owned(),
                points: axes
                    .iter()
                    .map(|axis| {
                        let point = |text: &String| {
                            Some(Point { x: axis.place(text)?, values: of(policy, text)? })
                        };
                        axis.budgets.iter().filter_map(point).collect()
                    })
                    .collect(),
            })
            .collect();
        if series.is_empty() {
            return None;
        }
        let Settings { lengths, depths, samples, needles, .. } = &self.settings;
        let (least, most) = (lengths.iter().min()?, lengths.iter().max()?);
        let span = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        let count = lengths.len() * depths.len() * samples * needles.len();
        Some(Overview {
            title: "Needle in a haystack".into(),
            subtitle: format!(
                "{span} tokens, {} a point, 95 % Wilson intervals",
                plural(count, "prompt")
            ),
            columns: vec![
                "question asked before compression".into(),
                "question asked after compression".into(),
            ],
            rows: vec!["exact answers".into(), "right tokens".into()],
            axes: axes.iter().map(BudgetAxis::marked).collect(),
            series,
            full: of("full", "-"),
        })
    }
}

/// A label as part of a file name.
fn file_name(label: &str) -> String {
    label.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

/// A cell without nesting.
#[derive(Serialize)]
struct CsvCell<'a> {
    policy: &'a str,
    budget: &'a str,
    needles: usize,
    length: usize,
    depth: u32,
    samples: usize,
    before_exact: f64,
    before_exact_low: f64,
    before_exact_high: f64,
    before_per_token: f64,
    before_per_token_low: f64,
    before_per_token_high: f64,
    after_exact: f64,
    after_exact_low: f64,
    after_exact_high: f64,
    after_per_token: f64,
    after_per_token_low: f64,
    after_per_token_high: f64,
    bytes_held: f64,
    bytes_spare: Option<f64>,
    bytes_full: f64,
}

impl<'a> CsvCell<'a> {
    fn new(cell: &'a Cell) -> Self {
        let Summary { before, after, bytes_held, bytes_spare, bytes_full } = cell.summary;
        Self {
            policy: &cell.policy,
            budget: &cell.budget,
            needles: cell.needles,
            length: cell.length,
            depth: cell.depth,
            samples: before.exact.trials,
            before_exact: before.exact.rate,
            before_exact_low: before.exact.low,
            before_exact_high: before.exact.high,
            before_per_token: before.per_token.rate,
            before_per_token_low: before.per_token.low,
            before_per_token_high: before.per_token.high,
            after_exact: after.exact.rate,
            after_exact_low: after.exact.low,
            after_exact_high: after.exact.high,
            after_per_token: after.per_token.rate,
            after_per_token_low: after.per_token.low,
            after_per_token_high: after.per_token.high,
            bytes_held,
            bytes_spare,
            bytes_full,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::Budget;
    use rand::RngExt;

    use super::*;
    use crate::{grid, tasks::seed};

    /// Answers drawn by chance, to see every part of a report without a model.
    fn report(lengths: &[usize], needles: &[usize], samples: usize) -> NeedleReport {
        let mut entries = vec![grid::Entry::full()];
        for (method, label) in
            [("streaming-llm", "streaming-llm"), ("h2o", "h2o"), ("snapkv", "snapkv-15")]
        {
            for budget in [Budget::Tokens(128), Budget::Tokens(256)] {
                let policy = Policy::named(method, budget).unwrap();
                entries.push(grid::Entry { label: label.into(), policy });
            }
        }
        let axes = Axes {
            lengths: lengths.to_vec(),
            depths: vec![0, 25, 50, 75, 100],
            needles: needles.to_vec(),
            samples,
            seed: 1,
            entries,
        };
        let mut rng = seed::rng(&[1]);
        let mut answers = Vec::new();
        for (i, entry) in axes.entries.iter().enumerate() {
            let skill = if i == 0 { 1.0 } else { 0.13 * i as f64 };
            for place in axes.groups().into_iter().flatten() {
                for question in [Question::Before, Question::After] {
                    let right = (0..7).filter(|_| rng.random::<f64>().powi(2) < skill).count();
                    answers.push(Answer {
                        policy: entry.label.clone(),
                        budget: entry.budget(),
                        question,
                        length: place.length,
                        depth: place.depth,
                        needles: place.needles,
                        sample: place.sample,
                        word: "countess".into(),
                        expected: "1234567".into(),
                        answer: "1,\"3".into(),
                        exact: right == 7,
                        right,
                        tokens: 7,
                        bytes_held: 1500,
                        bytes_spare: Some(500),
                        bytes_full: 10_000,
                    });
                }
            }
        }
        let shape = CacheShape { layers: 8, query_heads: 8, kv_heads: 2, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        let settings = Settings::new(
            text("MODEL"),
            shape,
            text("f32"),
            text("flex"),
            text("built-in"),
            1,
            &axes,
        );
        NeedleReport::new(settings, Duration::from_secs(1), answers)
    }

    #[test]
    fn writes_every_file() {
        let dir = tempfile::tempdir().unwrap();
        // `BRIQUETTE_PICTURES=DIR cargo test` keeps them for the eye.
        let kept = std::env::var_os("BRIQUETTE_PICTURES").map(PathBuf::from);
        for (name, lengths, needles) in
            [("small", &[512][..], &[1][..]), ("large", &[512, 1024, 2048, 4096], &[1, 4])]
        {
            let dir = kept.as_deref().unwrap_or(dir.path()).join(name);
            let report = report(lengths, needles, 4);
            let files = report.write(&dir).unwrap();
            assert_eq!(files.len(), 3 + 2 * (4 + 1));
            for file in &files {
                assert!(fs::metadata(file).unwrap().len() > 500, "{file:?}");
            }
            assert!(files.contains(&dir.join("heatmap-snapkv-15.png")));
            let cells = lengths.len() * needles.len() * 5 * 7;
            let csv = fs::read_to_string(dir.join("needle.csv")).unwrap();
            assert_eq!(csv.lines().count(), cells + 1);
            let answers = fs::read_to_string(dir.join("answers.csv")).unwrap();
            assert_eq!(answers.lines().count(), cells * 4 * 2 + 1);
            let json: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(dir.join("needle.json")).unwrap())
                    .unwrap();
            assert_eq!(json["cells"].as_array().unwrap().len(), cells);
            assert_eq!(json["cells"][0]["before"]["exact"]["rate"], 1.0);
            assert_eq!(json["settings"]["policies"][1]["file"]["budget"]["tokens"], 128);
        }
    }

    #[test]
    fn table_has_a_row_a_policy_budget_and_length() {
        let table = report(&[512, 1024], &[1], 2).table();
        assert_eq!(table.lines().filter(|line| line.contains("1024")).count(), 7, "\n{table}");
        assert!(table.contains("1.00 [0.7"), "\n{table}");
        assert!(!table.contains("needles"), "\n{table}");
    }

    #[test]
    fn labels_become_file_names() {
        assert_eq!(file_name("snapkv:score.pool.kernel=15"), "snapkv-score.pool.kernel-15");
        assert_eq!(file_name("a/b\\c d"), "a-b-c-d");
    }
}
