use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    Environment,
    files::{create_dir, write_csv, write_json},
    plain_name::plain_name,
    plot::{self, LinePanel, Lines},
    table,
};
use crate::{
    Result,
    fidelity::{Measured, Plan},
    stats::Mean,
};

/// How far a model on compressed caches is from itself on the full one, by policy and budget.
#[derive(Clone, Debug, Serialize)]
pub struct FidelityReport {
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
    pub rows: Vec<FidelityRow>,
}

/// A policy at a budget.
#[derive(Clone, Debug, Serialize)]
pub struct FidelityRow {
    /// Label of the policy.
    pub policy: String,
    /// Budget as text.
    pub budget: String,
    /// The result, or why there is none.
    pub found: std::result::Result<FidelitySummary, String>,
}

/// The result of a policy over all windows. Errors are standard errors over windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FidelitySummary {
    /// Output error of each layer, each on what the full run gave it.
    pub output_error: Vec<Mean>,
    /// Output error of each layer in the run on the compressed cache.
    pub end_to_end_error: Vec<Mean>,
    /// KL(full ‖ compressed), in nats a token.
    pub kl: Mean,
    /// Share of the tokens after which the most likely token is the same.
    pub agreement: Mean,
    /// Overlap with the oracle, the mean over heads that drop something; absent if none does.
    pub overlap: Option<Mean>,
    /// Tokens each head held at the end of the prompt, `[layer][kv_head]`, the mean over windows.
    pub kept: Vec<Vec<f64>>,
    /// Bytes held at the end of the prompt, the mean, with the room for tokens to come.
    pub bytes_held: f64,
    /// Those of them that are free; `None` if a window of an older version does not tell.
    pub bytes_spare: Option<f64>,
    /// Bytes that the full cache held there.
    pub bytes_full: f64,
    /// Bytes held behind the last continued token, the mean.
    pub bytes_held_at_end: f64,
}

#[derive(Serialize)]
struct CsvLayer<'a> {
    policy: &'a str,
    budget: &'a str,
    /// The first is 0.
    layer: usize,
    output_error: f64,
    output_error_se: f64,
    end_to_end_error: f64,
    end_to_end_error_se: f64,
    kl: f64,
    kl_se: f64,
    agreement: f64,
    overlap: Option<f64>,
    bytes_held: f64,
    bytes_full: f64,
}

impl FidelitySummary {
    /// Sums up one measurement a window. 0 where there is none.
    pub fn of(windows: &[Measured]) -> Self {
        let mean =
            |of: &dyn Fn(&Measured) -> f64| Mean::of(&windows.iter().map(of).collect::<Vec<_>>());
        let layers = windows.first().map_or(0, |first| first.output_error.len());
        let by_layer = |of: fn(&Measured) -> &Vec<f64>| -> Vec<Mean> {
            (0..layers).map(|layer| mean(&|one| of(one)[layer])).collect()
        };
        let overlaps: Vec<f64> = windows.iter().filter_map(Measured::mean_overlap).collect();
        let kept = windows.first().map_or(&[][..], |first| &first.kept);
        let kept = kept.iter().enumerate().map(|(layer, heads)| {
            let of_head =
                |head: usize| mean(&|one: &Measured| one.kept[layer][head].len() as f64).mean;
            (0..heads.len()).map(of_head).collect()
        });
        let spare = windows.iter().map(|one| Some(one.cache_after_prompt.spare? as f64));
        let spare = spare.sum::<Option<f64>>();
        Self {
            output_error: by_layer(|one| &one.output_error),
            end_to_end_error: by_layer(|one| &one.end_to_end_error),
            kl: mean(&Measured::mean_kl),
            agreement: mean(&|one| one.agreement),
            overlap: (!overlaps.is_empty()).then(|| Mean::of(&overlaps)),
            kept: kept.collect(),
            bytes_held: mean(&|one| one.cache_after_prompt.bytes as f64).mean,
            bytes_spare: spare.map(|spare| spare / windows.len().max(1) as f64),
            bytes_full: mean(&|one| one.cache_after_prompt.full as f64).mean,
            bytes_held_at_end: mean(&|one| one.cache.bytes as f64).mean,
        }
    }

    /// The output error, the mean over the layers.
    pub fn mean_error(&self) -> f64 {
        let sum: f64 = self.output_error.iter().map(|error| error.mean).sum();
        sum / self.output_error.len().max(1) as f64
    }

