//! Words to be counted: the common ones of a list, the frequent ones of a coded text.

use std::collections::HashSet;

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{
    cell::{Cell, at_least, refuse},
    names::{List, letters, untaken},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Error, Result,
    tasks::{Sample, Turn, assemble},
};

/// From this length on the words of a list are repeated more often, as in RULER.
const LONG: usize = 4096;

synthetic_task! {
    /// RULER's common words extraction (Hsieh et al. 2024, "CWE"): a numbered list in which some
    /// words come often, the others seldom. As many seldom words as fit.
    pub struct CommonWords: 4 samples {
        /// Common words, all asked for.
        pub common: usize = 10,
        /// How often each of them comes; if not given 30 times, below 4096 tokens 6 times.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub common_repeats: Option<usize> = None,
        /// How often each of the others comes; if not given 3 times, below 4096 tokens once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub uncommon_repeats: Option<usize> = None,
        /// Whether a short list with its answer comes first, as in RULER.
        pub example: bool = true,
    }
}

impl Family for CommonWords {
    const NAME: &'static str = "common-words";

    fn default_label(&self) -> String {
        match self.common {
            10 => Self::NAME.to_owned(),
            count => format!("{}-{count}", Self::NAME),
        }
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        at_least(Self::NAME, "common", self.common, 1)?;
        for &length in &self.lengths {
            let (often, seldom) = self.repeats(length);
            at_least(Self::NAME, "uncommon-repeats", seldom, 1)?;
            if often <= seldom {
                let reason = format!("{often}, not more than the {seldom} of the other words");
                return refuse(Self::NAME, "common-repeats", reason);
            }
            let fixed = often.saturating_mul(self.common);
            if fixed > length {
                return Err(Error::PromptTooShort { task: Self::NAME, length, fixed });
            }
        }
        cells.iter().map(|cell| self.sample(cell)).collect()
    }
}

impl CommonWords {
    fn repeats(&self, length: usize) -> (usize, usize) {
        let (common, uncommon) = if length < LONG { (6, 1) } else { (30, 3) };
        (self.common_repeats.unwrap_or(common), self.uncommon_repeats.unwrap_or(uncommon))
    }

    /// Uncommon words of the example, and how often its words come.
    fn example(&self, length: usize) -> (usize, usize, usize) {
        if length < LONG { (self.common, 3, 1) } else { (3 * self.common, 10, 3) }
    }

    fn sample(&self, cell: &Cell<'_>) -> Result<Sample> {
        // Words of the example, which are not words of the list, and the common ones.
        let in_example = if self.example { self.common + self.example(cell.length).0 } else { 0 };
        let reserved = in_example + self.common;
        let fill = |list: List| -> Result<Option<(Vec<String>, usize)>> {
            let Some(most) = list.len().checked_sub(reserved).filter(|most| *most > 0) else {
                return Ok(None);
            };
            let words = list.draw(list.len(), &mut cell.stream(0));
            let turn = self.turn(cell, &words[in_example..reserved])?;
            let behind = turn.question.len() + turn.max_new_tokens;
            let size = |count: usize| Ok(self.context(cell, &words, count)?.len() + behind);
            match assemble::largest(most, cell.length, size)? {
                Some(count) => Ok(Some((words, count))),
                None => Err(cell.too_short(size(1)?)),
            }
        };
        let all = |list: List, count: usize| count + reserved == list.len();
        let found = match fill(List::Single)? {
            // Pairs take more tokens: if fewer of them fit, single words do.
            Some((words, count)) if all(List::Single, count) => match fill(List::Pairs) {
                Ok(Some((_, pairs))) if pairs <= count => Some((words, count)),
                Err(Error::PromptTooShort { .. }) => Some((words, count)),
                pairs => pairs?,
            },
            None => fill(List::Pairs)?,
            found => found,
        };
        let (words, count) = match found {
            Some((words, count)) if words.len() == List::Pairs.len() && all(List::Pairs, count) => {
                return Err(List::too_many(Self::NAME, words.len() + 1));
            }
            Some(found) => found,
            None => return Err(List::too_many(Self::NAME, reserved + 1)),
        };
        let context = self.context(cell, &words, count)?;
        let turn = self.turn(cell, &words[in_example..reserved])?;
        Ok(cell.named(&[("common", self.common), ("uncommon", count)], context, vec![turn]))
    }

