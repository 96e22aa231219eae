use serde::Serialize;

use crate::{
    grid::{Answer, Question},
    stats::Proportion,
};

/// Answers of one policy taken together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// With the question in the prompt that is compressed.
    pub before: Accuracy,
    /// With the question after compression.
    pub after: Accuracy,
    /// Bytes of cache held for a prompt, the mean over all answers, with the room for tokens to
    /// come.
    pub bytes_held: f64,
    /// Those of them that are free; `None` if an answer of an older version does not tell.
    pub bytes_spare: Option<f64>,
    /// Bytes that full caches would hold, the mean over all answers.
    pub bytes_full: f64,
}

/// How many answers were right.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// Answers right in every token.
    pub exact: Proportion,
    /// Right tokens. The tokens of one answer stand or fall together, so for the interval an answer
    /// is one trial, not as many as it has tokens.
    pub per_token: Proportion,
}

impl Accuracy {
    fn of<'a>(answers: impl Iterator<Item = &'a Answer> + Clone) -> Self {
        let trials = answers.clone().count();
        let exact = answers.clone().filter(|answer| answer.exact).count();
        let tokens: f64 =
            answers.map(|answer| answer.right as f64 / answer.tokens.max(1) as f64).sum();
        Self {
            exact: Proportion::wilson(exact as f64, trials),
            per_token: Proportion::wilson(tokens, trials),
        }
    }
}

impl Summary {
    pub(crate) fn of(answers: &[&Answer]) -> Self {
        let when =
            |question| answers.iter().copied().filter(move |answer| answer.question == question);
        let mean = |bytes: fn(&Answer) -> usize| {
            answers.iter().map(|answer| bytes(answer) as f64).sum::<f64>()
                / answers.len().max(1) as f64
        };
        let spare = answers.iter().map(|answer| Some(answer.bytes_spare? as f64));
        let spare = spare.sum::<Option<f64>>();
        Self {
            before: Accuracy::of(when(Question::Before)),
            after: Accuracy::of(when(Question::After)),
            bytes_held: mean(|answer| answer.bytes_held),
            bytes_spare: spare.map(|spare| spare / answers.len().max(1) as f64),
            bytes_full: mean(|answer| answer.bytes_full),
        }
    }
}

/// Sums up the answers that `key` puts together, in the order the keys first appear.
pub fn summarize<K: PartialEq>(
    answers: &[Answer],
    key: impl Fn(&Answer) -> K,
) -> Vec<(K, Summary)> {
    let mut groups: Vec<(K, Vec<&Answer>)> = Vec::new();
    for answer in answers {
        let key = key(answer);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(answer),
            None => groups.push((key, vec![answer])),
        }
    }
    groups.into_iter().map(|(key, group)| (key, Summary::of(&group))).collect()
}
