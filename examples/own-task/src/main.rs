//! A task of one's own: a ship's log in which each day has a number, of which one is asked for.
//!
//! Models and policies come from a run file, as `briquette run` reads it; the task is a type that
//! makes samples. Results are kept in a folder, where a run that was killed goes on.

use std::{collections::BTreeMap, error::Error, path::Path};

use briquette_eval::{
    Result,
    journal::Accept,
    metrics::Metric,
    run::{Plan, Planned, RunFile, Runner, Summary, begin, execute},
    tasks::{Question, Sample, Task, Turn},
};
use briquette_models::Tokenizer;
use briquette_report::table::Form;

/// The days that have a number, in the form that the embedded model was trained on.
const DAYS: [(&str, &str); 4] =
    [("monday", "4178205"), ("tuesday", "9063517"), ("friday", "2750984"), ("sunday", "6391740")];

const WATCH: &str = " The wind held from the west. The mate wrote down the depth at every bell. Nobody spoke of home.";

const RUN: &str = r#"
name = "ship's log"
budgets = ["25%"]

[[models]]
dir = "models/ember-7m"

[[policies]]
name = "snapkv"
change = ["kernel=15"]

[[policies]]
name = "leverage"
"#;

#[derive(Debug)]
struct ShipsLog;

impl Task for ShipsLog {
    fn samples(&self, tokenizer: &Tokenizer, _seed: u64) -> Result<Vec<Sample>> {
        let introduction = "\nSome special magic numbers are hidden within the following text. Make sure to memorize \
                            them. I will quiz you about the numbers afterwards.\n";
        let mut log = introduction.to_owned();
        for (day, number) in DAYS {
            log += &WATCH.repeat(4);
            log += &format!("\nOne of the special magic numbers is {day}:{number}.");
        }
        log += &WATCH.repeat(4);
        let sample = |(at, (day, number)): (usize, (&str, &str))| {
            let question = format!(
                "\nWhat is the special magic number for {day} mentioned in the provided text? The special magic number \
                 is {day}:"
            );
            let turn = Turn {
                question: tokenizer.encode(&question, false)?,
                references: vec![number.to_owned()],
                classes: Vec::new(),
                metrics: Metric::ExactMatch.into(),
                tokens: Some(tokenizer.encode(number, false)?),
                max_new_tokens: 7,
                stop: Vec::new(),
            };
            Ok(Sample {
                id: day.to_owned(),
                axes: BTreeMap::from([("day".to_owned(), at as u64)]),
                context: tokenizer.encode(&log, true)?,
                turns: vec![turn],
            })
        };
        DAYS.into_iter().enumerate().map(sample).collect()
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = RunFile::parse(RUN, "own-task".as_ref(), &repository)?;
    let task = Planned::ask("ship's log", ShipsLog, &[Question::Before, Question::After]);
    let plan = Plan::with_tasks(&file, vec![task], false)?;

    let out = Path::new("out/own-task");
    let mut results = begin(out, &file, &plan, "flex", None, Accept::default())?;
    let runner = Runner::new(&briquette::device::open("flex")?);
    execute(&plan, &mut results, &runner, |_| {})?;

    for table in briquette_report::summary(&Summary::new(&plan, &results)) {
        println!("{}", table.write(Form::Ruled(None)));
    }
    let page = briquette_report::html::write(out, None, None)?.page;
    println!("a page of it: {}", page.display());
    Ok(())
}
