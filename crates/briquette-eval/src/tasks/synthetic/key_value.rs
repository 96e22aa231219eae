//! The value of a key among many pairs.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{
    cell::{Cell, at_least},
    names::{List, untaken, uuid},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Result,
    tasks::{Sample, Turn, assemble},
};

/// Digits of a number in a line.
const DIGITS: usize = 5;

/// Forms of pairs and their question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyValueForm {
    /// Lines `WORD:12345`, asked for up to `Question: WORD:`. What the embedded model was trained
    /// on. Scored by [`Metric::ExactMatch`](crate::metrics::Metric::ExactMatch).
    #[default]
    Lines,
    /// A JSON object of UUIDs (Liu et al. 2023, "Lost in the Middle", their prompt). Scored by
    /// [`Metric::Contains`](crate::metrics::Metric::Contains), as there.
    Json,
}

synthetic_task! {
    /// Key-value retrieval: nothing but pairs, as many as fit. A depth is that of the pair asked
    /// for among the others.
    pub struct KeyValue: 2 samples at depths {
        /// Pairs, at most; as many as fit if not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pairs: Option<usize> = None,
        /// How pairs are written.
        pub form: KeyValueForm = KeyValueForm::Lines,
    }
}

impl Family for KeyValue {
    const NAME: &'static str = "key-value";

    fn default_label(&self) -> String {
        let form = match self.form {
            KeyValueForm::Lines => "lines",
            KeyValueForm::Json => "json",
        };
        let pairs = self.pairs.map(|pairs| format!("-{pairs}pairs")).unwrap_or_default();
        format!("{}-{form}{pairs}", Self::NAME)
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        if let Some(pairs) = self.pairs {
            at_least(Self::NAME, "pairs", pairs, LEAST)?;
        }
        cells.iter().map(|cell| self.sample(cell)).collect()
    }
}

/// A single pair is nothing to choose from.
const LEAST: usize = 2;

type Pair = (String, String);

impl KeyValue {
    fn sample(&self, cell: &Cell<'_>) -> Result<Sample> {
        let (pairs, turn) = self.pairs(cell)?;
        let behind = turn.question.len() + turn.max_new_tokens;
        // The number of pairs was found with the one asked for in front; elsewhere it may take a
        // token more.
        let mut count = pairs.len();
        let context = loop {
            let context = self.context(cell, &pairs[..count], cell.depth())?;
            if context.len() + behind <= cell.length {
                break context;
            }
            if count <= LEAST {
                return Err(cell.too_short(context.len() + behind));
            }
            count -= 1;
        };
        Ok(cell.named(&[("pairs", count)], context, vec![turn]))
    }

    /// As many pairs as fit, and the question about the first.
    fn pairs(&self, cell: &Cell<'_>) -> Result<(Vec<Pair>, Turn)> {
        match self.form {
            KeyValueForm::Json => {
                let mut rng = cell.stream(0);
                // A pair takes more than one token.
                let most = self.pairs.unwrap_or(cell.length).min(cell.length).max(LEAST);
                let mut pairs: Vec<Pair> =
                    (0..most).map(|_| (uuid(&mut rng), uuid(&mut rng))).collect();
                let turn = self.turn(cell, &pairs[0])?;
                let count = self.fitting(cell, &pairs, &turn)?;
                pairs.truncate(count);
                Ok((pairs, turn))
            }
            KeyValueForm::Lines => {
                let most = self.pairs.unwrap_or(usize::MAX);
                let (mut single, turn, count) = self.lines(cell, List::Single)?;
                single.truncate(count);
                if count < List::Single.len() || most == count {
                    return Ok((single, turn));
                }
                let (mut joined, turn_joined, count_joined) = self.lines(cell, List::Pairs)?;
                if count_joined <= count {
                    return Ok((single, turn));
                }
                if count_joined == List::Pairs.len() && most > count_joined {
                    return Err(List::too_many(Self::NAME, count_joined + 1));
                }
                joined.truncate(count_joined);
                Ok((joined, turn_joined))
            }
        }
    }

    /// All lines there are words for, the question about the first, and how many fit.
    fn lines(&self, cell: &Cell<'_>, list: List) -> Result<(Vec<Pair>, Turn, usize)> {
        let words = list.draw(list.len(), &mut cell.stream(0));
        let mut numbers = cell.stream(1);
        let mut taken = HashSet::new();
        let mut number = || untaken(&mut taken, || assemble::digits(&mut numbers, DIGITS));
        let pairs: Vec<Pair> = words.into_iter().map(|word| (word, number())).collect();
        let turn = self.turn(cell, &pairs[0])?;
        let count = self.fitting(cell, &pairs, &turn)?;
        Ok((pairs, turn, count))
    }

    fn fitting(&self, cell: &Cell<'_>, pairs: &[Pair], turn: &Turn) -> Result<usize> {
        let behind = turn.question.len() + turn.max_new_tokens;
        let size = |count: usize| Ok(self.context(cell, &pairs[..count], 0)?.len() + behind);
        let most = pairs.len().min(self.pairs.unwrap_or(usize::MAX));
        match assemble::largest(most, cell.length, size)? {
            Some(count) if count >= LEAST => Ok(count),
            _ => Err(cell.too_short(size(LEAST.min(most))?)),
        }
    }

    /// The pairs, the first of them moved to its depth among the others.
    fn context(&self, cell: &Cell<'_>, pairs: &[Pair], depth: u32) -> Result<Vec<u32>> {
        let at = (pairs.len().saturating_sub(1) * depth as usize + 50) / 100;
        let (asked, others) = pairs.split_at(1);
        let (before, behind) = others.split_at(at);
        let pairs = before.iter().chain(asked).chain(behind);
        let text = match self.form {
            // The model was trained with a space between the line break and the word: it is the
            // word's own.
            KeyValueForm::Lines => {
                pairs.map(|(key, value)| format!("\n {key}:{value}")).collect::<String>()
            }
            KeyValueForm::Json => {
                let records: Vec<String> =
                    pairs.map(|(key, value)| format!("\"{key}\": \"{value}\"")).collect();
                format!(
                    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON \
                     data:\n{{{}}}",
                    records.join(",\n ")
                )
            }
        };
        Ok(cell.tokenizer.encode(&text, true)?)
    }

    fn turn(&self, cell: &Cell<'_>, (key, value): &Pair) -> Result<Turn> {
        match self.form {
            KeyValueForm::Lines => cell.exact_turn(&format!("\nQuestion: {key}:"), value),
            KeyValueForm::Json => {
                let question = format!("\n\nKey: \"{key}\"\nCorresponding value:");
                let right = format!(" \"{value}\"");
                // Their script generates 100 tokens.
                cell.list_turn(&question, vec![value.clone()], &right, 100)
            }
        }
    }
}
