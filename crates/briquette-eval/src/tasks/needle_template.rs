//! Forms of a needle and its question: a model finds a needle in the form that it was trained on.

use std::path::Path;

use briquette::parse;
use briquette_models::{ChatMessage, ChatTemplate};
use serde::{Deserialize, Serialize};

use super::files::fill;
use crate::{Error, Result, files};

/// Texts around a hidden number. `{word}` stands for the word it is hidden under, `{number}` for
/// the number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeedleTemplate {
    /// Text before the haystack. Where it does not end its line, the haystack begins on the next.
    introduction: String,
    /// The needle, with what parts it from the sentence before.
    needle: String,
    /// The question, as far as it is the reader's.
    question: String,
    /// The right answer, which ends with `{number}`. What stands before the number is given to the
    /// model.
    #[serde(default = "number")]
    answer: String,
    /// Text that a chat template writes before and behind the reader's message.
    #[serde(skip_deserializing)]
    chat: Option<(String, String)>,
}

/// A question as a model reads it, and the right answer.
pub(crate) struct QuestionAnswer {
    pub(crate) question: String,
    /// The number, with the white space that parts it from the question.
    pub(crate) answer: String,
}

const NUMBER: &str = "{number}";
const WORD: &str = "{word}";

/// Noun of the values that needles hide, where a task names no other.
const NOUN: &str = "number";

fn number() -> String {
    NUMBER.into()
}

impl Default for NeedleTemplate {
    fn default() -> Self {
        Self::ember()
    }
}

impl NeedleTemplate {
    /// Form that the embedded model was trained on:
    /// `One of the special magic numbers is WORD:NUMBER.`
    pub fn ember() -> Self {
        Self::ember_of(NOUN)
    }

    /// The same for values that are called by this noun.
    pub(crate) fn ember_of(noun: &str) -> Self {
        Self {
            introduction: format!(
                "\nSome special magic {noun}s are hidden within the following text. Make sure to memorize them. I \
                 will quiz you about the {noun}s afterwards.\n"
            ),
            needle: format!("\nOne of the special magic {noun}s is {WORD}:{NUMBER}."),
            question: format!(
                "\nWhat is the special magic {noun} for {WORD} mentioned in the provided text?"
            ),
            answer: format!(" The special magic {noun} is {WORD}:{NUMBER}"),
            chat: None,
        }
    }

    /// RULER's published prompt (Hsieh et al., 2024):
    /// `One of the special magic numbers for WORD is: NUMBER.`
    pub fn ruler() -> Self {
        Self::ruler_of(NOUN)
    }

    /// The same for values that are called by this noun.
    pub(crate) fn ruler_of(noun: &str) -> Self {
        Self {
            introduction: format!(
                "A special magic {noun} is hidden within the following text. Make sure to memorize it. I will quiz \
                 you about the {noun} afterwards."
            ),
            needle: format!(" One of the special magic {noun}s for {WORD} is: {NUMBER}."),
            question: format!(
                "\nWhat is the special magic {noun} for {WORD} mentioned in the provided text?"
            ),
            answer: format!(
                " The special magic {noun} for {WORD} mentioned in the provided text is {NUMBER}"
            ),
            chat: None,
        }
    }

    /// Reads `ember`, `ruler`, or a TOML file with `introduction`, `needle`, `question` and
    /// `answer`.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::TaskParameter`] for a file that is no form.
    pub fn read(text: &str) -> Result<Self> {
        match text {
            "ember" => return Ok(Self::ember()),
            "ruler" => return Ok(Self::ruler()),
            _ => {}
        }
        let path = Path::new(text);
        let file = files::read_text(path)?;
        let refuse = |reason: String| Error::TaskParameter {
            task: "needle",
            parameter: "form",
            reason: format!("{text}: {reason}"),
        };
        let form: Self = parse::toml(&file).map_err(|mistake| refuse(mistake.to_string()))?;
        let Self { needle, question, answer, .. } = &form;
        if !(needle.contains(WORD) && needle.contains(NUMBER)) {
            return Err(refuse(format!("`needle` names {WORD} and {NUMBER}")));
        }
        if !question.contains(WORD) && !answer.contains(WORD) {
            return Err(refuse(format!("`question` names {WORD}")));
        }
        if !answer.ends_with(NUMBER) || answer.matches(NUMBER).count() > 1 {
            return Err(refuse(format!("`answer` ends with {NUMBER}")));
        }
        Ok(form)
    }

