use std::{fmt::Write, path::PathBuf, str::FromStr};

use anyhow::Result;
use briquette_eval::{
    journal,
    metrics::{Metric, Metrics},
    run::{ScoredRun, Summary},
    score::Scoring,
};
use briquette_report::{
    html,
    table::{Column, Sheet},
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::{
    error::Error,
    measure::measurement::tables,
    terminal::{
        output::{Shown, TableArgs, note, note_each},
        output_gate::Mark,
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette score predictions.jsonl --metric qa-f1,rouge-l
  briquette score out/run --metric contains-any --out out/rescored";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// File of predictions, or folder of a run
    ///
    /// Predictions are JSON lines, a JSON array, or a table (.csv) with a header, a record each.
    /// Of a run, or its results.jsonl, the answers are scored, and nothing is asked again.
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Metrics
    #[arg(
        long,
        visible_alias = "metrics",
        value_name = "NAME,…",
        value_delimiter = ',',
        required = true,
        value_parser = metrics()
    )]
    metric: Vec<Metric>,
    /// Field of a prediction with what was said [default: prediction]
    #[arg(long, value_name = "FIELD")]
    prediction: Option<String>,
    /// Field of a prediction with the right answers [default: answers]
    ///
    /// A text, or a list of texts.
    #[arg(long, value_name = "FIELD")]
    answers: Option<String>,
    /// Field with the labels to choose from, or the false answers, for metrics that read them
    #[arg(long, value_name = "FIELD")]
    classes: Option<String>,
    /// Leave out records, or lines of results, that cannot be used, and name them
    #[arg(long)]
    skip_damaged: bool,
    /// Folder for the results of the run with these scores, and their page
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    #[command(flatten)]
    tables: TableArgs,
}

/// Reads the name of a metric.
fn metrics() -> impl TypedValueParser<Value = Metric> {
    let names = Metric::all().iter().map(|metric| metric.name());
    PossibleValuesParser::new(names).try_map(|name| Metric::from_str(&name))
}

pub(crate) fn run(args: Args) -> Result<()> {
    let metrics = Metrics::new(&args.metric)?;
    // Of a pipe nothing may be read beforehand.
    let is_run = args.path.is_dir() || args.path.is_file() && journal::is_of(&args.path, "run")?;
    if is_run { answers(&args, &metrics) } else { predictions(args, &metrics) }
}

fn predictions(args: Args, metrics: &Metrics) -> Result<()> {
    if args.out.is_some() {
        return Err(Error::OptionOfARun { option: "--out" }.into());
    }
    args.tables.output.gate([args.path.clone()])?;
    let scoring = Scoring {
        prediction: args.prediction.unwrap_or_else(|| "prediction".into()),
        answers: args.answers.unwrap_or_else(|| "answers".into()),
        classes: args.classes,
        metrics: metrics.iter().collect(),
        skip_damaged: args.skip_damaged,
    };
    let scores = scoring.score(&args.path)?;
    note_each("left out", &scores.left_out);
    let mut sheet = Sheet::new([
        Column::left("metric"),
        Column::right("mean"),
        Column::right("95 % interval"),
        Column::right("records"),
    ]);
    for (name, estimate) in &scores.metrics {
        let interval = estimate.interval;
        let interval = interval.map_or("-".into(), |[low, high]| format!("[{low:.3}, {high:.3}]"));
        let [mean, count] = [format!("{:.3}", estimate.mean), estimate.count.to_string()];
        sheet.row([name.to_string(), mean, interval, count]);
    }
    let shown = Shown { tables: vec![sheet], ..Shown::default() };
    args.tables.write(&shown, &scores)
}

/// Scores of a run's answers, for programs.
#[derive(Serialize)]
struct Scored<'a> {
    run: &'a str,
    metrics: Vec<Metric>,
    results: Option<PathBuf>,
    without_answers: &'a [String],
    left_out: &'a [String],
    missing: usize,
    #[serde(flatten)]
    summary: Summary,
}

fn answers(args: &Args, metrics: &Metrics) -> Result<()> {
    let fields = [
        ("--prediction", &args.prediction),
        ("--answers", &args.answers),
        ("--classes", &args.classes),
    ];
    if let Some((option, _)) = fields.into_iter().find(|(_, field)| field.is_some()) {
        return Err(Error::OptionOfPredictions { option }.into());
    }
    let mut gate = args.tables.output.gate([args.path.clone()])?;
    if let Some(out) = &args.out {
        let results = out.join("results.jsonl");
        if !args.tables.output.overwrites() && journal::is_of(&results, "run")? {
            return Err(Error::ResultsThere { path: results }.into());
        }
        gate.new_file(&results, Mark::Never)?;
        gate.new_file(&out.join("plan.jsonl"), Mark::Never)?;
        gate.report(out, None)?;
    }
    let scored = ScoredRun::read(&args.path, metrics, args.skip_damaged)?;
    note_each("left out as damaged", scored.damaged());
    for task in scored.without_answers() {
        note(&format!("left out: `{task}` asks nothing, so it has no answers"));
    }
    if scored.missing() > 0 {
        note(&format!("{} units of the run have no result yet", scored.missing()));
    }
    let results = args.out.as_ref().map(|out| scored.write(out)).transpose()?;
    let page = args.out.as_ref().map(|out| html::write(out, None, None)).transpose()?;
    let json = Scored {
        run: scored.name(),
        metrics: metrics.iter().collect(),
        results,
        without_answers: scored.without_answers(),
        left_out: scored.damaged(),
        missing: scored.missing(),
        summary: scored.summary(),
    };
    let mut shown = tables(&json.summary)?;
    writeln!(shown.behind, "scored by {metrics}; nothing was asked again")?;
    if let Some(page) = page {
        note_each("warning", &page.warnings);
        writeln!(shown.behind, "a page of it all: {}", page.page.display())?;
    }
    args.tables.write(&shown, &json)
}