    /// The example, and the list with `uncommon` seldom words.
    fn context(&self, cell: &Cell<'_>, words: &[String], uncommon: usize) -> Result<Vec<u32>> {
        let mut text = String::new();
        let mut words = words;
        if self.example {
            let (others, common_repeats, uncommon_repeats) = self.example(cell.length);
            let (used, rest) = words.split_at(self.common + others);
            let (common, others) = used.split_at(self.common);
            words = rest;
            let others = (others, uncommon_repeats);
            let list = numbered((common, common_repeats), others, &mut cell.stream(1));
            text += &format!("{}{}{}\n", self.list(&list), self.question(), answer(common));
        }
        let (common, others) = words.split_at(self.common);
        let (common_repeats, uncommon_repeats) = self.repeats(cell.length);
        let others = (&others[..uncommon], uncommon_repeats);
        let list = numbered((common, common_repeats), others, &mut cell.stream(2));
        text += &self.list(&list);
        Ok(cell.tokenizer.encode(&text, true)?)
    }

    fn list(&self, words: &str) -> String {
        format!(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones \
             that appear most often.\n{words}"
        )
    }

    fn question(&self) -> String {
        let count = self.common;
        format!(
            "\nQuestion: What are the {count} most common words in the above list? Answer: The top {count} words that \
             appear most often in the list are:"
        )
    }

    /// RULER generates 120 tokens.
    fn turn(&self, cell: &Cell<'_>, common: &[String]) -> Result<Turn> {
        cell.list_turn(&self.question(), common.to_vec(), &answer(common), 120)
    }
}

synthetic_task! {
    /// RULER's frequent words extraction (Hsieh et al. 2024, "FWE"): made-up words that follow a
    /// Zipf distribution, the first place of which is taken by dots. The next three are asked for.
    /// As many words as fit.
    pub struct FrequentWords: 4 samples {
        /// α of the distribution: the word of rank k comes in proportion to 1/k^α. Above 1.
        pub alpha: f64 = 2.0,
        /// Different words, the dots counted, at least 5; if not given a fiftieth of the tokens.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub vocabulary: Option<usize> = None,
    }
}

/// Words shared out for each token of a text, at most. More are shared out than written: ranks
/// behind the vocabulary are not.
const WORDS_A_TOKEN: usize = 256;

/// Ranks of the words asked for, from 0; the dots have rank 0.
const ASKED: std::ops::Range<usize> = 1..4;

/// Letters of a made-up word.
const LETTERS: usize = 6;

impl Family for FrequentWords {
    const NAME: &'static str = "frequent-words";

    fn default_label(&self) -> String {
        if self.alpha == 2.0 {
            Self::NAME.to_owned()
        } else {
            format!("{}-{}", Self::NAME, self.alpha)
        }
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        let Self { lengths, alpha, .. } = self;
        if !(*alpha > 1.0 && alpha.is_finite()) {
            return refuse(Self::NAME, "alpha", format!("{alpha} is not a number above 1"));
        }
        if let Some(vocabulary) = self.vocabulary {
            at_least(Self::NAME, "vocabulary", vocabulary, ASKED.end + 1)?;
            if let Some(length) = lengths.iter().find(|length| vocabulary > **length) {
                let reason = format!("{vocabulary} words, more than {length} tokens hold");
                return refuse(Self::NAME, "vocabulary", reason);
            }
        }
        cells.iter().map(|cell| self.sample(cell)).collect()
    }
}

