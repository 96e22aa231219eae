use std::{collections::HashSet, fs, path::Path};

use super::*;
use crate::data::{Words, generator};

fn tasks() -> Tasks {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m");
    let tokenizer = Tokenizer::load(&model).unwrap();
    let words = fs::read_to_string(model.join("recipe/words.json")).unwrap();
    let words: Words = serde_json::from_str(&words).unwrap();
    let prose = include_str!("../../../../../crates/briquette-eval/assets/haystack.txt");
    let encode = |text: &str| -> Vec<u16> {
        let tokens = tokenizer.encode(text, false).unwrap();
        tokens.into_iter().map(|token| token as u16).collect()
    };
    let (train, held_out) = (encode(&prose[..12_000]), encode(&prose[12_000..24_000]));
    assert!(train.len() > 2000 && held_out.len() > 2000);
    Tasks::new(Arc::new(Corpus { train, held_out, words, tokenizer })).unwrap()
}

const NONE: Mixture = Mixture {
    prose: 0.0,
    needle: 0.0,
    needles: 0.0,
    lines: 0.0,
    copy: 0.0,
    variables: 0.0,
    chains: 0.0,
};

impl Tasks {
    fn text(&self, tokens: &[u32]) -> String {
        self.corpus.tokenizer.decode(tokens).unwrap()
    }

    fn samples(&self, mixture: Mixture, length: usize, count: u64) -> Vec<Drawn> {
        let draw = |sample| {
            let drawn = self.draw(&mut generator(&[3, length as u64, sample]), length, &mixture);
            assert_eq!((drawn.tokens.len(), drawn.weights.len()), (length, length));
            for (token, weight) in drawn.tokens.iter().zip(&drawn.weights) {
                assert!(*token != PAD || *weight == 0.0);
            }
            drawn
        };
        (0..count).map(draw).collect()
    }
}

/// Runs of tokens with the same weight.
fn runs(drawn: &Drawn) -> Vec<(f32, Vec<u32>)> {
    let mut runs: Vec<(f32, Vec<u32>)> = Vec::new();
    for (token, weight) in drawn.tokens.iter().zip(&drawn.weights) {
        match runs.last_mut() {
            Some((same, run)) if same == weight => run.push(*token),
            _ => runs.push((*weight, vec![*token])),
        }
    }
    runs
}

/// Every text between the two.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    let parts = text.split(before).skip(1);
    parts.map(|part| part.split(after).next().unwrap()).collect()
}

fn hidden_numbers(text: &str) -> HashMap<&str, &str> {
    let needles = between(text, "\nOne of the special magic numbers is ", ".");
    needles.into_iter().map(|needle| needle.split_once(':').unwrap()).collect()
}

/// `WORD` and `DIGITS` of every question.
fn asked_numbers(text: &str) -> Vec<(&str, &str)> {
    let questions = between(text, "The special magic number is ", "\n").into_iter();
    questions.map(|answer| answer.split_once(':').unwrap()).collect()
}

