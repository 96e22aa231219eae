//! Prompts in text, and in tokens that fit.

use std::collections::BTreeMap;

use briquette_models::Tokenizer;

use super::{published::Protocol, read::Checked};
use crate::{
    Error, Result,
    metrics::Metrics,
    tasks::{Sample, Turn},
};

/// A sample in text.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) id: String,
    pub(super) axes: BTreeMap<String, u64>,
    /// Text before the first question.
    pub(super) context: String,
    pub(super) asks: Vec<Ask>,
}

/// A question with its answers, in text.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) question: String,
    pub(super) references: Vec<String>,
    pub(super) classes: Vec<String>,
    pub(super) metrics: Metrics,
    pub(super) max_new_tokens: usize,
    pub(super) stop: Vec<String>,
}

impl Ask {
    /// A question asked and scored as published.
    pub(super) fn new(protocol: &Protocol, question: String, references: Vec<String>) -> Self {
        Self {
            question,
            references,
            classes: Vec::new(),
            metrics: protocol.metric.into(),
            max_new_tokens: protocol.max_new_tokens,
            stop: protocol.stop.clone(),
        }
    }
}

/// How a prompt is brought to a length.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cut<'a> {
    /// Not at all.
    None,
    /// Its middle is left out: half of `length` tokens stay at the start, `end` tokens at the end.
    Middle { length: usize, end: usize },
    /// The end of the context is left out, and this text stands there.
    Context { task: &'static str, length: usize, separator: &'a str },
}

impl Case {
    /// One question about the record of this number, which has no name.
    pub(super) fn of_record(number: usize, context: String, ask: Ask) -> Self {
        let id = format!("record={number}");
        Self { id, axes: BTreeMap::new(), context, asks: vec![ask] }
    }

    /// The sample in tokens. Context and questions are tokenized one by one, so a token never spans
    /// two of them; the context is opened by the token that begins a text.
    pub(super) fn sample(self, tokenizer: &Tokenizer, cut: Cut<'_>) -> Result<Sample> {
        let mut context = tokenizer.encode(&self.context, true)?;
        let turn = |ask: Ask| {
            Ok(Turn {
                question: tokenizer.encode(&ask.question, false)?,
                references: ask.references,
                classes: ask.classes,
                metrics: ask.metrics,
                tokens: None,
                max_new_tokens: ask.max_new_tokens,
                stop: ask.stop,
            })
        };
        let mut turns = self.asks.into_iter().map(turn).collect::<Result<Vec<Turn>>>()?;
        if let Some(first) = turns.first_mut() {
            match cut {
                Cut::None => {}
                Cut::Middle { length, end } => {
                    if context.len() + first.question.len() > length {
                        cut_middle(&mut context, &mut first.question, length / 2, end);
                    }
                }
                Cut::Context { task, length, separator } => {
                    let separator = tokenizer.encode(separator, false)?;
                    cut_context(&mut context, &first.question, &separator, length)
                        .map_err(|reason| refused(task, format!("sample {}: {reason}", self.id)))?;
                }
            }
        }
        let mut axes = self.axes;
        let first = turns.first().map_or(0, |turn| turn.question.len());
        axes.insert("tokens".into(), (context.len() + first) as u64);
        Ok(Sample { id: self.id, axes, context, turns })
    }
}

/// Refuses a length without room for anything.
pub(super) fn check_length(task: &'static str, length: Option<usize>) -> Result<()> {
    match length {
        Some(length @ 0..=1) => Err(refused(task, format!("{length} tokens hold no prompt"))),
        _ => Ok(()),
    }
}

fn refused(task: &'static str, reason: String) -> Error {
    Error::TaskParameter { task, parameter: "length", reason }
}

/// Leaves out what lies between the first `start` and the last `end` tokens of context and question
/// together, if they have more.
fn cut_middle(context: &mut Vec<u32>, question: &mut Vec<u32>, start: usize, end: usize) {
    let split = context.len();
    let resume = match (split + question.len()).checked_sub(end) {
        Some(resume) if resume > start => resume,
        _ => return,
    };
    // What lies beyond the context is of the question.
    context.drain(start.min(split)..resume.min(split));
    question.drain(start.saturating_sub(split)..resume.saturating_sub(split));
}

/// Leaves out the end of the context, and puts the separator there, if context and question have
/// more tokens than `length`.
fn cut_context(
    context: &mut Vec<u32>,
    question: &[u32],
    separator: &[u32],
    length: usize,
) -> Checked<()> {
    if context.len() + question.len() <= length {
        return Ok(());
    }
    let fixed = separator.len() + question.len();
    let room = length.checked_sub(fixed).filter(|room| *room > 0).ok_or_else(|| {
        format!("separator and question take {fixed} tokens, the prompt may have {length}")
    })?;
    context.truncate(room);
    context.extend(separator);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Context and question of 0, 1, 2, … after the cut.
    fn middle(context: u32, question: u32, start: usize, end: usize) -> (Vec<u32>, Vec<u32>) {
        let mut parts = ((0..context).collect(), (context..context + question).collect());
        cut_middle(&mut parts.0, &mut parts.1, start, end);
        parts
    }

    #[test]
    fn the_middle_goes_wherever_it_lies() {
        for context in 0..8 {
            for start in 0..6 {
                for end in 0..6 {
                    let question = 8 - context;
                    let all: Vec<u32> = (0..8).collect();
                    let expected = if start + end >= 8 {
                        all
                    } else {
                        [&all[..start], &all[8 - end..]].concat()
                    };
                    let (before, after) = middle(context, question, start, end);
                    assert_eq!([&before[..], &after[..]].concat(), expected);
                    assert!(before.iter().all(|token| *token < context));
                    assert!(after.iter().all(|token| *token >= context));
                }
            }
        }
        assert_eq!(middle(6, 2, 2, 3), (vec![0, 1, 5], vec![6, 7]));
        assert_eq!(middle(2, 6, 3, 2), (vec![0, 1], vec![2, 6, 7]));
    }

    #[test]
    fn the_separator_counts_and_a_length_without_room_is_refused() {
        let cut = |length| {
            let mut context = vec![1, 2, 3, 4, 5, 6];
            cut_context(&mut context, &[8, 9], &[7], length).map(|()| context)
        };
        assert_eq!(cut(8).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(cut(7).unwrap(), [1, 2, 3, 4, 7]);
        assert_eq!(cut(4).unwrap(), [1, 7]);
        let error = cut(3).unwrap_err();
        assert!(error.contains("take 3 tokens") && error.contains("may have 3"), "{error}");
    }
}
