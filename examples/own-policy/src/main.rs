//! A scorer of one's own, measured beside the full cache and built-in methods: on needles, and on
//! questions of one's own in `questions.jsonl`.
//!
//! Model, other policies and tasks come from a run file, as `briquette run` reads it. Results are
//! kept in `out/own-policy`, where a run that was killed goes on.

use std::{error::Error, path::Path};

use briquette::{Budget, LayerView, Policy, Result, Schedule, score::Scorer};
use briquette::{
    policy::Recent,
    score::{AttentionRequest, Pool},
};
use briquette_eval::{
    journal::Accept,
    run::{OwnPolicy, Plan, RunFile, Runner, Summary, begin, execute},
};
use briquette_report::{html, table::Form};
use burn::tensor::{DType, Tensor};

const RUN: &str = r#"
name = "own policy"
budgets = ["25%"]

[[models]]
dir = "models/ember-7m"

[[policies]]
name = "snapkv"

[[policies]]
name = "snapkv:kernel=15"

[[policies]]
name = "leverage"

[[tasks.needle]]
lengths = [512]
samples = 3
ask = ["before", "after"]

[[tasks.questions]]
file = "examples/own-policy/questions.jsonl"
# In the words that the embedded model was trained on. {text}, {word} and {answers} are fields of a line.
context = """

Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you about the numbers afterwards.
{text}"""
question = "\nWhat is the special magic number for {word} mentioned in the provided text? The special magic number is {word}:"
metric = "exact-match"
max-new-tokens = 8
ask = ["before", "after"]
"#;

/// The attention that a token receives from the last queries, times the length of its value.
#[derive(Debug)]
struct Contribution {
    /// Queries at the end of the prompt that are looked at.
    queries: usize,
    /// Tokens that a score is averaged over.
    pool: usize,
}

impl Scorer for Contribution {
    fn name(&self) -> &str {
        "contribution"
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.queries)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let moments = view.moments(self.queries, Default::default(), self.name())?;
        let attention = view.group_mean(moments.own_mean());
        let lengths = view.values()?.cast(DType::F32).square().sum_dim(3).sqrt();
        Ok(Pool::avg(self.pool).apply(attention * lengths.squeeze_dim(3)))
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = RunFile::parse(RUN, "own-policy".as_ref(), &repository)?;

    // A hidden number is seven tokens long: pooling over 15 keeps it whole.
    let scorer = Contribution { queries: 16, pool: 15 };
    let policy = Policy::custom("contribution", Budget::Ratio(0.25), scorer)
        .with_schedule(Schedule::prefill_only())
        .with_recent(Recent::Tokens(16));
    // Another version whenever the scorer's code changes: stored results are of the old one.
    let own = OwnPolicy::new("contribution", policy).with_version("1");
    let plan = Plan::with_policies(&file, &[own], Vec::new(), false)?;

    let out = Path::new("out/own-policy");
    let mut results = begin(out, &file, &plan, "flex", None, Accept::default())?;
    let runner = Runner::new(&briquette::device::open("flex")?);
    execute(&plan, &mut results, &runner, |_| {})?;

    for table in briquette_report::summary(&Summary::new(&plan, &results)) {
        println!("{}", table.write(Form::Ruled(None)));
    }
    let page = html::write(out, None, None)?.page;
    println!("a page of it: {}", page.display());
    Ok(())
}
