use std::{fmt::Write, path::PathBuf, str::FromStr};

use anyhow::Result;
use briquette_eval::{metrics::Metric, score::Scoring};
use briquette_report::table;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::terminal::output::{OutputArgs, note, table_width};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The predictions, a record each: JSON lines, a JSON array, or a table (.csv) with a header
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How they are scored
    #[arg(
        long,
        visible_alias = "metrics",
        value_name = "NAME,…",
        value_delimiter = ',',
        required = true,
        value_parser = metrics()
    )]
    metric: Vec<Metric>,
    /// The field with what was said
    #[arg(long, value_name = "FIELD", default_value = "prediction")]
    prediction: String,
    /// The field with the right answers: a text, or a list of them
    #[arg(long, value_name = "FIELD", default_value = "answers")]
    answers: String,
    /// The field with the labels to choose from, or the false answers, for metrics that read them
    #[arg(long, value_name = "FIELD")]
    classes: Option<String>,
    /// Leave out records that cannot be used, and name them
    #[arg(long)]
    skip_damaged: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Reads the name of a metric.
fn metrics() -> impl TypedValueParser<Value = Metric> {
    let names = Metric::all().iter().map(|metric| metric.name());
    PossibleValuesParser::new(names).try_map(|name| Metric::from_str(&name))
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.output.gate([args.file.clone()])?;
    let Args { file, metric, prediction, answers, classes, skip_damaged, output } = args;
    let scoring = Scoring { prediction, answers, classes, metrics: metric, skip_damaged };
    let scores = scoring.score(&file)?;
    for left_out in &scores.left_out {
        note(&format!("left out: {left_out}"));
    }
    let mut table = table::new(table_width());
    table.set_header(["metric", "mean", "95 % interval", "records"]);
    for (name, estimate) in &scores.metrics {
        let interval = estimate
            .interval
            .map_or_else(|| "-".into(), |[low, high]| format!("[{low:.3}, {high:.3}]"));
        table.add_row([
            table::left(name),
            table::right(format!("{:.3}", estimate.mean)),
            table::right(interval),
            table::right(estimate.count),
        ]);
    }
    let mut human = String::new();
    writeln!(human, "{table}")?;
    output.write(&human, &scores)
}
