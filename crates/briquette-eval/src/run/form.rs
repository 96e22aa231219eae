use briquette_models::{ChatMessage, ChatTemplate, Tokenizer};

use crate::{Error, Result, tasks::Sample};

/// Tokens that a chat template puts around the questions of a sample.
#[derive(Debug)]
pub(crate) struct ChatForm {
    /// Before the context.
    head: Vec<u32>,
    /// Behind each question: what an answer begins after.
    tail: Vec<u32>,
    /// Between an answer and the next question.
    between: Vec<u32>,
    /// The token that begins a text without a template, which contexts are opened by.
    begin: Option<u32>,
}

/// Texts that no template holds.
const USER: &str = "\u{1}user\u{1}";
const ANSWER: &str = "\u{1}answer\u{1}";

impl ChatForm {
    pub(crate) fn new(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Self> {
        let messages = [
            ChatMessage::new("user", USER),
            ChatMessage::new("assistant", ANSWER),
            ChatMessage::new("user", USER),
        ];
        let whole = template.render(&messages, true)?;
        let parts = || {
            let (head, rest) = whole.split_once(USER)?;
            let (_, rest) = rest.split_once(ANSWER)?;
            let (between, tail) = rest.split_once(USER)?;
            Some([head, between, tail])
        };
        let Some([head, between, tail]) = parts() else {
            let reason = "the chat template does not write out what is said".into();
            return Err(Error::Setting { name: "chat", reason });
        };
        let begin = tokenizer.encode("", true)?.first().copied();
        Ok(Self {
            head: tokenizer.encode(head, false)?,
            tail: tokenizer.encode(tail, false)?,
            between: tokenizer.encode(between, false)?,
            begin,
        })
    }

    /// The sample as a conversation: context and first question are what a user says.
    pub(crate) fn around(&self, sample: &mut Sample) {
        let begun = self.begin.is_some() && sample.context.first().copied() == self.begin;
        let context = sample.context.split_off(usize::from(begun));
        sample.context = [self.head.clone(), context].concat();
        for (number, turn) in sample.turns.iter_mut().enumerate() {
            let before = if number == 0 { &[][..] } else { &self.between };
            turn.question = [before, &turn.question, &self.tail].concat();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{metrics::Metric, tasks::Turn, testing};

    #[test]
    fn a_sample_is_what_the_template_writes() {
        let tokenizer = testing::tokenizer();
        let source = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}\
                      {% if add_generation_prompt %}<assistant>\n{% endif %}";
        let template = ChatTemplate::new(source, None, None).unwrap();
        let turn = |question: &str| {
            let question = tokenizer.encode(question, false).unwrap();
            Turn::new(question, vec!["7".into()], Metric::ExactMatch, 4)
        };
        let mut sample = Sample {
            id: "0".into(),
            axes: BTreeMap::new(),
            context: tokenizer.encode("A text.", true).unwrap(),
            turns: vec![turn(" What?"), turn("And?")],
        };
        let form = ChatForm::new(&template, &tokenizer).unwrap();
        form.around(&mut sample);
        let text = |tokens: &[u32]| tokenizer.decode(tokens).unwrap();
        assert_eq!(text(&sample.context), "<user>\nA text.");
        assert_eq!(text(&sample.turns[0].question), " What?\n<assistant>\n");
        assert_eq!(text(&sample.turns[1].question), "\n<user>\nAnd?\n<assistant>\n");

        let silent = ChatTemplate::new("nothing", None, None).unwrap();
        let refused = ChatForm::new(&silent, &tokenizer);
        assert!(matches!(refused, Err(Error::Setting { name: "chat", .. })));
    }
}