    /// The layer with the highest output error, and the error.
    pub fn worst_layer(&self) -> (usize, f64) {
        let layers = self.output_error.iter().map(|error| error.mean).enumerate();
        layers.fold((0, 0.0), |worst, layer| if layer.1 > worst.1 { layer } else { worst })
    }
}

impl FidelityReport {
    /// The table for people, and below it why some have no row.
    pub fn table(&self) -> String {
        let mut table = table::new();
        let header = [
            "policy",
            "budget",
            "output error\nmean",
            "\nworst layer",
            "KL\nnats a token",
            "same\ntoken",
            "overlap with\nthe oracle",
        ];
        table.set_header(header.into_iter().chain(table::MEMORY));
        let mut missing = String::new();
        for row in &self.rows {
            let found = match &row.found {
                Ok(found) => found,
                Err(reason) => {
                    missing += &format!("\n{} {}: {reason}", row.policy, row.budget);
                    continue;
                }
            };
            let (layer, worst) = found.worst_layer();
            let overlap =
                found.overlap.map_or("-".into(), |overlap| format!("{:.2}", overlap.mean));
            let memory = table::memory(found.bytes_held, found.bytes_spare, found.bytes_full);
            let cells = [
                table::left(&row.policy),
                table::right(&row.budget),
                table::right(format!("{:.3}", found.mean_error())),
                table::right(format!("{worst:.3} (layer {layer})")),
                table::right(format!("{:.4} ± {:.4}", found.kl.mean, found.kl.error)),
                table::right(format!("{:.0} %", 100.0 * found.agreement.mean)),
                table::right(overlap),
            ];
            table.add_row(cells.into_iter().chain(memory));
        }
        table.to_string() + &missing
    }

    /// Writes `fidelity.json` (a row a policy and budget), `fidelity.csv` (a row a policy, budget
    /// and layer), and the output error by layer as `fidelity-layers.svg` and `.png`. Returns the
    /// files.
    ///
    /// # Errors
    /// [`Error::Write`](crate::Error::Write).
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        create_dir(dir)?;
        let (json, csv) = (dir.join("fidelity.json"), dir.join("fidelity.csv"));
        write_json(&json, self)?;
        write_csv(&csv, self.rows.iter().flat_map(FidelityRow::layers))?;
        let mut files = vec![json, csv];
        if self.rows.iter().any(|row| row.found.is_ok()) {
            files.extend(plot::save(&self.picture(), dir, "fidelity-layers")?);
        }
        Ok(files)
    }

    /// A panel a budget, a line a policy.
    fn picture(&self) -> Lines {
        let distinct = |of: fn(&FidelityRow) -> &String| {
            let mut names: Vec<&String> = Vec::new();
            for row in self.rows.iter().filter(|row| row.found.is_ok()) {
                if !names.contains(&of(row)) {
                    names.push(of(row));
                }
            }
            names
        };
        let (series, budgets) = (distinct(|row| &row.policy), distinct(|row| &row.budget));
        let errors = |policy: &String, budget: &String| {
            let row =
                self.rows.iter().find(|row| &row.policy == policy && &row.budget == budget)?;
            let found = row.found.as_ref().ok()?;
            Some(found.output_error.iter().map(|error| error.mean).collect::<Vec<f64>>())
        };
        let panel = |budget: &&String| LinePanel {
            heading: if *budget == "-" { "no budget".into() } else { format!("budget {budget}") },
            values: series.iter().map(|policy| errors(policy, budget)).collect(),
        };
        let Plan { prompt, tokens, windows, .. } = self.plan;
        Lines {
            title: "Error of each layer's attention output".into(),
            subtitle: format!(
                "{}: {windows} prompts of {prompt} tokens, {tokens} fed behind each; {}",
                plain_name(&self.text),
                plain_name(&self.environment.model)
            ),
            measure: "output error".into(),
            axis: "layer".into(),
            places: (0..self.environment.cache_shape.layers).map(|i| i.to_string()).collect(),
            series: series.iter().map(|name| (*name).clone()).collect(),
            panels: budgets.iter().map(panel).collect(),
        }
    }
}