#[test]
fn needles_are_asked_for_and_only_answers_weigh_like_answers() {
    let tasks = tasks();
    let train: HashSet<&str> = tasks.corpus.words.train.iter().map(String::as_str).collect();
    let (mut most, mut reordered) = (0, false);
    for (mixture, weight) in
        [(Mixture { needle: 1.0, ..NONE }, ANSWER), (Mixture { needles: 1.0, ..NONE }, ONE_OF_MANY)]
    {
        let samples = tasks.samples(mixture, 512, 40);
        // Where the needles drawn do not fit, lines stand in.
        let of_needles = |drawn: &Drawn| tasks.text(&drawn.tokens).contains("magic");
        let samples: Vec<_> = samples.into_iter().filter(of_needles).collect();
        assert!(samples.len() > 30, "{} of 40 are needles", samples.len());
        for drawn in samples {
            let text = tasks.text(&drawn.tokens);
            let (hidden, asked) = (hidden_numbers(&text), asked_numbers(&text));
            assert!(!asked.is_empty(), "{text}");
            for (word, number) in &asked {
                assert_eq!(hidden.get(word), Some(number), "{word} in {text}");
                assert!(train.contains(word), "{word}");
            }
            assert!(hidden.keys().all(|word| train.contains(word)));
            most = most.max(asked.len());
            let place = |word: &str| text.find(&format!("is {word}:")).unwrap();
            reordered |= asked.windows(2).any(|two| place(two[0].0) > place(two[1].0));

            // Every token of an answer and the end behind it, and no other, weighs like an answer.
            let one = if asked.len() == 1 && mixture.needles > 0.0 { ANSWER } else { weight };
            let heavy: Vec<_> = runs(&drawn).into_iter().filter(|run| run.0 > QUESTION).collect();
            assert_eq!(heavy.len(), asked.len());
            for ((found, tokens), (_, number)) in heavy.iter().zip(&asked) {
                assert_eq!((*found, tokens.last()), (one, Some(&END)));
                assert_eq!(tasks.text(tokens), *number);
                assert_eq!(number.len(), DIGITS);
            }
            // What cannot be known weighs nothing: needles, and the introduction.
            for (weight, tokens) in runs(&drawn) {
                let text = tasks.text(&tokens);
                assert_eq!(
                    weight == 0.0,
                    text.contains("One of the special")
                        || text.contains("memorize")
                        || tokens.iter().all(|token| *token == PAD),
                    "{weight}: {text}"
                );
            }
        }
    }
    assert!(most > 5 && reordered);
}

#[test]
fn a_measured_needle_is_of_test_words_and_the_held_out_text() {
    let tasks = tasks();
    let words: HashSet<&str> = tasks.corpus.words.test.iter().map(String::as_str).collect();
    let held_out = wide(&tasks.corpus.held_out);
    for hidden in [1, 4, 16] {
        for sample in 0..10 {
            let drawn = tasks.measured_needle(&mut generator(&[sample]), 700, hidden).unwrap();
            assert_eq!(drawn.tokens.len(), 700);
            let text = tasks.text(&drawn.tokens);
            let (numbers, asked) = (hidden_numbers(&text), asked_numbers(&text));
            assert_eq!((numbers.len(), asked.len()), (hidden, 1));
            assert!(numbers.keys().all(|word| words.contains(word)));
            assert_eq!(numbers[asked[0].0], asked[0].1);
            assert_eq!(tasks.text(&drawn.tokens[drawn.answer.clone()]), asked[0].1);
            assert_eq!(drawn.tokens[drawn.answer.end..], [END]);
            let question = drawn.tokens[..drawn.answer.start].len();
            let prose = runs(&drawn).into_iter().filter(|run| run.0 == PROSE);
            for (_, run) in
                prose.filter(|(_, run)| !tasks.text(run).contains("What is the special"))
            {
                let found = held_out.windows(run.len()).any(|window| window == run);
                assert!(found, "not held out, before {question}: {}", tasks.text(&run));
            }
        }
    }
    assert!(tasks.measured_needle(&mut generator(&[0]), 300, 16).is_none());
}

#[test]
fn lines_are_asked_for_in_another_order() {
    let tasks = tasks();
    let train: HashSet<&str> = tasks.corpus.words.train.iter().map(String::as_str).collect();
    let mut reordered = false;
    for drawn in tasks.samples(Mixture { lines: 1.0, ..NONE }, 256, 40) {
        let text = tasks.text(&drawn.tokens);
        let (asked, lines): (Vec<&str>, Vec<&str>) =
            text.lines().skip(1).partition(|line| line.starts_with("Question:"));
        let pair = |line: &'_ str| -> (String, String) {
            let (word, number) =
                line.trim_start_matches("Question: ").trim().split_once(':').unwrap();
            (word.to_owned(), number.to_owned())
        };
        let lines: Vec<_> = lines.into_iter().map(pair).collect();
        let asked: Vec<_> = asked.into_iter().map(pair).collect();
        assert!(lines.len() >= 2 && !asked.is_empty(), "{text}");
        assert!(lines.iter().all(|(word, _)| train.contains(word.as_str())), "{lines:?}");
        assert!(asked.iter().all(|pair| lines.contains(pair)), "{text}");
        reordered |= lines[..asked.len()] != asked;
        let heavy: Vec<_> = runs(&drawn).into_iter().filter(|run| run.0 > 0.0).collect();
        let found: Vec<_> = heavy.iter().map(|(_, tokens)| tasks.text(tokens)).collect();
        assert_eq!(found, asked.iter().map(|pair| pair.1.clone()).collect::<Vec<_>>());
        assert!(heavy.iter().all(|run| run.0 == LINE_ANSWER));
    }
    assert!(reordered);
}

