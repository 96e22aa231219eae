//! The tables: Briquette, PyTorch and the floor beside each other, and whole generation.

mod generation;
mod targets;

use std::fmt::Write;

use crate::record::Record;
pub use generation::generation;
use targets::{Line, Target, lines};

/// The rates from which floors are computed, measured in the same run.
#[derive(Clone, Copy, Debug)]
struct Ceilings {
    /// Bytes read and written per millisecond.
    bandwidth: Option<f64>,
    /// Operations of a matrix product per millisecond.
    matmul: Option<f64>,
}

/// Every record of one run.
#[derive(Debug)]
pub struct Run {
    records: Vec<Record>,
}

impl Run {
    /// A run with the records of both sides.
    pub fn new(records: Vec<Record>) -> Self {
        Self { records }
    }

    fn find(&self, side: &str, row: &str, variant: &str) -> Option<&Record> {
        let wanted = (side, row, variant);
        let is = |record: &&Record| {
            (record.side.as_str(), record.row.as_str(), record.variant.as_str()) == wanted
        };
        self.records.iter().find(is)
    }

    fn briquette(&self, row: &str, variant: &str) -> Option<&Record> {
        self.find("briquette", row, variant)
    }

    fn pytorch(&self, row: &str, variant: &str) -> Option<&Record> {
        self.find("pytorch", row, variant)
    }

    /// The highest rates that either side reached.
    fn ceilings(&self) -> Ceilings {
        let rate = |row: &str, work: fn(&Record) -> Option<f64>| {
            let of = |record: &Record| Some(work(record)? / record.ms?);
            let records = self.records.iter().filter(|record| record.row == row);
            records.filter_map(of).reduce(f64::max)
        };
        Ceilings {
            bandwidth: rate("copy", |record| record.bytes),
            matmul: rate("matmul", |record| record.operations),
        }
    }

    /// The table in Markdown.
    pub fn to_markdown(&self) -> String {
        let ceilings = self.ceilings();
        let mut text = String::new();
        self.heading(&mut text, ceilings);
        text.push_str(
            "| row | size | Briquette | PyTorch | ratio | floor | of the floor | target | met | Burn's own | first call | off by |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for line in &lines() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", self.line(line, ceilings));
        }
        self.failures(&mut text);
        text
    }

    fn heading(&self, text: &mut String, ceilings: Ceilings) {
        let mut seen: Vec<String> = Vec::new();
        for record in &self.records {
            let Record { side, device, versions, date, quick, .. } = record;
            let quick = if *quick { ", small sizes" } else { "" };
            let one = format!("{side}: {device}, {versions}, {date}{quick}");
            if !seen.contains(&one) && !device.is_empty() {
                seen.push(one);
            }
        }
        seen.iter().for_each(|one| {
            let _ = writeln!(text, "- {one}");
        });
        let dtype = self.records.iter().find(|record| record.row.starts_with("decode"));
        if let Some(record) = dtype {
            let _ = writeln!(text, "- queries, keys and values are {}", record.dtype);
        }
        let rate = |rate: Option<f64>, unit: &str| {
            rate.map_or("not measured".to_owned(), |rate| format!("{:.3} {unit}", rate / 1e9))
        };
        let _ = writeln!(
            text,
            "- ceilings of this run: copy {}, matrix product {}\n\n\
             Milliseconds, medians: back-to-back launches on the device's clock / replayed as a graph. The floor is the \
             larger of bytes over copy bandwidth and operations over the rate of a matrix product.\n",
            rate(ceilings.bandwidth, "TB/s"),
            rate(ceilings.matmul, "TFLOP/s"),
        );
    }

    fn line(&self, line: &Line, ceilings: Ceilings) -> String {
        let ours = self.briquette(&line.row, line.variant);
        let peers: Vec<&Record> = line
            .peers
            .iter()
            .filter_map(|&variant| self.pytorch(line.peer_row(), variant))
            .collect();
        let floor = ours.or(self.briquette(&line.row, "burn")).and_then(|r| floor(r, ceilings));
        let of_floor = ours.and_then(|ours| Some(floor? / best_time(ours)?));
        let burn = self.briquette(&line.row, "burn");
        let reference = self.briquette(&line.row, "reference");
        let results: Vec<(String, String)> = line
            .targets
            .iter()
            .map(|target| (target.text(line), self.judge(line, target, ceilings)))
            .collect();
        let join = |part: fn(&(String, String)) -> &str| {
            results.iter().map(part).collect::<Vec<_>>().join("; ")
        };
        let ratios: Vec<String> = peers
            .iter()
            .map(|peer| match ours {
                Some(ours) => ratio(ours, peer),
                None => "-".into(),
            })
            .collect();
        let of_peers: Vec<String> =
            peers.iter().map(|peer| format!("{} {}", peer.variant, times(Some(peer)))).collect();
        let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let own = match (burn, reference) {
            (Some(burn), _) if burn.ms.is_some() => times(Some(burn)),
            (_, Some(reference)) => format!("(tensor operations {})", times(Some(reference))),
            _ => "-".into(),
        };
        let cells = [
            line.row.clone(),
            ours.or(burn).map_or("-".into(), |record| record.shape.clone()),
            times(ours),
            dash(of_peers.join("<br>")),
            dash(ratios.join("<br>")),
            floor.map_or("-".into(), number),
            of_floor.map_or("-".into(), |share| format!("{:.0} %", share * 100.0)),
            dash(join(|result| &result.0)),
            dash(join(|result| &result.1)),
            own,
            ours.and_then(|ours| ours.ms_first).map_or("-".into(), number),
            ours.and_then(|ours| ours.difference)
                .map_or("-".into(), |(off, of)| format!("{off:.2e} of {of:.2e}")),
        ];
        format!("| {} |", cells.join(" | "))
    }

    /// Whether a target is met, for launches and for graphs, with the number that it is about.
    fn judge(&self, line: &Line, target: &Target, ceilings: Ceilings) -> String {
        let Some(ours) = self.briquette(&line.row, line.variant) else {
            return "not measured".into();
        };
        // Values for launches and for graphs.
        let pair = |other: Option<&Record>, value: fn(f64, f64) -> f64| {
            let of = |time: fn(&Record) -> Option<f64>| Some(value(time(ours)?, time(other?)?));
            [of(|record| record.ms), of(|record| record.ms_graph)]
        };
        let (values, limit, unit) = match *target {
            Target::OfPeer { factor, variant } => {
                let peer = self.pytorch(line.peer_row(), variant);
                (pair(peer, |a, b| a / b), Limit::Most(factor), "×")
            }
            Target::FasterThanPeer { factor, variant } => {
                let peer = self.pytorch(line.peer_row(), variant);
                (pair(peer, |a, b| b / a), Limit::Least(factor), "× faster")
            }
            Target::FasterThanBurn { factor } => {
                let burn = self.briquette(&line.row, "burn");
                // Burn's own may not be capturable: its launched time then stands for both.
                let launched = burn.and_then(|burn| burn.ms);
                let of = |ours: Option<f64>, burn: Option<f64>| Some(burn.or(launched)? / ours?);
                let values =
                    [of(ours.ms, launched), of(ours.ms_graph, burn.and_then(|burn| burn.ms_graph))];
                (values, Limit::Least(factor), "× faster")
            }
            Target::OfOwn { factor, row, variant } => {
                let own = self.briquette(row, variant);
                (pair(own, |a, b| a / b), Limit::Most(factor), "×")
            }
            Target::ShareOfCopy { share } => {
                let of = |ms: Option<f64>| Some(ours.bytes? / ms? / ceilings.bandwidth?);
                let values = [of(ours.ms), of(ours.ms_graph)];
                (values, Limit::Least(share), "of copy")
            }
            Target::Seconds { seconds } => {
                let values = [ours.ms.map(|ms| ms / 1e3), None];
                (values, Limit::Most(seconds), "s")
            }
        };
        let said: Vec<String> = values
            .iter()
            .zip(["", "graph "])
            .filter_map(|(value, by)| {
                let value = (*value)?;
                let met = if limit.holds(value) { "yes" } else { "**no**" };
                Some(format!("{by}{met} ({} {unit})", number(value)))
            })
            .collect();
        if said.is_empty() { "not measured".into() } else { said.join(" / ") }
    }

    fn failures(&self, text: &mut String) {
        let failed: Vec<String> = self
            .records
            .iter()
            .flat_map(|record| {
                let about = |what: &str, error: &String| {
                    let error = error.lines().next().unwrap_or_default();
                    let Record { side, row, variant, .. } = record;
                    format!("- {side}, {row}, {variant}: {what}{error}")
                };
                let error = record.error.as_ref().map(|error| about("", error));
                let graph = record.graph_error.as_ref().map(|error| about("no graph: ", error));
                error.into_iter().chain(graph)
            })
            .collect();
        if !failed.is_empty() {
            let _ =
                writeln!(text, "\nWhat went wrong or was not checked:\n\n{}", failed.join("\n"));
        }
    }
}