impl FidelityRow {
    fn layers(&self) -> Vec<CsvLayer<'_>> {
        let Ok(found) = &self.found else { return Vec::new() };
        let layers = found.output_error.iter().zip(&found.end_to_end_error).enumerate();
        let line = |(layer, (error, end_to_end)): (usize, (&Mean, &Mean))| CsvLayer {
            policy: &self.policy,
            budget: &self.budget,
            layer,
            output_error: error.mean,
            output_error_se: error.error,
            end_to_end_error: end_to_end.mean,
            end_to_end_error_se: end_to_end.error,
            kl: found.kl.mean,
            kl_se: found.kl.error,
            agreement: found.agreement.mean,
            overlap: found.overlap.map(|overlap| overlap.mean),
            bytes_held: found.bytes_held,
            bytes_full: found.bytes_full,
        };
        layers.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::CacheShape;

    use super::*;
    use crate::record::CacheBytes;

    fn measured(kl: [f32; 2], error: [f64; 2], kept: [usize; 2]) -> Measured {
        let heads = |count: usize| vec![(0..count).collect::<Vec<usize>>()];
        Measured {
            prompt: 4,
            output_error: error.to_vec(),
            end_to_end_error: error.map(|error| 2.0 * error).to_vec(),
            kl: kl.to_vec(),
            agreement: 0.5,
            overlap: vec![vec![0.5], vec![1.0]],
            kept: kept.map(heads).to_vec(),
            cache_after_prompt: CacheBytes { bytes: 1024, spare: Some(256), full: 4096 },
            cache: CacheBytes { bytes: 2048, spare: Some(0), full: 4608 },
        }
    }

    fn report() -> FidelityReport {
        let shape = CacheShape { layers: 2, query_heads: 2, kv_heads: 1, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        let windows =
            [measured([0.25, 0.75], [0.1, 0.3], [2, 4]), measured([1.0, 2.0], [0.2, 0.5], [3, 4])];
        let row = |policy: &str, budget: &str, found| FidelityRow {
            policy: text(policy),
            budget: text(budget),
            found,
        };
        let found = FidelitySummary::of(&windows);
        FidelityReport {
            environment: Environment::new(text("MODEL"), shape, text("f32"), text("flex")),
            text: text("a.txt"),
            plan: Plan { prompt: 4, tokens: 2, windows: 2, stride: None },
            seconds: 1.0,
            rows: vec![
                row("snapkv", "64", Ok(found.clone())),
                row("h2o", "64", Ok(FidelitySummary::of(&windows[..1]))),
                row("snapkv", "16", Err(text("too few"))),
                row("kivi", "-", Ok(found)),
            ],
        }
    }

    #[test]
    fn windows_are_averaged() {
        let report = report();
        let found = report.rows[0].found.as_ref().unwrap();
        assert_eq!((found.kl.mean, found.kl.error, found.kl.count), (1.0, 0.5, 2));
        let errors: Vec<f64> = found.output_error.iter().map(|error| error.mean).collect();
        assert!((errors[0] - 0.15).abs() < 1e-12 && (errors[1] - 0.4).abs() < 1e-12, "{errors:?}");
        assert!((found.mean_error() - 0.275).abs() < 1e-12);
        assert_eq!(found.worst_layer().0, 1);
        // The head that keeps all four tokens does not count.
        assert_eq!(found.overlap.unwrap().mean, 0.5);
        assert_eq!(found.kept, [[2.5], [4.0]]);
        assert_eq!((found.bytes_held, found.bytes_full), (1024.0, 4096.0));
        assert_eq!(found.bytes_spare, Some(256.0));

        let table = report.table();
        for part in ["1.0000 ± 0.5000", "0.400 (layer 1)", "19 %", "snapkv 16: too few"] {
            assert!(table.contains(part), "{part}\n{table}");
        }
    }

    #[test]
    fn every_file_is_written() {
        let dir = tempfile::tempdir().unwrap();
        // `BRIQUETTE_PICTURES=DIR cargo test` keeps them for the eye.
        let kept = std::env::var_os("BRIQUETTE_PICTURES").map(PathBuf::from);
        let files = report().write(kept.as_deref().unwrap_or(dir.path())).unwrap();
        assert_eq!(files.len(), 4);
        let csv = fs::read_to_string(&files[1]).unwrap();
        assert_eq!(csv.lines().count(), 1 + 3 * 2, "{csv}");
        assert!(csv.contains("snapkv,64,1,0.4,"), "{csv}");
        let svg = fs::read_to_string(&files[2]).unwrap();
        for part in ["budget 64", "no budget", "snapkv", "kivi", "layer"] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(fs::read(&files[3]).unwrap().starts_with(b"\x89PNG"));
    }
}
