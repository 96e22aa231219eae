//! The text needles are hidden in.

use std::{iter, path::Path};

use rand::{RngExt, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::needle_template::NeedleTemplate;
use crate::{Error, Result, files, fingerprint};

/// Sentences written for this project, one a line, in the manner of the books the embedded model
/// was trained on. None holds a digit or a needle's word.
const BUILT_IN: &str = include_str!("../../assets/haystack.txt");

pub(super) fn built_in_lines() -> impl Iterator<Item = &'static str> {
    BUILT_IN.lines()
}

/// Prose as a supply of sentences.
#[derive(Clone, Debug)]
pub struct Haystack {
    name: String,
    sentences: Vec<String>,
    order: Order,
    form: NeedleTemplate,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    /// Sentences that need no order are drawn anew for every prompt, and set into paragraphs.
    Shuffled,
    /// Running text keeps its order; every prompt begins at another sentence.
    Running,
    /// One line, again and again.
    Repeated,
}

/// The line RULER repeats (Hsieh et al. 2024, "noise").
const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

impl Haystack {
    /// The text built into the program.
    pub fn built_in() -> Self {
        let sentences = built_in_lines().map(str::to_owned).collect();
        Self::of("built-in".into(), sentences, Order::Shuffled)
    }

    /// RULER's noise: one line of short sentences, repeated.
    pub fn noise() -> Self {
        Self::of("noise".into(), vec![NOISE.into()], Order::Repeated)
    }

    fn of(name: String, sentences: Vec<String>, order: Order) -> Self {
        Self { name, sentences, order, form: NeedleTemplate::default() }
    }

    /// All `*.txt` files of a folder, joined in the order of their names.
    ///
    /// # Errors
    /// [`Error::Read`], or [`Error::EmptyHaystack`] if the files hold no text.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let mut files = files::list(dir)?;
        files.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
        let mut text = String::new();
        for path in &files {
            text += files::read_text(path)?.trim();
            text += "\n\n";
        }
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::EmptyHaystack { dir: dir.into(), files: files.len() });
        }
        Ok(Self::of(dir.display().to_string(), sentences(text), Order::Running))
    }

    /// Another form of the needles hidden in it.
    pub fn with_form(self, form: NeedleTemplate) -> Self {
        Self { form, ..self }
    }

    /// Form of its needles and their questions.
    pub fn form(&self) -> &NeedleTemplate {
        &self.form
    }

    /// `built-in`, `noise`, or the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Differs between texts and forms.
    pub(crate) fn fingerprint(&self) -> String {
        let text = format!("{:?} {:?}", self.order, self.sentences);
        match self.form == NeedleTemplate::default() {
            true => fingerprint::of(text.as_bytes()),
            false => fingerprint::of(format!("{text} {:?}", self.form).as_bytes()),
        }
    }

    /// Sentences it has. As many of the first [`Self::pieces`] hold each of them once.
    pub fn len(&self) -> usize {
        self.sentences.len()
    }

    /// Whether it has no sentence, which no haystack is without.
    pub fn is_empty(&self) -> bool {
        self.sentences.is_empty()
    }

    /// Text without end, in pieces that each begin with the white space before their sentence. Only
    /// the very first has none. When the text is used up it begins again, shuffled text in another
    /// order.
    pub fn pieces(&self, rng: ChaCha8Rng) -> impl Iterator<Item = String> {
        let mut pieces =
            Pieces { haystack: self, rng, order: Vec::new(), paragraph: 0, first: true };
        if let Order::Running = self.order {
            let start = pieces.rng.random_range(0..self.sentences.len());
            pieces.order = (start..self.sentences.len()).rev().collect();
        }
        pieces
    }

    /// As [`pieces`](Self::pieces), behind an introduction that this line break ends.
    pub(crate) fn pieces_behind(
        &self,
        line_break: &'static str,
        rng: ChaCha8Rng,
    ) -> impl Iterator<Item = String> {
        let breaks = iter::once(line_break).chain(iter::repeat(""));
        self.pieces(rng).zip(breaks).map(|(piece, before)| format!("{before}{piece}"))
    }
}

struct Pieces<'a> {
    haystack: &'a Haystack,
    rng: ChaCha8Rng,
    /// Sentences still to come, the next one last.
    order: Vec<usize>,
    /// Sentences left in this paragraph, of shuffled text.
    paragraph: usize,
    first: bool,
}

