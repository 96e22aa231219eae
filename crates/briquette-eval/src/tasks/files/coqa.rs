//! CoQA: conversations about a text.

use std::collections::BTreeMap;

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    checked,
    choose::Source,
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut},
    published::{fill, published},
    read::Checked,
};
use crate::{
    Result,
    metrics::{Metric, Metrics},
    tasks::Samples,
};

file_task! {
    /// CoQA, the published JSON file (Reddy et al., 2019, arXiv 1808.07042).
    ///
    /// The prompt is that of lm-evaluation-harness: the story, the questions so far with their
    /// answers, and the next question. An answer is its first line, of at most 64 tokens where the
    /// harness allows 256. `samples` are conversations.
    pub struct Coqa {
        /// Which answers stand between the questions, published ones or the model's.
        #[serde(default)]
        pub history: History,
        /// `coqa-f1` (the default), `coqa-exact-match`, or a list of both.
        #[serde(default)]
        pub metric: Option<Metrics>,
    }
}

/// Source of the answers that stand between the questions of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum History {
    /// The right ones, as published. Every question is a sample of its own, behind the story and
    /// the conversation up to it.
    #[default]
    Gold,
    /// The model's own. A conversation is one sample of several turns.
    Model,
}

#[derive(Deserialize)]
struct Conversation {
    id: String,
    story: String,
    questions: Vec<Utterance>,
    answers: Vec<Utterance>,
    #[serde(default)]
    additional_answers: BTreeMap<String, Vec<Utterance>>,
}

#[derive(Deserialize)]
struct Utterance {
    input_text: String,
    turn_id: usize,
}

impl Coqa {
    fn cases(&self, metrics: &Metrics, one: &Conversation) -> Checked<Vec<Case>> {
        let protocol = &published().coqa;
        if one.questions.is_empty() {
            return Err(format!("conversation `{}` has no questions", one.id));
        }
        let all = [&one.answers].into_iter().chain(one.additional_answers.values());
        let all: Vec<Vec<&str>> =
            all.map(|answers| in_turn(answers, &one.questions)).collect::<Checked<_>>()?;
        let context = fill(&protocol.context, &[("story", &one.story)]);
        let asks = one.questions.iter().enumerate().map(|(turn, question)| {
            let question = fill(&protocol.question, &[("question", &question.input_text)]);
            let references = all.iter().map(|answers| answers[turn].to_owned()).collect();
            Ask { metrics: metrics.clone(), ..Ask::new(protocol, question, references) }
        });
        match self.history {
            History::Model => {
                let mut asks: Vec<Ask> = asks.collect();
                for ask in asks.iter_mut().skip(1) {
                    ask.question.insert_str(0, BETWEEN);
                }
                let axes = BTreeMap::new();
                Ok(vec![Case { id: one.id.clone(), axes, context, asks }])
            }
            History::Gold => {
                let mut history = String::new();
                let cases = asks.zip(&all[0]).enumerate().map(|(turn, (ask, answer))| {
                    let question = format!("{history}{}", ask.question);
                    history = format!("{question} {answer}{BETWEEN}");
                    Case {
                        id: format!("{},turn={}", one.id, turn + 1),
                        axes: BTreeMap::from([("turn".into(), turn as u64 + 1)]),
                        context: context.clone(),
                        asks: vec![Ask { question, ..ask }],
                    }
                });
                Ok(cases.collect())
            }
        }
    }
}

/// Text between an answer and the next question.
const BETWEEN: &str = "\n\n";

/// The answers to the questions, one each.
fn in_turn<'a>(answers: &'a [Utterance], questions: &[Utterance]) -> Checked<Vec<&'a str>> {
    let turns = |said: &[Utterance]| said.iter().map(|one| one.turn_id).collect::<Vec<usize>>();
    let (given, asked) = (turns(answers), turns(questions));
    if given != asked {
        return Err(format!("answers to the turns {given:?}, questions of the turns {asked:?}"));
    }
    Ok(answers.iter().map(|answer| answer.input_text.as_str()).collect())
}

impl Benchmark for Coqa {
    const NAME: &'static str = "CoQA";

    fn default_label(&self) -> String {
        "coqa".into()
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        let own = [Metric::CoqaF1, Metric::CoqaExactMatch];
        let metrics = checked(Self::NAME, self.metric.as_ref(), published().coqa.metric, &own)?;
        let source = Source { under_data: true, ..source };
        let chosen = source.choose(seed, |draw, number, one: Conversation| {
            let cases = self.cases(&metrics, &one)?;
            draw.offer(number, one.id, cases)
        })?;
        chosen.flatten().samples(|case| case.sample(tokenizer, Cut::None))
    }
}
