//! Tasks made from a seed: their prompts, their lengths, and that the embedded model answers the
//! form it knows.

mod asked;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use asked::{Asked, asked};
use briquette::Policy;
use briquette_eval::{
    Error,
    metrics::Metric,
    run::Tasks,
    tasks::{
        Question, Sample, Task,
        haystack::Haystack,
        needle::{NeedleTask, Place},
        synthetic::Needle,
    },
};
use briquette_models::{GenerateOptions, Model, Tokenizer, generate};
use burn::tensor::DType;
use proptest::prelude::*;

fn model_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(model_dir()).unwrap()
}

/// Tasks as a run file lists them, by label.
fn tasks(toml: &str) -> BTreeMap<String, Box<dyn Task>> {
    beside(toml, "").into_iter().map(|task| (task.label, task.task)).collect()
}

/// Tasks of a run file in this folder.
fn beside(toml: &str, folder: impl AsRef<Path>) -> Vec<Asked> {
    asked(&toml::from_str(toml).unwrap(), folder.as_ref())
}

fn task(toml: &str) -> Box<dyn Task> {
    tasks(toml).into_values().next().unwrap()
}

fn samples(toml: &str, seed: u64) -> Vec<Sample> {
    task(toml).samples(&tokenizer(), seed).unwrap()
}

fn refused(toml: &str) -> Error {
    task(toml).samples(&tokenizer(), 0).unwrap_err()
}

/// A family in its variants; every one holds in 700 tokens.
const VARIANTS: &str = r#"
[[needle]]
[[needle]]
keys = 4
[[needle]]
values = 3
[[needle]]
queries = 3
[[needle]]
form = "ruler"
[[needle]]
form = "ruler"
haystack = "noise"
queries = 2
values = 2
[[needle]]
form = "ruler"
haystack = "needles"
key-type = "uuids"
value-type = "uuids"
[[needle]]
haystack = "needles"
value-type = "words"
[[variable-tracking]]
[[variable-tracking]]
form = "value"
[[variable-tracking]]
form = "names"
[[variable-tracking]]
form = "names"
haystack = "noise"
chains = 1
hops = 4
[[common-words]]
example = false
[[frequent-words]]
[[passage-retrieval]]
[[passage-count]]
[[key-value]]
[[key-value]]
form = "json"
[[multi-turn]]
[[multi-turn]]
again = true
form = "short"
haystack = "noise"
"#;