impl Iterator for Pieces<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let Haystack { sentences, order, .. } = self.haystack;
        if self.order.is_empty() {
            self.order = (0..sentences.len()).rev().collect();
            if let Order::Shuffled = order {
                self.order.shuffle(&mut self.rng);
            }
        }
        let index = self.order.pop()?;
        let sentence = sentences[index].trim_start();
        let before = match order {
            _ if self.first => "",
            Order::Repeated => "\n",
            Order::Running if index == 0 => "\n\n",
            Order::Running => &sentences[index][..sentences[index].len() - sentence.len()],
            Order::Shuffled if self.paragraph == 0 => "\n\n",
            Order::Shuffled => " ",
        };
        if self.paragraph == 0 {
            self.paragraph = self.rng.random_range(4..8);
        }
        self.paragraph -= 1;
        self.first = false;
        Some(format!("{before}{sentence}"))
    }
}

/// Cuts running text behind each `.`, `!` or `?` (and closing quotes) that white space follows. The
/// white space stays with the sentence after it.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let (mut start, mut ended) = (0, false);
    for (at, c) in text.char_indices() {
        if ended && c.is_whitespace() {
            sentences.push(text[start..at].to_owned());
            start = at;
        }
        ended = match c {
            '.' | '!' | '?' => true,
            '"' | '\'' | ')' | '”' | '’' => ended,
            _ => false,
        };
    }
    sentences.push(text[start..].to_owned());
    sentences
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tasks::{needle, seed};

    fn text(haystack: &Haystack, seed: u64, pieces: usize) -> String {
        haystack.pieces(seed::rng(&[seed])).take(pieces).collect()
    }

    #[test]
    fn built_in_sentences_are_clean() {
        let haystack = Haystack::built_in();
        assert!(haystack.sentences.len() > 250);
        for sentence in &haystack.sentences {
            assert!(sentence.ends_with('.') && sentence.trim() == sentence, "{sentence}");
            assert!(!sentence.contains(|c: char| c.is_ascii_digit()), "{sentence}");
            for word in sentence.split(|c: char| !c.is_alphabetic()) {
                assert!(!needle::words().any(|needle| needle == word), "{word}: {sentence}");
            }
        }
        let mut unique = haystack.sentences.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), haystack.sentences.len());
    }

    #[test]
    fn shuffled_text_follows_the_seed_and_never_ends() {
        let haystack = Haystack::built_in();
        assert_eq!(text(&haystack, 1, 20), text(&haystack, 1, 20));
        assert_ne!(text(&haystack, 1, 20), text(&haystack, 2, 20));
        let long = text(&haystack, 1, 3 * haystack.sentences.len());
        assert!(!long.starts_with(char::is_whitespace));
        assert!(long.contains("\n\n") && !long.contains("\n\n\n"));
        // Each round uses every sentence once.
        assert_eq!(long.matches(haystack.sentences[0].as_str()).count(), 3);
    }

    #[test]
    fn noise_is_one_line_repeated() {
        assert_eq!(text(&Haystack::noise(), 1, 3), [NOISE; 3].join("\n"));
    }

    #[test]
    fn sentences_keep_every_character() {
        let source = "One. Two!  \"Three?\" he said.\nFour 3.5 metres.\n\nFive";
        let cut = sentences(source);
        assert_eq!(cut.concat(), source);
        assert_eq!(
            cut,
            ["One.", " Two!", "  \"Three?\"", " he said.", "\nFour 3.5 metres.", "\n\nFive"]
        );
    }

    #[test]
    fn a_folder_runs_in_order_and_wraps() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.txt"), "Third. Fourth.\n").unwrap();
        fs::write(dir.path().join("a.txt"), "First.\nSecond.").unwrap();
        fs::write(dir.path().join("c.md"), "No.").unwrap();
        let haystack = Haystack::from_dir(dir.path()).unwrap();
        let ring = "First.\nSecond.\n\nThird. Fourth.\n\n".repeat(3);
        for seed in 0..8 {
            let text = text(&haystack, seed, 7);
            assert!(ring.contains(&text), "{text}");
        }
    }

    #[test]
    fn an_empty_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.txt"), " \n").unwrap();
        let error = Haystack::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains("1 .txt files"), "{error}");
        let error = Haystack::from_dir(dir.path().join("no")).unwrap_err().to_string();
        assert!(error.contains("no"), "{error}");
    }
}
