use std::path::{Path, PathBuf};

use briquette_eval::{
    environment::Environment,
    mask::{Cell, Choice},
    stats::Proportion,
};
use serde::Serialize;

use super::{
    files::{create_dir, write_csv, write_json},
    plot::{self, Drawing, Key, Line, LineChart, LinePoint, MarkedAxis, Style, XAxis, YAxis},
    plural,
    table::{self, Column, Sheet},
};
use crate::Result;

/// The result of a masking test.
#[derive(Clone, Debug, Serialize)]
pub struct MaskReport {
    /// Program, model and device.
    #[serde(flatten)]
    pub environment: Environment,
    /// How the profile was made.
    pub profile: String,
    /// `built-in`, or the folder of the haystack.
    pub haystack: String,
    /// Tokens of a prompt and its answer.
    pub length: usize,
    /// Depths in percent.
    pub depths: Vec<u32>,
    /// Prompts of each depth.
    pub samples: usize,
    /// Seed of the prompts and of the random heads.
    pub seed: u64,
    /// Seconds it ran, without loading the model.
    pub seconds: f64,
    /// One for each choice and number of heads.
    pub cells: Vec<Cell>,
}

#[derive(Serialize)]
struct CsvCell {
    choice: &'static str,
    masked: usize,
    prompts: usize,
    exact: f64,
    exact_low: f64,
    exact_high: f64,
    per_token: f64,
    per_token_low: f64,
    per_token_high: f64,
}

impl MaskReport {
    /// The table for people.
    pub fn table(&self) -> Sheet {
        let mut sheet = Sheet::new([
            Column::left("heads by"),
            Column::right("masked"),
            Column::interval("exact"),
            Column::interval("per token"),
        ])
        .with_intervals("Brackets are 95 % Wilson intervals");
        let interval = |of: &Proportion| table::interval(of.rate, Some([of.low, of.high]), 2);
        for Cell { choice, masked, exact, per_token, .. } in &self.cells {
            sheet.row([choice.name().into(), masked.into(), interval(exact), interval(per_token)]);
        }
        sheet
    }

    /// Writes `mask-heads.json`, `mask-heads.csv` and the picture `mask-heads` as SVG and PNG.
    /// Returns the files.
    ///
    /// # Errors
    /// [`Error::Write`](briquette_eval::Error::Write).
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        create_dir(dir)?;
        let (json, csv) = (dir.join("mask-heads.json"), dir.join("mask-heads.csv"));
        write_json(&json, self)?;
        write_csv(&csv, self.cells.iter().map(CsvCell::new))?;
        let mut files = vec![json, csv];
        files.extend(plot::save(&self.picture(), dir, "mask-heads")?);
        Ok(files)
    }

    /// Exact answers and right tokens against the heads silenced, a line a criterion.
    fn picture(&self) -> Drawing {
        let mut counts: Vec<usize> = Vec::new();
        for cell in &self.cells {
            if !counts.contains(&cell.masked) {
                counts.push(cell.masked);
            }
        }
        let mark = |(place, count): (usize, &usize)| (place as f64, count.to_string());
        let marks: Vec<(f64, String)> = counts.iter().enumerate().map(mark).collect();
        let style = |choice: Choice| {
            Style::Series(Choice::ALL.iter().position(|other| *other == choice).unwrap_or(0))
        };
        let line = |choice: Choice, share: fn(&Cell) -> Proportion| {
            let point = |cell: &Cell| {
                let place = counts.iter().position(|count| *count == cell.masked)?;
                let Proportion { rate, low, high, .. } = share(cell);
                let tip = format!("{}, {} silenced: {rate:.2}", choice.name(), cell.masked);
                Some(LinePoint { x: place as f64, y: rate, interval: Some([low, high]), tip })
            };
            let cells = self.cells.iter().filter(|cell| cell.choice == choice);
            Line {
                name: choice.name().into(),
                style: style(choice),
                points: cells.filter_map(point).collect(),
                marked: true,
                across: false,
            }
        };
        let chart = |title: &str, share: fn(&Cell) -> Proportion| LineChart {
            title: title.into(),
            x: XAxis::Marked(MarkedAxis { label: "heads silenced".into(), marks: marks.clone() }),
            y: YAxis { label: "share".into(), holds: vec![0.0, 1.0] },
            series: Choice::ALL.map(|choice| line(choice, share)).to_vec(),
        };
        let charts = [
            chart("exact answers", |cell| cell.exact).drawing(),
            chart("right tokens", |cell| cell.per_token).drawing(),
        ];
        let key = |choice: Choice| Key { name: choice.name().into(), style: style(choice) };
        let prompts = self.cells.first().map_or(0, |cell| cell.exact.trials);
        let title = format!(
            "Needle with heads silenced: {} tokens, full cache, {} a point, 95 % Wilson intervals",
            self.length,
            plural(prompts, "prompt")
        );
        Drawing::sheet(&title, &Choice::ALL.map(key), None, &charts, charts.len())
    }
}

impl CsvCell {
    fn new(cell: &Cell) -> Self {
        let Cell { choice, masked, exact, per_token, .. } = cell;
        let ends = |share: &Proportion| (share.rate, share.low, share.high);
        let (exact, exact_low, exact_high) = ends(exact);
        let (per_token, per_token_low, per_token_high) = ends(per_token);
        Self {
            choice: choice.name(),
            masked: *masked,
            prompts: cell.exact.trials,
            exact,
            exact_low,
            exact_high,
            per_token,
            per_token_low,
            per_token_high,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::CacheShape;

    use super::*;
    use crate::table::Form;

    #[test]
    fn writes_every_file() {
        let shape = CacheShape { layers: 8, query_heads: 8, kv_heads: 2, head_dim: 32 };
        let text = |text: &str| text.to_owned();
        let mut cells = Vec::new();
        for (i, choice) in Choice::ALL.into_iter().enumerate() {
            for masked in [0, 1, 2, 4, 8, 16] {
                let exact = 20.0 - (masked * (4 - i)) as f64 / 3.2;
                cells.push(Cell {
                    choice,
                    masked,
                    heads: Vec::new(),
                    exact: Proportion::wilson(exact, 20),
                    per_token: Proportion::wilson(exact.max(4.0), 20),
                });
            }
        }
        let report = MaskReport {
            environment: Environment::new(text("MODEL"), shape, text("f32"), text("flex")),
            profile: text("by hand"),
            haystack: text("built-in"),
            length: 512,
            depths: vec![0, 50, 100],
            samples: 4,
            seed: 0,
            seconds: 1.0,
            cells,
        };
        let dir = tempfile::tempdir().unwrap();
        // To look at them.
        let kept = std::env::var_os("BRIQUETTE_PICTURES").map(PathBuf::from);
        let files = report.write(kept.as_deref().unwrap_or(dir.path())).unwrap();
        assert_eq!(files.len(), 4);
        for file in &files {
            assert!(fs::metadata(file).unwrap().len() > 500, "{file:?}");
        }
        let csv = fs::read_to_string(&files[1]).unwrap();
        assert_eq!(csv.lines().count(), 1 + 4 * 6);
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
        assert_eq!(json["cells"][7]["choice"], "copy-paste");
        assert_eq!(json["device"], "flex");
        let table = report.table().write(Form::Ruled(None));
        assert_eq!(table.lines().count(), 4 + 4 * 6, "{table}");
    }
}