impl FrequentWords {
    fn sample(&self, cell: &Cell<'_>) -> Result<Sample> {
        let count = self.vocabulary.unwrap_or((cell.length / 50).max(ASKED.end + 1));
        let vocabulary = coded(count, &mut cell.stream(0));
        let question = "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three \
                        most frequently appeared words in the above coded text? Answer: According to the coded text \
                        above, the three most frequently appeared words are:";
        let asked = &vocabulary[ASKED];
        // RULER generates 50 tokens.
        let turn = cell.list_turn(question, asked.to_vec(), &answer(asked), 50)?;
        let behind = turn.question.len() + turn.max_new_tokens;
        let context = |words: usize| -> Result<Vec<u32>> {
            let counts = self.counts(words, vocabulary.len());
            let mut text: Vec<&str> = vocabulary
                .iter()
                .zip(counts)
                .flat_map(|(word, count)| std::iter::repeat_n(word.as_str(), count))
                .collect();
            text.shuffle(&mut cell.stream(1));
            let text = format!(
                "Read the following coded text and track the frequency of each coded word. Find the three most \
                 frequently appeared coded words. {}",
                text.join(" ")
            );
            Ok(cell.tokenizer.encode(&text, true)?)
        };
        let size = |words: usize| Ok(context(words)?.len() + behind);
        let bound = cell.length.saturating_mul(WORDS_A_TOKEN);
        let most = assemble::largest(bound, cell.length, size)?.unwrap_or(0);
        let found = (1..=most).rev().find(|&words| self.is_told_apart(words));
        let Some(words) = found else {
            // The last word asked for comes once among so many.
            let least = (zeta(self.alpha) * (ASKED.end as f64).powf(self.alpha)).ceil() as usize;
            let tokens = if least > cell.length { least } else { context(least)?.len() };
            return Err(cell.too_short(tokens.saturating_add(behind)));
        };
        let context = context(words)?;
        if context.len() + behind > cell.length {
            return Err(cell.too_short(context.len() + behind));
        }
        let written = self.counts(words, vocabulary.len()).iter().sum();
        let axes = [("words", written), ("vocabulary", vocabulary.len())];
        Ok(cell.named(&axes, context, vec![turn]))
    }

    /// How often each rank comes among `words`, rounded down.
    fn counts(&self, words: usize, ranks: usize) -> Vec<usize> {
        let zeta = zeta(self.alpha);
        let count = |rank: usize| (words as f64 * (rank as f64).powf(-self.alpha) / zeta) as usize;
        (1..=ranks).map(count).collect()
    }

    /// Whether the last word asked for comes more often than the next.
    fn is_told_apart(&self, words: usize) -> bool {
        let counts = self.counts(words, ASKED.end + 1);
        counts[ASKED.end - 1] > counts[ASKED.end]
    }
}

/// ` 1. a 2. b`
fn answer(words: &[String]) -> String {
    words.iter().zip(1..).map(|(word, i)| format!(" {i}. {word}")).collect()
}

/// `1. b 2. a 3. b`, in random order.
fn numbered(
    (common, common_repeats): (&[String], usize),
    (others, repeats): (&[String], usize),
    rng: &mut ChaCha8Rng,
) -> String {
    let repeated = |words: &[String], times: usize| {
        words.iter().flat_map(|word| std::iter::repeat_n(word.clone(), times)).collect::<Vec<_>>()
    };
    let mut words = [repeated(common, common_repeats), repeated(others, repeats)].concat();
    words.shuffle(rng);
    answer(&words).trim_start().to_owned()
}

/// The dots, and different words of six letters.
fn coded(count: usize, rng: &mut ChaCha8Rng) -> Vec<String> {
    let mut words = vec!["...".to_owned()];
    let mut taken = HashSet::new();
    words.extend((1..count).map(|_| untaken(&mut taken, || letters(rng, b'a', LETTERS))));
    words
}

/// Riemann's ζ for a real number above 1, by Euler and Maclaurin from the 32nd term on.
fn zeta(s: f64) -> f64 {
    let n = 32.0_f64;
    let first: f64 = (1..32).map(|k| f64::from(k).powf(-s)).sum();
    let end = n.powf(-s);
    first + n * end / (s - 1.0) + end / 2.0 + s * end / n / 12.0
        - s * (s + 1.0) * (s + 2.0) * end / n.powi(3) / 720.0
}