#[test]
fn a_copy_repeats_its_segment() {
    let tasks = tasks();
    let mut of_text = 0;
    for drawn in tasks.samples(Mixture { copy: 1.0, ..NONE }, 128, 40) {
        let end = drawn.tokens.iter().position(|token| *token == END).unwrap();
        let (segment, behind) = (&drawn.tokens[1..end], &drawn.tokens[end + 1..]);
        assert!(!segment.is_empty() && drawn.tokens[0] == BEGIN);
        assert_eq!(&behind[..segment.len()], segment);
        assert!(behind[segment.len()..].iter().all(|token| *token == PAD));
        let weight =
            |at: usize| if (end + 1..=end + segment.len()).contains(&at) { COPIED } else { 0.0 };
        let expected: Vec<f32> = (0..128).map(weight).collect();
        assert_eq!(drawn.weights, expected);
        let text = wide(&tasks.corpus.train);
        of_text += usize::from(text.windows(segment.len()).any(|window| window == segment));
    }
    assert!((8..32).contains(&of_text), "{of_text} of 40 are of the text");
}

/// The text that follows each variable's name in an answer: the way back to its number.
fn ways(text: &str) -> HashMap<String, String> {
    let mut ways: HashMap<String, String> = HashMap::new();
    for definition in between(text, "\nVAR ", ".") {
        let (name, value) = definition.split_once(" = ").unwrap();
        let further = match value.strip_prefix("VAR ") {
            // What it is set to stands before it.
            Some(source) => ways[source].clone(),
            None => String::new(),
        };
        assert_eq!(ways.insert(name.to_owned(), format!(" = {value}{further}")), None);
    }
    ways
}

/// The most variables on such a way, the asked one counted.
fn longest<'a>(ways: impl IntoIterator<Item = &'a String>) -> usize {
    ways.into_iter().map(|way| way.matches('=').count()).max().unwrap()
}

/// Names with the answers to them.
fn asked_variables<'a>(text: &'a str, before: &str) -> Vec<(&'a str, &'a str)> {
    let answers = between(text, before, "\n").into_iter();
    answers.map(|answer| answer.split_at(answer.find(" = ").unwrap())).collect()
}

#[test]
fn chains_of_variables_lead_to_their_answers() {
    let tasks = tasks();
    let words = &tasks.corpus.words;
    let [train, test] = [&words.train, &words.test]
        .map(|words| words.iter().map(String::as_str).collect::<HashSet<&str>>());
    let training = tasks.samples(Mixture { variables: 1.0, ..NONE }, 512, 60);
    // Where the chains drawn do not fit, lines stand in.
    let of_chains = |drawn: &Drawn| tasks.text(&drawn.tokens).contains("VAR");
    let training: Vec<_> = training.into_iter().filter(of_chains).collect();
    assert!(training.len() > 40, "{} of 60 are chains", training.len());
    let measured: Vec<_> = (0..20)
        .map(|sample| tasks.measured_variable(&mut generator(&[sample]), 512).unwrap())
        .collect();
    let mut most = 0;
    for (samples, keys) in [(training, &train), (measured, &test)] {
        for drawn in samples {
            let text = tasks.text(&drawn.tokens);
            let ways = ways(&text);
            assert!(ways.keys().all(|name| keys.contains(name.as_str())), "{ways:?}");
            most = most.max(longest(ways.values()));
            let asked = asked_variables(&text, "? Answer: VAR ");
            let named = between(&text, "What is the value of VAR ", "?");
            assert!(!asked.is_empty());
            assert_eq!(asked.iter().map(|(name, _)| *name).collect::<Vec<_>>(), named);
            assert!(asked.iter().all(|(name, way)| ways[*name] == *way), "{text}");
            let heavy: Vec<_> = runs(&drawn).into_iter().filter(|run| run.0 > PROSE).collect();
            assert_eq!(heavy.len(), asked.len());
            for ((weight, tokens), (_, way)) in heavy.iter().zip(&asked) {
                assert_eq!(*weight, if asked.len() == 1 { ANSWER } else { ONE_OF_MANY });
                assert_eq!((tasks.text(tokens), tokens.last()), ((*way).to_owned(), Some(&END)));
            }
        }
    }
    assert_eq!(most, LONGEST);
}