    /// Puts the form into a conversation: all up to the question is the user's, the answer the
    /// assistant's.
    ///
    /// # Errors
    /// [`Error::Model`] if the template fails or does not write the message out once.
    pub fn in_chat(mut self, template: &ChatTemplate) -> Result<Self> {
        self.chat = Some(template.render_unfinished(&[ChatMessage::new("user", "")])?);
        Ok(self)
    }

    /// Text before the haystack, and whether the tokenizer adds the token that begins a text.
    pub(crate) fn introduction(&self) -> (String, bool) {
        match &self.chat {
            None => (self.introduction.clone(), true),
            // A template writes it out.
            Some((opening, _)) => (format!("{opening}{}", self.introduction), false),
        }
    }

    /// Line break before the first sentence, empty if the introduction ends with one.
    pub(crate) fn line_break(&self) -> &'static str {
        if self.introduction.ends_with('\n') { "" } else { "\n" }
    }

    pub(crate) fn needle(&self, word: &str, number: &str) -> String {
        fill(&self.needle, &[("word", word), ("number", number)])
    }

    pub(crate) fn question_answer(&self, word: &str, number: &str) -> QuestionAnswer {
        let question = fill(&self.question, &[("word", word)]);
        let answer = fill(&self.answer, &[("word", word)]);
        let before = answer.strip_suffix(NUMBER).unwrap_or(&answer);
        // A tokenizer takes a space as the beginning of what follows it.
        let given = before.trim_end();
        let answer = format!("{}{number}", &before[given.len()..]);
        let question = match &self.chat {
            None => format!("{question}{given}"),
            Some((_, closing)) => format!("{question}{closing}{}", given.trim_start()),
        };
        QuestionAnswer { question, answer }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("form.toml");
        fs::write(&path, text).unwrap();
        NeedleTemplate::read(path.to_str().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn the_space_before_a_number_belongs_to_it() {
        let QuestionAnswer { question, answer } =
            NeedleTemplate::ruler().question_answer("oak", "123");
        assert!(question.ends_with("for oak mentioned in the provided text is"), "{question}");
        assert_eq!(answer, " 123");
        let QuestionAnswer { question, answer } =
            NeedleTemplate::ember().question_answer("oak", "123");
        let asked = "\nWhat is the special magic number for oak mentioned in the provided text? ";
        assert_eq!(question, format!("{asked}The special magic number is oak:"));
        assert_eq!(answer, "123");
    }

    #[test]
    fn a_chat_template_stands_around_all_but_the_answer() {
        let template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";
        let template = ChatTemplate::new(template, Some("<s>".into()), None).unwrap();
        let form = NeedleTemplate::ruler().in_chat(&template).unwrap();
        let (introduction, special) = form.introduction();
        assert!(introduction.starts_with("<s><user>A special magic") && !special, "{introduction}");
        let QuestionAnswer { question, answer } = form.question_answer("oak", "123");
        assert!(question.contains("provided text?</><assistant>The special magic"), "{question}");
        assert_eq!(answer, " 123");
        let silent = ChatTemplate::new("hello", None, None).unwrap();
        assert!(NeedleTemplate::ember().in_chat(&silent).is_err());
    }

    #[test]
    fn a_form_of_ones_own_names_what_it_hides() {
        let whole = "introduction = \"Read.\"\nneedle = \" {word} is {number}.\"\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("form.toml");
        fs::write(&path, format!("{whole}question = \"\\n{{word}}?\\n\"\n")).unwrap();
        let form = NeedleTemplate::read(path.to_str().unwrap()).unwrap();
        let QuestionAnswer { question, answer } = form.question_answer("oak", "123");
        assert_eq!((question.as_str(), answer.as_str()), ("\noak?\n", "123"));
        assert_eq!(form.needle("{number}", "7"), " {number} is 7.");
        for (text, reason) in [
            ("", "there is no `introduction`"),
            (&format!("{whole}question = \"?\"\n"), "`question` names {word}"),
            (&format!("{whole}question = \"{{word}}\"\nanswer = \"{{number}}.\"\n"), "ends with"),
            (&format!("{whole}question = \"{{word}}\"\nanswers = \"\"\n"), "unknown field"),
            ("introduction = \"\"\nneedle = \"{word}\"\nquestion = \"{word}\"\n", "`needle` names"),
        ] {
            let error = refused(text);
            assert!(error.contains(reason) && error.contains("form.toml"), "{error}");
        }
        assert!(matches!(NeedleTemplate::read("no/such.toml"), Err(Error::Read { .. })));
    }
}