/// The variants with these lengths, depths and numbers of samples.
fn variants(lengths: &[usize], depths: &[u32], samples: usize) -> BTreeMap<String, Box<dyn Task>> {
    let has_depth = |line: &str| {
        ["[[needle", "[[passage-retrieval", "[[key", "[[multi"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let mut toml = String::new();
    for line in VARIANTS.lines() {
        toml += &format!("{line}\n");
        if line.starts_with("[[") {
            toml += &format!("lengths = {lengths:?}\nsamples = {samples}\n");
        }
        if has_depth(line) {
            toml += &format!("depths = {depths:?}\n");
        }
    }
    tasks(&toml)
}

/// Whether the task hides something in text that is cut to the token.
fn is_exact(label: &str) -> bool {
    !["key-value", "common-words", "frequent-words"].iter().any(|start| label.starts_with(start))
}

fn by_id(samples: Vec<Sample>) -> BTreeMap<String, Sample> {
    let count = samples.len();
    let samples: BTreeMap<String, Sample> =
        samples.into_iter().map(|sample| (sample.id.clone(), sample)).collect();
    assert_eq!(samples.len(), count, "two samples of one id");
    samples
}

#[test]
fn labels_say_what_distinguishes_a_task() {
    let labels: Vec<String> = variants(&[700], &[50], 1).into_keys().collect();
    assert_eq!(
        labels,
        [
            "common-words",
            "frequent-words",
            "key-value-json",
            "key-value-lines",
            "multi-turn-3of3",
            "multi-turn-3of3-again-noise",
            "needle",
            "needle-2values-2queries-ruler-noise",
            "needle-3queries",
            "needle-3values",
            "needle-4keys",
            "needle-ruler",
            "needle-ruler-uuid-keys-uuid-values-needles",
            "needle-word-values-needles",
            "passage-count",
            "passage-retrieval",
            "variable-tracking-names-1x4hops-noise",
            "variable-tracking-names-2x2hops",
            "variable-tracking-steps-2x2hops",
            "variable-tracking-value-2x2hops",
        ]
    );
    let own = "[[needle]]\nlabel = \"mine\"\nask = [\"before\"]";
    let tasks = beside(own, "");
    assert_eq!((tasks[0].label.as_str(), &tasks[0].ask[..]), ("mine", &[Question::Before][..]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn samples_have_the_length_asked_for(length in 700..2500_usize, depth in 0..=100_u32, seed in any::<u64>()) {
        let tokenizer = tokenizer();
        for (label, task) in variants(&[length], &[depth], 1) {
            for sample in task.samples(&tokenizer, seed).unwrap() {
                let tokens = sample.tokens();
                if is_exact(&label) {
                    prop_assert_eq!(tokens, length, "{} {}", &label, &sample.id);
                } else {
                    // One more would not have fitted, nor fewer of what takes more tokens: pairs of
                    // words instead of all single ones.
                    let axis = |name: &str| sample.axes.get(name).copied();
                    let all_words = axis("pairs") == Some(64) || axis("uncommon") == Some(54);
                    let full = tokens + 80 > length || all_words;
                    prop_assert!(tokens <= length && full, "{} {}", &label, tokens);
                }
                prop_assert_eq!(sample.context[0], 0);
                prop_assert_eq!(sample.axes["length"], length as u64);
            }
        }
    }
}

#[test]
fn other_lengths_depths_and_samples_change_no_sample() {
    let tokenizer = tokenizer();
    let few = variants(&[900], &[25], 1);
    let many = variants(&[700, 900], &[0, 25, 100], 3);
    for (label, task) in few {
        let few = by_id(task.samples(&tokenizer, 5).unwrap());
        let many = by_id(many[&label].samples(&tokenizer, 5).unwrap());
        assert!(many.len() > few.len());
        for (id, sample) in &few {
            assert_eq!(Some(sample), many.get(id), "{label} {id}");
        }
        let other = by_id(task.samples(&tokenizer, 6).unwrap());
        for (id, sample) in &few {
            assert_ne!(sample.context, other[id].context, "{label} {id}");
        }
        let first: Vec<&Sample> =
            many.values().filter(|sample| sample.id.contains("length=900")).collect();
        for (i, sample) in first.iter().enumerate() {
            assert!(first[..i].iter().all(|other| other.context != sample.context), "{label}");
        }
    }
}

#[test]
fn a_depth_moves_the_answer_and_keeps_the_question() {
    let tokenizer = tokenizer();
    for (label, task) in variants(&[1500], &[0, 50, 100], 1) {
        let samples = by_id(task.samples(&tokenizer, 3).unwrap());
        let at = |depth: u32| samples.get(&format!("length=1500,depth={depth},sample=0"));
        let (Some(start), Some(middle), Some(end)) = (at(0), at(50), at(100)) else {
            assert_eq!(samples.len(), 1, "{label}");
            continue;
        };
        if label == "passage-retrieval" {
            let number = |sample: &Sample| -> usize {
                sample.turns[0].references[0].strip_prefix("Paragraph ").unwrap().parse().unwrap()
            };
            let passages = end.axes["passages"] as usize;
            assert_eq!(number(start), 1);
            assert_eq!(number(end), passages - 1);
            assert!(number(middle).abs_diff(passages / 2) <= 1, "{passages}");
            continue;
        }
        let find = |sample: &Sample| {
            assert_eq!(sample.turns, start.turns, "{label}");
            let text = tokenizer.decode(&sample.context).unwrap();
            let found = text.find(&sample.turns[0].references[0]).unwrap();
            found as f64 / text.len() as f64
        };
        let (start, middle, end) = (find(start), find(middle), find(end));
        assert!(
            start < 0.25 && (middle - 0.5).abs() < 0.2 && end > 0.85,
            "{label} {start} {middle} {end}"
        );
    }
}

#[test]
fn what_is_asked_for_is_in_the_context_once() {
    let tokenizer = tokenizer();
    for (label, task) in variants(&[1200], &[50], 3) {
        for sample in task.samples(&tokenizer, 11).unwrap() {
            let context = tokenizer.decode(&sample.context).unwrap();
            for turn in &sample.turns {
                let question = tokenizer.decode(&turn.question).unwrap();
                for reference in &turn.references {
                    // Of an answer in steps, the last: the others stand at several places.
                    let steps = label.starts_with("variable-tracking-steps");
                    let last = reference.rsplit("= ").next().filter(|_| steps);
                    let reference = last.unwrap_or(reference);
                    let count = context.matches(reference).count();
                    match label.as_str() {
                        "common-words" => assert_eq!(count, 6, "{reference}: {context}"),
                        "frequent-words" => assert!(count >= 5, "{reference}: {context}"),
                        "passage-retrieval" => {
                            assert_eq!(context.matches(&format!("{reference}:")).count(), 1)
                        }
                        "passage-count" => {
                            let mut passages: Vec<&str> = context
                                .split("\n\nParagraph ")
                                .skip(1)
                                .map(|passage| passage.split_once(": ").unwrap().1)
                                .collect();
                            assert_eq!(passages.len() as u64, sample.axes["passages"]);
                            passages.sort_unstable();
                            passages.dedup();
                            assert_eq!(passages.len().to_string(), *reference, "{context}");
                        }
                        // A variable is read by the next of its chain.
                        label if label.contains("names") => {
                            assert!((1..=2).contains(&count), "{context}")
                        }
                        _ => assert_eq!(count, 1, "{label} {reference}: {context}"),
                    }
                    assert!(!question.contains(&format!("{reference}.")), "{label}: {question}");
                }
                if let Some(tokens) = &turn.tokens {
                    assert_eq!(tokenizer.decode(tokens).unwrap().trim(), turn.references[0]);
                    assert_eq!(
                        (turn.max_new_tokens, turn.metrics.first()),
                        (tokens.len(), Metric::ExactMatch)
                    );
                }
            }
        }
    }
}

#[test]
fn a_chain_of_variables_leads_to_its_value() {
    let tokenizer = tokenizer();
    let form = |form: &str| {
        let toml = "[[variable-tracking]]\nlengths = [900]\nchains = 3\nhops = 3\nsamples = 6";
        samples(&format!("{toml}\nform = \"{form}\""), 4)
    };
    for (sample, steps) in form("value").into_iter().zip(form("steps")) {
        let context = tokenizer.decode(&sample.context).unwrap();
        let assigned: BTreeMap<&str, (usize, &str)> = context
            .match_indices("\nVAR ")
            .map(|(at, start)| {
                let rest = &context[at + start.len()..];
                let (name, value) = rest.split_once(" = ").unwrap();
                (name, (at, value.split_once('.').unwrap().0))
            })
            .collect();
        assert_eq!(assigned.len(), 12);
        let question = tokenizer.decode(&sample.turns[0].question).unwrap();
        let mut name = question.split_once("value of VAR ").unwrap().1.split_once('?').unwrap().0;
        let (mut hops, mut before, mut way) = (0, usize::MAX, Vec::new());
        let value = loop {
            let (at, value) = assigned[name];
            way.push(format!("= {value}"));
            assert!(at < before, "{name} is read before it is assigned");
            before = at;
            match value.strip_prefix("VAR ") {
                Some(next) => name = next,
                None => break value,
            }
            hops += 1;
        };
        assert_eq!((hops, value), (3, sample.turns[0].references[0].as_str()));
        // The same chains asked about in steps: their answer is the way from the name in the
        // question.
        let question = tokenizer.decode(&steps.turns[0].question).unwrap();
        let (asked, begun) = question.split_once("? Answer: ").unwrap();
        assert!(asked.ends_with(begun), "{question}");
        assert_eq!(steps.turns[0].references, [way.join(" ")]);
        let tokens = steps.turns[0].tokens.clone().unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap().trim(), way.join(" "));
    }
}

#[test]
fn the_words_asked_for_are_the_most_frequent() {
    let tokenizer = tokenizer();
    for toml in [
        "[[common-words]]\nlengths = [1200, 4096]\nexample = false",
        "[[common-words]]\nlengths = [2000]",
        "[[frequent-words]]\nlengths = [800, 4096]",
        "[[frequent-words]]\nlengths = [2000]\nalpha = 1.5\nvocabulary = 60",
    ] {
        for sample in samples(toml, 1) {
            let context = tokenizer.decode(&sample.context).unwrap();
            let list = context
                .rsplit_once("appear most often.\n")
                .map_or_else(|| context.rsplit_once("coded words. ").unwrap().1, |(_, list)| list);
            let mut counts = BTreeMap::<&str, usize>::new();
            for word in list.split_whitespace().filter(|word| !word.contains('.')) {
                *counts.entry(word).or_default() += 1;
            }
            let turn = &sample.turns[0];
            let (asked, others): (Vec<_>, Vec<_>) = counts
                .iter()
                .partition(|(word, _)| turn.references.iter().any(|reference| reference == *word));
            assert_eq!(asked.len(), turn.references.len());
            let least = asked.iter().map(|(_, count)| **count).min().unwrap();
            let most = others.iter().map(|(_, count)| **count).max().unwrap();
            assert!(least > most, "{toml}: {least} {most}");
            assert!(sample.tokens() <= sample.axes["length"] as usize);
        }
    }
}

#[test]
fn an_excerpt_is_from_its_paragraph_only() {
    let tokenizer = tokenizer();
    for sample in samples("[[passage-retrieval]]\nlengths = [2048]\nsamples = 3", 9) {
        let context = tokenizer.decode(&sample.context).unwrap();
        let question = tokenizer.decode(&sample.turns[0].question).unwrap();
        let excerpt = question.split("\n\n").nth(2).unwrap();
        let holding: Vec<&str> =
            context.split("\n\n").filter(|passage| passage.contains(excerpt)).collect();
        assert_eq!(holding.len(), 1, "{excerpt}");
        let reference = &sample.turns[0].references[0];
        assert!(holding[0].starts_with(&format!("{reference}: ")), "{reference}: {}", holding[0]);
    }
}

#[test]
fn turns_ask_for_different_needles_and_then_again() {
    let samples = samples("[[multi-turn]]\nneedles = 4\nquestions = 2\nagain = true", 2);
    for sample in samples {
        let answers: Vec<&str> =
            sample.turns.iter().map(|turn| turn.references[0].as_str()).collect();
        assert_eq!(answers.len(), 3);
        assert_ne!(answers[0], answers[1]);
        assert_eq!(sample.turns[0], sample.turns[2]);
    }
}

/// A run and `briquette needle` ask the same.
#[test]
fn a_single_answer_is_that_of_the_needle_task() {
    let (tokenizer, haystack) = (tokenizer(), Haystack::built_in());
    let task = NeedleTask::new(&tokenizer, &haystack, 7).unwrap();
    for keys in [1, 4] {
        let spec = Needle { keys, lengths: vec![512], depths: vec![0, 60], ..Needle::default() };
        let samples = by_id(spec.samples(&tokenizer, 7).unwrap());
        assert_eq!(samples.len(), 4);
        for depth in [0, 60] {
            for sample in 0..2 {
                let place = Place { length: 512, depth, needles: keys, sample };
                let prompt = task.prompt(place).unwrap();
                let found = &samples[&format!("length=512,depth={depth},sample={sample}")];
                assert_eq!(found.context, prompt.context);
                assert_eq!(found.turns[0].question, prompt.question);
                assert_eq!(found.turns[0].tokens.as_ref(), Some(&prompt.answer));
            }
        }
    }
}

#[test]
fn a_folder_beside_the_run_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("books")).unwrap();
    let prose: String = (0..400).map(|i| format!("The mill of number x{i}x was old. ")).collect();
    fs::write(dir.path().join("books/a.txt"), prose).unwrap();
    for family in
        ["needle", "variable-tracking", "passage-retrieval", "passage-count", "multi-turn"]
    {
        let toml = format!("[[{family}]]\nhaystack = \"books\"\nlengths = [700]\nsamples = 1");
        let task = beside(&toml, dir.path()).remove(0);
        assert!(task.label.ends_with("-books"), "{}", task.label);
        let samples = task.task.samples(&tokenizer(), 0).unwrap();
        assert!(tokenizer().decode(&samples[0].context).unwrap().contains("The mill of number x"));
        assert_eq!(samples[0].tokens(), 700);
    }
    assert!(matches!(refused("[[needle]]\nhaystack = \"books\""), Error::Read { .. }));
}

#[test]
fn a_run_file_is_read_strictly() {
    let refused = |toml: &str| toml::from_str::<Tasks>(toml).unwrap_err().to_string();
    let unknown = refused("[[needle]]\nlengths = [512]\nlenghts = [1]");
    assert!(unknown.contains("line 3") && unknown.contains("`lenghts`"), "{unknown}");
    let unknown = refused("[[needles]]");
    assert!(unknown.contains("`needles`") && unknown.contains("`variable-tracking`"), "{unknown}");
    assert!(refused("[[needle]]\nform = \"long\"").contains("`ruler`"));
    assert!(refused("[[needle]]\nsamples = -1").contains("line 2"));
    // What is written can be read.
    let all: Tasks = toml::from_str(VARIANTS).unwrap();
    assert_eq!(toml::from_str::<Tasks>(&toml::to_string(&all).unwrap()).unwrap(), all);
}

#[test]
fn what_cannot_be_built_is_refused_with_its_numbers() {
    let parameters = [
        ("[[needle]]\nlengths = []", "lengths: no value"),
        ("[[needle]]\nlengths = [512, 512]", "512 is given twice"),
        ("[[needle]]\ndepths = [101]", "101 %"),
        ("[[needle]]\ndepths = []", "depths: no value"),
        ("[[needle]]\nsamples = 0", "samples: 0 given"),
        ("[[needle]]\nkeys = 0", "keys: 0 given"),
        ("[[needle]]\nask = []", "ask: no value"),
        ("[[variable-tracking]]\nchains = 0", "chains"),
        ("[[variable-tracking]]\nhaystack = \"needles\"", "`needles`"),
        ("[[common-words]]\ncommon-repeats = 2\nuncommon-repeats = 2", "not more than the 2"),
        ("[[frequent-words]]\nalpha = 1.0", "above 1"),
        ("[[frequent-words]]\nalpha = nan", "above 1"),
        ("[[frequent-words]]\nvocabulary = 4", "at least 5"),
        ("[[frequent-words]]\nvocabulary = 5000", "5000 words"),
        ("[[passage-retrieval]]\nhaystack = \"noise\"", "`noise`"),
        ("[[passage-retrieval]]\nsentences = 5", "at most 4"),
        ("[[passage-count]]\nrepeated = 91", "91 %"),
        ("[[key-value]]\npairs = 1", "pairs: 1 given"),
        ("[[multi-turn]]\nneedles = 2", "3 of 2 needles"),
    ];
    for (toml, part) in parameters {
        let error = refused(toml);
        assert!(matches!(error, Error::TaskParameter { .. }), "{toml}: {error}");
        assert!(error.to_string().contains(part), "{toml}: {error}");
    }
    for toml in [
        "[[needle]]\nlengths = [60]",
        "[[needle]]\nkeys = 2000000000",
        "[[needle]]\nkeys = 2000000000\nkey-type = \"uuids\"",
        "[[needle]]\nvalues = 60",
        "[[variable-tracking]]\nlengths = [40]",
        "[[variable-tracking]]\nhops = 9000000000",
        "[[common-words]]\nlengths = [512]",
        "[[common-words]]\nexample = false\ncommon-repeats = 4000000000",
        "[[frequent-words]]\nlengths = [180]",
        "[[frequent-words]]\nalpha = 30.0",
        "[[passage-retrieval]]\nlengths = [300]",
        "[[passage-count]]\nlengths = [150]",
        "[[key-value]]\nlengths = [20]",
        "[[key-value]]\nlengths = [250]\nform = \"json\"",
        "[[multi-turn]]\nlengths = [200]",
    ] {
        let error = refused(toml);
        assert!(matches!(error, Error::PromptTooShort { .. }), "{toml}: {error}");
        let Error::PromptTooShort { length, fixed, .. } = error else { unreachable!() };
        assert!(fixed > length.saturating_sub(2), "{toml}: {fixed} of {length}");
    }
    let error = refused("[[needle]]\nkeys = 4033\nlengths = [200000]");
    assert!(matches!(error, Error::TooManyWords { wanted: 4033, words: 4032, .. }), "{error}");
    let error = refused("[[passage-retrieval]]\nlengths = [20000]");
    assert!(matches!(error, Error::HaystackUsedUp { sentences: 286, .. }), "{error}");
}

#[test]
fn many_keys_are_pairs_of_words() {
    let tokenizer = tokenizer();
    let lines = |pairs: &str| {
        let toml = format!("[[key-value]]\nlengths = [4096]\nsamples = 1\ndepths = [50]\n{pairs}");
        let sample = samples(&toml, 0).remove(0);
        (tokenizer.decode(&sample.context).unwrap(), sample.axes["pairs"])
    };
    let (text, pairs) = lines("");
    assert!(pairs > 64 && text.lines().skip(1).all(|line| line.contains('-')), "{text}");
    let (text, pairs) = lines("pairs = 64");
    assert!(pairs == 64 && !text.contains('-'), "{text}");
    let many = samples("[[needle]]\nkeys = 65\nlengths = [4096]\nsamples = 1\ndepths = [50]", 0);
    let text = tokenizer.decode(&many[0].context).unwrap();
    let keys: Vec<&str> = text
        .split("magic numbers is ")
        .skip(1)
        .map(|needle| needle.split_once(':').unwrap().0)
        .collect();
    assert_eq!(keys.len(), 65);
    assert!(keys.iter().all(|key| key.split('-').count() == 2), "{keys:?}");
}

/// The decoded prompts of one seed. `UPDATE_GOLDEN=1` writes them anew.
#[test]
fn prompts_are_the_committed_ones() {
    let tokenizer = tokenizer();
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/generated");
    for (label, task) in variants(&[700], &[50], 1) {
        let sample = task.samples(&tokenizer, 0).unwrap().remove(0);
        let mut text = format!("{}\n{:?}\n", sample.id, sample.axes);
        text += &format!("--- context\n{}\n", tokenizer.decode(&sample.context).unwrap());
        for turn in &sample.turns {
            text += &format!("--- question\n{}|\n", tokenizer.decode(&turn.question).unwrap());
            text += &format!(
                "--- answer: {:?}, at most {} tokens, stop {:?}\n{}\n",
                turn.metrics.first(),
                turn.max_new_tokens,
                turn.stop,
                turn.references.join("\n")
            );
        }
        let path = dir.join(format!("{label}.txt"));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{label}: {error}"));
        assert_eq!(text, expected, "{label}");
    }
}

/// Shares of right answers and right tokens of the embedded model on a full cache.
fn answered(task: &dyn Task) -> (f64, f64, usize) {
    let tokenizer = tokenizer();
    let model =
        Model::load(model_dir(), &briquette::device::open("flex").unwrap(), DType::F32).unwrap();
    let (mut score, mut right, mut turns) = (0.0, 0.0, 0);
    for sample in task.samples(&tokenizer, 0).unwrap() {
        let mut cache = model.cache(Policy::full()).unwrap();
        let mut prompt = sample.context.clone();
        for turn in &sample.turns {
            prompt.extend(&turn.question);
            let options = GenerateOptions {
                max_new_tokens: turn.max_new_tokens,
                ..GenerateOptions::default()
            };
            let (said, _) = generate(&model, &prompt, &mut cache, &options, |_| {}).unwrap();
            let tokens = &said.tokens[..said.tokens.len().min(turn.max_new_tokens)];
            let text = tokenizer.decode(tokens).unwrap();
            score += turn.metrics.first().score(&text, &turn.references, &turn.classes);
            let expected = turn.tokens.as_ref().unwrap();
            let matching = expected.iter().zip(tokens).filter(|(a, b)| a == b).count();
            right += matching as f64 / expected.len() as f64;
            turns += 1;
            // The token generated last has not been given to the model yet.
            prompt = said.tokens.last().copied().into_iter().collect();
        }
    }
    (score / turns as f64, right / turns as f64, turns)
}

#[test]
fn the_embedded_model_finds_one_needle_among_sixteen_and_follows_a_chain() {
    for toml in [
        "[[needle]]\nlengths = [700]\ndepths = [10, 90]\nkeys = 16",
        "[[variable-tracking]]\nlengths = [512]",
    ] {
        let (score, right, turns) = answered(&*task(toml));
        assert_eq!(turns, 4);
        assert!(score >= 0.75 && right >= 0.8, "{toml}: {score} {right}");
    }
}
