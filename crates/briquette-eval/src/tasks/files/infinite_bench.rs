//! InfiniteBench: retrieval, books, dialogue, mathematics and code beyond 100 000 tokens.

use std::sync::LazyLock;

use briquette_models::Tokenizer;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{
    choose::Source,
    file_task::{Benchmark, file_task},
    named_by,
    prompt::{Ask, Case, Cut, check_length},
    published::{Protocol, fill, protocol, published},
    read::Checked,
};
use crate::{Result, tasks::Samples};

file_task! {
    /// InfiniteBench, a JSONL file a task (Zhang et al., 2024, arXiv 2402.13718).
    ///
    /// Prompts are the ones it gives open models (`yarn_mistral_templates` of its `prompt.py`),
    /// lengths of answers those of `eval_utils.py`, scores those of `compute_scores.py`. A prompt
    /// longer than `length` loses its middle, as in `eval_yarn_mistral.py`.
    pub struct InfiniteBench {
        /// The task, as `passkey` or `longbook_qa_eng`; the name of the file or of its folder if
        /// absent.
        #[serde(default)]
        pub dataset: Option<String>,
        /// Tokens a prompt may have; all if absent.
        #[serde(default)]
        pub length: Option<usize>,
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "content")]
    context: String,
    #[serde(default)]
    input: String,
    answer: Value,
    #[serde(default)]
    options: Vec<String>,
}

/// The call whose value Code.Run asks for. The pattern is right, a test uses it.
static CALL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(func_[0-9]+)\(-?[0-9]+\)").expect("a pattern"));

/// The number Math.Find asks for, in the words of its question.
static TARGET: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(The .+) of").expect("a pattern"));

impl InfiniteBench {
    fn dataset(&self) -> String {
        let known = |name: &str| published().infinite_bench.contains_key(name);
        self.dataset.clone().unwrap_or_else(|| named_by(&self.file, known))
    }
}

fn case(dataset: &str, protocol: &Protocol, number: usize, line: &Line) -> Checked<Case> {
    let mut references = texts(&line.answer)?;
    if references.is_empty() {
        return Err("`answer` is empty".into());
    }
    let mut fields = vec![("context", line.context.as_str()), ("input", line.input.as_str())];
    let prefix;
    match dataset {
        "code_run" => {
            let found =
                CALL.captures(&line.input).and_then(|call| Some((call.get(0)?, call.get(1)?)));
            let (call, name) =
                found.ok_or_else(|| format!("no call of a function in `{}`", line.input))?;
            fields.extend([("func_call", call.as_str()), ("func", name.as_str())]);
        }
        "code_debug" | "longbook_choice_eng" => {
            let [a, b, c, d] = line.options.as_slice() else {
                return Err(format!("{} options, 4 are needed", line.options.len()));
            };
            fields.extend([("a", a.as_str()), ("b", b), ("c", c), ("d", d)]);
            references = with_letter(references, &line.options)?;
        }
        "math_find" => {
            let found = TARGET.captures(&line.input).and_then(|target| target.get(1));
            let target = found.ok_or_else(|| format!("no number asked for in `{}`", line.input))?;
            prefix = format!("What is {} in the following list?", target.as_str().to_lowercase());
            fields.push(("prefix", &prefix));
        }
        _ => {}
    }
    let ask = Ask::new(protocol, fill(&protocol.question, &fields), references);
    Ok(Case::of_record(number, fill(&protocol.context, &fields), ask))
}

/// An answer, a list of them, or a list with one list of them.
fn texts(answer: &Value) -> Checked<Vec<String>> {
    match answer {
        Value::Array(answers) => match answers.as_slice() {
            [Value::Array(answers)] => answers.iter().map(text).collect(),
            answers => answers.iter().map(text).collect(),
        },
        one => Ok(vec![text(one)?]),
    }
}

fn text(value: &Value) -> Checked<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("`{value}` is neither text nor a number")),
    }
}

/// The right option, and its letter.
fn with_letter(mut references: Vec<String>, options: &[String]) -> Checked<Vec<String>> {
    const LETTERS: [&str; 4] = ["A", "B", "C", "D"];
    match references.as_slice() {
        [answer] => {
            let at = options.iter().position(|option| option == answer);
            let letter = at.and_then(|at| LETTERS.get(at));
            let letter = letter.ok_or_else(|| format!("the answer `{answer}` is no option"))?;
            references.push((*letter).to_owned());
        }
        [_, letter] if LETTERS.contains(&letter.as_str()) => {}
        _ => return Err("`answer` is neither an option nor one with its letter".into()),
    }
    Ok(references)
}

impl Benchmark for InfiniteBench {
    const NAME: &'static str = "InfiniteBench";

    fn default_label(&self) -> String {
        format!("infinite-bench-{}", self.dataset())
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(Self::NAME, self.length)?;
        let dataset = self.dataset();
        let protocol = protocol(Self::NAME, &published().infinite_bench, &dataset)?;
        let chosen = source.choose(seed, |draw, number, line| {
            draw.offer_case(number, case(&dataset, protocol, number, &line)?)
        })?;
        let cut = self.length.map_or(Cut::None, |length| Cut::Middle { length, end: length / 2 });
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