/// The bound that a number is to reach.
enum Limit {
    Most(f64),
    Least(f64),
}

impl Limit {
    fn holds(&self, value: f64) -> bool {
        match *self {
            Self::Most(limit) => value <= limit,
            Self::Least(limit) => value >= limit,
        }
    }
}

/// The shortest time that a record knows.
fn best_time(record: &Record) -> Option<f64> {
    [record.ms, record.ms_graph].into_iter().flatten().reduce(f64::min)
}

/// The least time that moving the bytes and computing the products takes.
fn floor(record: &Record, ceilings: Ceilings) -> Option<f64> {
    let moving = record.bytes.zip(ceilings.bandwidth).map(|(bytes, rate)| bytes / rate);
    let computing = record.operations.zip(ceilings.matmul).map(|(work, rate)| work / rate);
    [moving, computing].into_iter().flatten().reduce(f64::max)
}

/// Launched and replayed.
fn times(record: Option<&Record>) -> String {
    let Some(record) = record else { return "-".into() };
    match (record.ms, record.ms_graph) {
        (None, _) if record.error.is_some() => "failed".into(),
        (None, _) => "-".into(),
        (Some(ms), None) => number(ms),
        (Some(ms), Some(graph)) => format!("{}\u{a0}/\u{a0}{}", number(ms), number(graph)),
    }
}

/// Ours over theirs: launched, and replayed where both are.
fn ratio(ours: &Record, peer: &Record) -> String {
    let of = |time: fn(&Record) -> Option<f64>| Some(number(time(ours)? / time(peer)?));
    let both = [of(|record| record.ms), of(|record| record.ms_graph)];
    let both: Vec<String> = both.into_iter().flatten().collect();
    if both.is_empty() { "-".into() } else { both.join("\u{a0}/\u{a0}") }
}

/// Three digits that matter.
fn number(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.1 => 3,
        x if x >= 0.01 => 4,
        _ => 5,
    };
    format!("{x:.digits$}")
}
