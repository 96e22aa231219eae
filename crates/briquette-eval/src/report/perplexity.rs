use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    Environment,
    files::{create_dir, write_csv, write_json},
    table,
};
use crate::{
    Result,
    grid::Entry,
    perplexity::{Loss, Plan},
    stats::Mean,
};

/// How well a model continues a text, by policy and budget.
#[derive(Clone, Debug, Serialize)]
pub struct PerplexityReport {
    /// With what.
    #[serde(flatten)]
    pub environment: Environment,
    /// `built-in`, or the name of the file.
    pub text: String,
    /// The sizes.
    pub plan: Plan,
    /// Seconds it ran, without loading the model.
    pub seconds: f64,
    /// One for each policy and budget.
    pub rows: Vec<PerplexityRow>,
}

/// A policy at a budget.
#[derive(Clone, Debug, Serialize)]
pub struct PerplexityRow {
    /// Label of the policy.
    pub policy: String,
    /// Budget as text.
    pub budget: String,
    /// Nats a token, and the standard error over windows.
    pub nats: Mean,
    /// Nats a token above the full cache in the same windows; absent if it was not measured.
    pub over_full: Option<Mean>,
    /// e to the nats a token.
    pub perplexity: f64,
    /// Bytes of cache held at the end of a window, the mean, with the room for tokens to come.
    pub bytes_held: f64,
    /// Those of them that are free; `None` if a window of an older version does not tell.
    pub bytes_spare: Option<f64>,
    /// Bytes that full caches would hold, the mean.
    pub bytes_full: f64,
    /// The mean over windows, one number a predicted token.
    #[serde(skip)]
    pub by_position: Vec<f64>,
}

#[derive(Serialize)]
struct CsvPosition<'a> {
    policy: &'a str,
    budget: &'a str,
    /// The first predicted token is 1.
    position: usize,
    nats: f64,
    /// The mean of all tokens up to this.
    cumulative: f64,
}

impl PerplexityReport {
    /// Sums up the losses, `[entry][window]`.
    pub fn new(
        environment: Environment,
        text: String,
        plan: Plan,
        seconds: f64,
        entries: &[Entry],
        losses: &[Vec<Loss>],
    ) -> Self {
        let full = entries.iter().position(|entry| entry.label == "full").map(|at| &losses[at]);
        let rows = entries
            .iter()
            .zip(losses)
            .map(|(entry, losses)| PerplexityRow::new(entry, losses, full))
            .collect();
        Self { environment, text, plan, seconds, rows }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut table = table::new();
        let header = ["policy", "budget", "nats\na token", "above\nthe full cache", "perplexity"];
        table.set_header(header.into_iter().chain(table::MEMORY));
        for row in &self.rows {
            let over = row
                .over_full
                .map_or("-".into(), |over| format!("{:+.3} ± {:.3}", over.mean, over.error));
            let memory = table::memory(row.bytes_held, row.bytes_spare, row.bytes_full);
            let cells = [
                table::left(&row.policy),
                table::right(&row.budget),
                table::right(format!("{:.3}", row.nats.mean)),
                table::right(over),
                table::right(format!("{:.1}", row.perplexity)),
            ];
            table.add_row(cells.into_iter().chain(memory));
        }
        table.to_string()
    }

    /// Writes `perplexity.json` (a row a policy and budget) and `perplexity.csv` (a row a predicted
    /// token). Returns the files.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        create_dir(dir)?;
        let (json, csv) = (dir.join("perplexity.json"), dir.join("perplexity.csv"));
        write_json(&json, self)?;
        write_csv(&csv, self.rows.iter().flat_map(PerplexityRow::positions))?;
        Ok(vec![json, csv])
    }
}

impl PerplexityRow {
    fn new(entry: &Entry, losses: &[Loss], full: Option<&Vec<Loss>>) -> Self {
        let windows = losses.len().max(1) as f64;
        let nats = Mean::of(&losses.iter().map(Loss::mean).collect::<Vec<_>>());
        let over_full = full.map(|full| {
            let over = losses.iter().zip(full).map(|(loss, full)| loss.mean() - full.mean());
            Mean::of(&over.collect::<Vec<_>>())
        });
        let bytes = |of: fn(&Loss) -> usize| {
            losses.iter().map(|loss| of(loss) as f64).sum::<f64>() / windows
        };
        let spare = losses.iter().map(|loss| Some(loss.bytes_spare? as f64));
        let tokens = losses.iter().map(|loss| loss.nats.len()).max().unwrap_or(0);
        let at = |token: usize| -> f64 {
            losses.iter().filter_map(|loss| loss.nats.get(token)).map(|nats| f64::from(*nats)).sum()
        };
        Self {
            policy: entry.label.clone(),
            budget: entry.budget(),
            nats,
            over_full,
            perplexity: nats.mean.exp(),
            bytes_held: bytes(|loss| loss.bytes_held),
            bytes_spare: spare.sum::<Option<f64>>().map(|spare| spare / windows),
            bytes_full: bytes(|loss| loss.bytes_full),
            by_position: (0..tokens).map(|token| at(token) / windows).collect(),
        }
    }

    fn positions(&self) -> impl Iterator<Item = CsvPosition<'_>> {
        let mut sum = 0.0;
        (1..).zip(&self.by_position).map(move |(position, nats)| {
            sum += nats;
            CsvPosition {
                policy: &self.policy,
                budget: &self.budget,
                position,
                nats: *nats,
                cumulative: sum / position as f64,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::{Budget, CacheShape, Policy};

    use super::*;

    #[test]
    fn losses_are_averaged_by_window_and_by_position() {
        let loss = |nats: [f32; 2]| Loss {
            nats: nats.to_vec(),
            bytes_held: 3072,
            bytes_spare: Some(1024),
            bytes_full: 4096,
        };
        let snapkv = Entry { label: "snapkv".into(), policy: Policy::snapkv(Budget::Tokens(64)) };
        let losses =
            [vec![loss([1.0, 2.0]), loss([3.0, 4.0])], vec![loss([1.5, 2.5]), loss([4.0, 6.0])]];
        let shape = CacheShape { layers: 8, query_heads: 8, kv_heads: 2, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        let report = PerplexityReport::new(
            Environment::new(text("MODEL"), shape, text("f32"), text("flex")),
            text("a.txt"),
            Plan { prompt: 8, tokens: 2, windows: 2, stride: None },
            1.0,
            &[Entry::full(), snapkv],
            &losses,
        );
        let [full, row] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((full.nats.mean, full.over_full.unwrap().mean), (2.5, 0.0));
        assert_eq!(row.nats.mean, 3.5);
        // Windows 0.5 and 1.5 above.
        let over = row.over_full.unwrap();
        assert_eq!((over.mean, over.error), (1.0, 0.5));
        assert_eq!(row.by_position, [2.75, 4.25]);
        assert!(report.table().contains("+1.000 ± 0.500"), "{}", report.table());
        let cells = |part: &str| report.table().replace(' ', "").contains(part);
        assert!(cells("┆2┆50%┆1"), "{}", report.table());

        let dir = tempfile::tempdir().unwrap();
        let files = report.write(dir.path()).unwrap();
        let csv = fs::read_to_string(&files[1]).unwrap();
        assert!(csv.contains("snapkv,64,2,4.25,3.5"), "{csv}");
        assert_eq!(csv.lines().count(), 1 + 4);
    }
}