#[test]
fn of_dense_chains_every_variable_is_asked_for() {
    let tasks = tasks();
    let train: HashSet<&str> = tasks.corpus.words.train.iter().map(String::as_str).collect();
    let mut forms = [0; 2];
    let (mut far, mut most, mut all, mut reordered) = (0, 0, 0, false);
    for drawn in tasks.samples(Mixture { chains: 1.0, ..NONE }, 256, 60) {
        let text = tasks.text(&drawn.tokens);
        let ways = ways(&text);
        assert!(ways.keys().all(|name| train.contains(name.as_str())), "{ways:?}");
        far = far.max(longest(ways.values()));
        most = most.max(ways.len());
        let long = text.contains("Answer");
        forms[usize::from(long)] += 1;
        let asked = asked_variables(&text, if long { "? Answer: VAR " } else { "Question: VAR " });
        assert!(!asked.is_empty(), "{text}");
        assert!(asked.iter().all(|(name, way)| ways[*name] == *way), "{text}");
        all += usize::from(asked.len() == ways.len());
        let place = |name: &str| text.find(&format!("\nVAR {name} = ")).unwrap();
        reordered |= asked.windows(2).any(|two| place(two[0].0) > place(two[1].0));
        let heavy: Vec<_> = runs(&drawn).into_iter().filter(|run| run.0 > 0.0).collect();
        let found: Vec<_> = heavy.iter().map(|(_, tokens)| tasks.text(tokens)).collect();
        assert_eq!(found, asked.iter().map(|(_, way)| (*way).to_owned()).collect::<Vec<_>>());
        let ends = |tokens: &[u32]| tokens.last() == Some(&END);
        assert!(heavy.iter().all(|run| run.0 == LINE_ANSWER && ends(&run.1) == long));
    }
    assert!(forms.iter().all(|count| *count > 15), "{forms:?}");
    assert_eq!(far, LONGEST);
    assert!(most >= 6 && all >= 30 && reordered, "{most} {all} {reordered}");
}

#[test]
fn prose_is_the_text_and_weighs_one() {
    let tasks = tasks();
    let text = wide(&tasks.corpus.train);
    for drawn in tasks.samples(Mixture { prose: 1.0, ..NONE }, 128, 5) {
        assert_eq!((drawn.tokens[0], drawn.weights[0]), (BEGIN, 0.0));
        assert!(text.windows(127).any(|window| window == &drawn.tokens[1..]));
        assert!(drawn.weights[1..].iter().all(|weight| *weight == PROSE));
    }
    let held_out = tasks.held_out(100, 3);
    assert_eq!(held_out.len(), 3);
    assert_eq!(held_out[1].tokens[1..], wide(&tasks.corpus.held_out)[99..198]);
}

#[test]
fn a_word_cannot_be_trained_on_and_measured() {
    let Tasks { corpus, .. } = tasks();
    let mut corpus = Arc::into_inner(corpus).unwrap();
    let word = corpus.words.train[7].clone();
    corpus.words.test[3] = word.clone();
    let error = Tasks::new(Arc::new(corpus)).unwrap_err().to_string();
    assert!(error.contains(&word), "{error}");
}
