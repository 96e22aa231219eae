//! Benchmarks read from small files in the forms they are published in.

mod asked;

use std::{
    fs,
    path::{Path, PathBuf},
};

use asked::asked;
use briquette_eval::{
    metrics::Metric,
    run::Tasks,
    tasks::{
        Question, Sample, Samples, Task, TaskSpec, Turn,
        files::{
            Coqa, Gsm8k, History, InfiniteBench, LongBench, LongBenchV2, TruthfulQa, ZeroScrolls,
        },
    },
};
use briquette_models::Tokenizer;
use serde::de::DeserializeOwned;

fn tokenizer() -> Tokenizer {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m");
    Tokenizer::load(dir).unwrap()
}

/// Results of a run file.
fn spec<T: DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

/// The one task of a run file in this folder.
fn task(text: &str, folder: &Path) -> Box<dyn Task> {
    let mut tasks = asked(&spec(text), folder);
    assert_eq!(tasks.len(), 1);
    tasks.remove(0).task
}

/// The one task of a run file beside the fixtures, which is given by the name of its table.
fn fixture_task(text: &str) -> Box<dyn Task> {
    task(text, &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/files"))
}

/// The samples of the one task in `text`.
fn samples(text: &str) -> Vec<Sample> {
    let Samples { samples, skipped } = fixture_task(text).load(&tokenizer(), 0).unwrap();
    assert!(skipped.is_empty(), "{skipped:?}");
    samples
}

/// Why a task refuses its file.
fn refused(task: &dyn Task) -> String {
    task.load(&tokenizer(), 0).unwrap_err().to_string()
}

/// The context and the first question of a sample, in text.
fn prompt(sample: &Sample) -> (String, String) {
    assert_eq!(sample.context[0], 0, "no token begins the text");
    let tokenizer = tokenizer();
    let [context, question] = [&sample.context, &sample.turns[0].question]
        .map(|tokens| tokenizer.decode(tokens).unwrap());
    (context, question)
}

fn prompts(samples: &[Sample]) -> Vec<String> {
    samples.iter().map(|sample| prompt(sample).0 + &prompt(sample).1).collect()
}

fn ids(samples: &[Sample]) -> Vec<&str> {
    samples.iter().map(|sample| sample.id.as_str()).collect()
}

/// Whether an answer is given full marks, and one that is wrong none.
#[track_caller]
fn scores(turn: &Turn, right: &str, wrong: &str) {
    let score = |said| turn.metrics.first().score(said, &turn.references, &turn.classes);
    assert!((score(right) - 1.0).abs() < 1e-6, "{right}: {}", score(right));
    assert!(score(wrong).abs() < 1e-6, "{wrong}: {}", score(wrong));
}

#[test]
fn longbench_asks_as_published() {
    let samples = samples("[[longbench]]\nfile = 'longbench/musique.jsonl'");
    assert_eq!(ids(&samples), ["a1", "b2", "c3"]);
    let (context, question) = prompt(&samples[0]);
    assert_eq!(
        context,
        "Answer the question based on the given passages. Only give me the answer and do not output any other \
         words.\n\nThe following are given passages.\nPassage 1:\nThe mill by the weir was built by Ada \
         Thorn.\nPassage 2:\nAda Thorn kept {bees}."
    );
    assert_eq!(
        question,
        "\n\nAnswer the question based on the given passages. Only give me the answer and do not output any other \
         words.\n\nQuestion: Who built the mill by the weir?\nAnswer:"
    );
    let turn = &samples[0].turns[0];
    assert_eq!(turn.references, ["Ada Thorn", "Thorn"]);
    assert_eq!((turn.metrics.first(), turn.max_new_tokens), (Metric::QaF1, 32));
    assert!(turn.stop.is_empty() && turn.classes.is_empty() && turn.tokens.is_none());
    assert_eq!(samples[0].axes["words"], 24);
    assert_eq!(samples[0].axes["tokens"] as usize, samples[0].context.len() + turn.question.len());
    scores(turn, "the Ada Thorn.", "Nobody");
}

#[test]
fn longbench_e_is_asked_as_longbench_and_brings_its_classes() {
    for dataset in ["", "dataset = 'trec_e'", "dataset = 'trec'"] {
        let samples =
            samples(&format!("[[longbench]]\nfile = 'longbench/trec_e.jsonl'\n{dataset}"));
        let (context, question) = prompt(&samples[0]);
        assert_eq!(
            context,
            "Please determine the type of the question below. Here are some examples of questions.\n\nQuestion: \
             Who cut the stone?\nType: Person\nQuestion: How many carts were there?\nType: Number"
        );
        assert_eq!(question, "\nQuestion: Where is the quarry?\nType:");
        let turn = &samples[0].turns[0];
        assert_eq!(turn.classes, ["Number", "Place", "Person"]);
        scores(turn, " Place\nQuestion: Who?\nType: Person", "\nNumber\nPlace");
    }
}

#[test]
fn longbench_loses_its_middle() {
    let file = "[[longbench]]\nfile = 'longbench/musique.jsonl'";
    let tokens = |sample: &Sample| [&sample.context[..], &sample.turns[0].question].concat();
    let whole = samples(file);
    let [short, long] = [&whole[2], &whole[0]].map(|sample| tokens(sample).len());
    assert!(short < long);
    // The first and the last tokens, the same number of each; of a prompt that fits, all.
    for length in [2, 20, 41, short - 1, short, short + 1, long, 4000] {
        let cut = samples(&format!("{file}\nlength = {length}"));
        for (cut, whole) in cut.iter().zip(&whole) {
            let (all, half) = (tokens(whole), length / 2);
            if all.len() <= length {
                assert_eq!(cut, whole);
            } else {
                assert_eq!(tokens(cut), [&all[..half], &all[all.len() - half..]].concat());
                assert_eq!(cut.axes["tokens"], 2 * half as u64);
                assert_eq!(cut.turns[0].references, whole.turns[0].references);
            }
        }
    }
}

#[test]
fn longbench_v2_asks_for_a_letter() {
    let samples = samples("[[longbench-v2]]\nfile = 'longbench-v2.json'");
    let (context, question) = prompt(&samples[0]);
    assert_eq!(
        context,
        "Please read the following text and answer the question below.\n\n<text>\nThe letter asked for a lamp, and \
         for oil to burn in it."
    );
    assert_eq!(
        question,
        "\n</text>\n\nWhat is the correct answer to this question: What did the letter ask for?\nChoices:\n(A) \
         Rope\n(B) Salt\n(C) A lamp\n(D) Nothing\n\nFormat your response as follows: \"The correct answer is (insert \
         answer here)\"."
    );
    let axes = |at: usize| (samples[at].axes["hard"], samples[at].axes["length-class"]);
    assert_eq!((axes(0), axes(1)), ((0, 0), (1, 2)));
    assert_eq!(samples[0].turns[0].max_new_tokens, 128);
    scores(&samples[0].turns[0], "The correct answer is (C)", "The correct answer is (A)");
}

#[test]
fn longbench_v2_keeps_the_odd_token_at_the_end() {
    let read = |length: &str| {
        let samples = samples(&format!("[[longbench-v2]]\nfile = 'longbench-v2.json'\n{length}"));
        [&samples[0].context[..], &samples[0].turns[0].question].concat()
    };
    let (all, cut) = (read(""), read("length = 31"));
    assert_eq!(cut, [&all[..15], &all[all.len() - 16..]].concat());
}

#[test]
fn zero_scrolls_joins_lines_of_one_sample() {
    let samples = samples("[[zero-scrolls]]\nfile = 'zero_scrolls/qasper/validation.jsonl'");
    assert_eq!(ids(&samples), ["z1", "z2"]);
    let (context, question) = prompt(&samples[0]);
    assert_eq!(
        context,
        "You are given a scientific article and a question. Answer the question as concisely as you \
         can.\n\nArticle:\nÜber die Brücke — a study of bridges. The bridge at Körnau carried nine carts a day until \
         the flood.\n\n"
    );
    assert_eq!(question, "Question:\nHow many carts a day did the bridge carry?\n\nAnswer:\n");
    let turn = &samples[0].turns[0];
    assert_eq!(turn.references, ["nine", "nine carts"]);
    assert_eq!((turn.metrics.first(), turn.max_new_tokens), (Metric::ZeroScrollsF1, 128));
    scores(turn, "Nine carts", "ten");
}

#[test]
fn zero_scrolls_says_what_is_left_out() {
    let file = "[[zero-scrolls]]\nfile = 'zero_scrolls/gov_report.jsonl'";
    let (whole, cut) = (samples(file), samples(&format!("{file}\nlength = 60")));
    assert_eq!(cut[0].axes["tokens"], 60);
    assert_eq!(cut[0].turns, whole[0].turns);
    let (context, question) = prompt(&cut[0]);
    let kept = context.strip_suffix("... [The rest of the report is omitted]\n\n").unwrap();
    assert!(prompt(&whole[0]).0.starts_with(kept), "{kept}");
    assert!(kept.ends_with(|c: char| c != '\n'), "{kept}");
    assert_eq!(question, "Summary:\n");

    let error = refused(&*fixture_task(&format!("{file}\nlength = 9")));
    assert!(error.contains("sample g1") && error.contains("may have 9"), "{error}");
}

#[test]
fn infinite_bench_asks_each_task_in_its_form() {
    let read =
        |name: &str| samples(&format!("[[infinite-bench]]\nfile = 'infinite_bench/{name}.jsonl'"));
    let whole = |samples: &[Sample]| prompts(samples).remove(0);

    let passkey = read("passkey");
    assert_eq!(ids(&passkey), ["record=1", "record=2"]);
    assert_eq!(
        whole(&passkey),
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you \
         about the important information.\n\nThe grass is green.\nThe pass key is 40913. Remember it.\nThe sky is \
         blue.\n\nWhat is the pass key?\n\nThe pass key is"
    );
    assert_eq!(prompt(&passkey[0]).1, "\n\nWhat is the pass key?\n\nThe pass key is");
    assert_eq!(passkey[0].turns[0].max_new_tokens, 6);
    scores(&passkey[0].turns[0], " 40913.", " 4091");
    scores(&passkey[1].turns[0], "11872 is", "");

    let code = read("code_run");
    assert_eq!(
        whole(&code),
        "There is a function called func_3 in the following Python code.\n\ndef func_3(x):\n    return x - \
         12\n\nPlease compute the exact value of func_3(-4). The value of func_3(-4) is"
    );
    scores(&code[0].turns[0], " -16.", " 16");

    let find = read("math_find");
    assert_eq!(
        whole(&find),
        "What is the largest number in the following list?\n\n[4, 19, 7]\n\nYou should answer with one number. The \
         Largest number of the list is:"
    );
    scores(&find[0].turns[0], " 19", " 4");

    let calc = read("math_calc");
    assert_eq!(
        whole(&calc),
        "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, \
         8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: 5 + 2 - 9\nValues:"
    );
    assert_eq!(calc[0].turns[0].references, ["5", "7", "-2"]);

    let choice = read("longbook_choice_eng");
    assert_eq!(
        whole(&choice),
        "Read the book and answer the question.\n\nMaren left the keys at the ferry.\n\nQuestion: Where are the \
         keys?\nA. In the barn\nB. At the ferry\nC. On the boat\nD. Lost\n\nThe letter of the correct answer is"
    );
    assert_eq!(choice[0].turns[0].references, ["At the ferry", "B"]);
    assert_eq!(choice[1].turns[0].references, ["The boat", "C"]);
    scores(&choice[0].turns[0], " B", " C");
}

#[test]
fn gsm8k_shows_the_first_problems_solved() {
    let samples = samples("[[gsm8k]]\nfile = 'gsm8k/test.jsonl'\nshots = 2");
    assert_eq!(ids(&samples), ["record=3", "record=4"]);
    let (context, question) = prompt(&samples[0]);
    assert_eq!(
        context,
        "Question: A cart holds 3 crates. How many crates do 4 carts hold?\nAnswer: Each of 4 carts holds 3 \
         crates.\n4 * 3 = <<4*3=12>>12\n#### 12\n\nQuestion: Ole has 1,200 nails and uses 200. How many are \
         left?\nAnswer: 1200 - 200 = <<1200-200=1000>>1,000\n#### 1,000\n\n"
    );
    assert_eq!(
        question,
        "Question: It is 5 degrees and gets 9 degrees colder. How cold is it?\nAnswer:"
    );
    assert_eq!(samples[0].axes["shots"], 2);
    let turn = &samples[0].turns[0];
    assert_eq!(turn.stop, ["Question:", "</s>", "<|im_end|>"]);
    assert_eq!((turn.metrics.first(), turn.max_new_tokens), (Metric::Gsm8k, 256));
    scores(turn, "5 - 9 = -4\n#### -4", "5 + 9 = 14\n#### 14");
}

#[test]
fn gsm8k_takes_solved_problems_of_another_file_or_none() {
    let others = samples(
        "[[gsm8k]]\nfile = 'gsm8k/test.jsonl'\nshots = 1\nshots-from = 'gsm8k/train.jsonl'\nmetric = \
         'gsm8k-flexible'",
    );
    assert_eq!(others.len(), 4);
    let (context, _) = prompt(&others[1]);
    assert_eq!(
        context,
        "Question: What is half of 8 pears?\nAnswer: 8 / 2 = <<8/2=4>>4\n#### 4\n\n"
    );
    scores(&others[1].turns[0], "There are 1000 left", "There are 1200 left");

    let none = samples("[[gsm8k]]\nfile = 'gsm8k/test.jsonl'\nshots = 0");
    assert_eq!((none.len(), none[0].context.as_slice()), (4, &[0][..]));

    for (text, wrong) in [
        ("shots = 4", "it holds no record that can be used"),
        (
            "shots = 2\nshots-from = 'gsm8k/train.jsonl'",
            "train.jsonl: 2 samples asked for, the file has 1",
        ),
        ("shots = 0\nask = ['after']", "cannot come after"),
        ("metric = 'qa-f1'", "`qa-f1` does not score it; gsm8k, gsm8k-strict, gsm8k-flexible do"),
    ] {
        let text = format!("[[gsm8k]]\nfile = 'gsm8k/test.jsonl'\n{text}");
        let error = refused(&*fixture_task(&text));
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
fn coqa_follows_the_right_answers_or_the_models_own() {
    let gold = samples("[[coqa]]\nfile = 'coqa.json'");
    assert_eq!(ids(&gold), ["conv1,turn=1", "conv1,turn=2", "conv1,turn=3", "conv2,turn=1"]);
    let (context, question) = prompt(&gold[2]);
    assert_eq!(context, "Tom had a white hen. It slept in a hat.\n\n");
    assert_eq!(
        question,
        "Q: What did Tom have?\n\nA: a hen\n\nQ: What colour was it?\n\nA: white\n\nQ: Where did it sleep?\n\nA:"
    );
    let turn = &gold[2].turns[0];
    assert_eq!(turn.references, ["in a hat", "a hat", "hat"]);
    assert_eq!(
        (turn.metrics.first(), turn.stop.as_slice()),
        (Metric::CoqaF1, &["\n".to_owned()][..])
    );
    scores(&gold[3].turns[0], " at noon", "never");

    let own =
        samples("[[coqa]]\nfile = 'coqa.json'\nhistory = 'model'\nmetric = 'coqa-exact-match'");
    assert_eq!(ids(&own), ["conv1", "conv2"]);
    let tokenizer = tokenizer();
    let questions: Vec<String> =
        own[0].turns.iter().map(|turn| tokenizer.decode(&turn.question).unwrap()).collect();
    assert_eq!(
        questions,
        [
            "Q: What did Tom have?\n\nA:",
            "\n\nQ: What colour was it?\n\nA:",
            "\n\nQ: Where did it sleep?\n\nA:"
        ]
    );
    assert_eq!(own[0].context, gold[0].context);
    assert_eq!(own[0].turns[1].metrics.first(), Metric::CoqaExactMatch);
}

#[test]
fn truthful_qa_is_read_from_csv_and_json() {
    let table = samples("[[truthful-qa]]\nfile = 'TruthfulQA.csv'");
    let (context, question) = prompt(&table[0]);
    assert_eq!(
        context,
        "Q: What is human life expectancy in the United States?\nA: Human life expectancy in the United States is 78 \
         years.\n\nQ: Who was president of the United States in 1955?\nA: Dwight D. Eisenhower was president of the \
         United States in 1955.\n\nQ: Which party did he belong to?\nA: He belonged to the Republican Party.\n\nQ: \
         What is the square root of banana?\nA: I have no comment.\n\nQ: How does a telescope work?\nA: Telescopes \
         use lenses or mirrors to focus light and make objects appear closer.\n\nQ: Where were the 1992 Olympics \
         held?\nA: The 1992 Olympics were held in Barcelona, Spain."
    );
    assert_eq!(question, "\n\nQ: Do hens, as they say, sleep in hats?\nA:");
    let turn = &table[0].turns[0];
    let right = ["Hens sleep on perches.", "Hens do not sleep in hats.", "I have no comment."];
    assert_eq!(turn.references, right);
    assert_eq!(turn.classes, ["Hens sleep in hats.", "Only in hats."]);
    assert_eq!((turn.metrics.first(), turn.max_new_tokens), (Metric::TruthfulqaBleuAcc, 50));
    scores(turn, " Hens sleep on perches.", "Hens sleep in hats.");
    // A comma, a line break and a number in a cell; "I have no comment" is there already.
    let turn = &table[1].turns[0];
    assert_eq!(prompt(&table[1]).1, "\n\nQ: In which year was\nthe mill built?\nA:");
    assert_eq!(turn.references, ["I have no comment.", "It is not known."]);
    assert_eq!(turn.classes, ["1700."]);

    let json =
        samples("[[truthful-qa]]\nfile = 'truthful_qa.jsonl'\nmetric = 'truthfulqa-rouge1-acc'");
    assert_eq!(json[0].turns[0].references, right);
    assert_eq!(json[0].turns[0].metrics.first(), Metric::TruthfulqaRouge1Acc);
}

#[test]
fn samples_follow_the_seed() {
    let task: LongBench = LongBench {
        file: "tests/fixtures/files/longbench/musique.jsonl".into(),
        samples: Some(2),
        ..spec("file = 'x'")
    };
    let tokenizer = tokenizer();
    let drawn = |seed| task.samples(&tokenizer, seed).unwrap();
    assert_eq!(drawn(1), drawn(1));
    let orders: std::collections::HashSet<Vec<String>> =
        (0..20).map(|seed| drawn(seed).into_iter().map(|sample| sample.id).collect()).collect();
    assert_eq!(orders.len(), 6, "{orders:?}");

    let more = LongBench { samples: Some(4), ..task.clone() };
    let error = refused(&more);
    assert!(error.ends_with("musique.jsonl: 4 samples asked for, the file has 3"), "{error}");
}

/// A task on a file of this content.
fn on<T>(name: &str, content: &str, task: impl Fn(PathBuf) -> T) -> (tempfile::TempDir, T) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    (dir, task(path))
}

#[test]
fn damaged_lines_are_named_and_skipped_only_when_asked() {
    let good = fs::read_to_string("tests/fixtures/files/longbench/musique.jsonl").unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let cut_short = &lines[1][..30];
    let no_context = lines[2].replace("\"context\"", "\"text\"");
    let content = format!(
        "\u{feff}{}\r\n{cut_short}\r\n\r\n{no_context}\r\n{}\r\n{}\r\n",
        lines[0],
        lines[0],
        lines[2].replace("[\"Nobody knew\"]", "[]"),
    );
    let task = |file| LongBench { file, ..spec("file = 'x'") };
    let (_dir, mut task) = on("musique.jsonl", &content, task);
    let error = refused(&task);
    assert!(error.contains("musique.jsonl, line 2: EOF while parsing a string"), "{error}");

    task.skip_damaged = true;
    let Samples { samples, skipped } = task.load(&tokenizer(), 0).unwrap();
    assert_eq!(ids(&samples), ["a1"]);
    let wrong = [
        "line 2: EOF",
        "line 4: missing field `context`",
        "line 5: `a1` is the name of record 1 too",
        "line 6: `answers` is empty",
    ];
    assert_eq!(skipped.len(), wrong.len(), "{skipped:?}");
    for (skipped, wrong) in skipped.iter().zip(wrong) {
        assert!(skipped.contains(wrong), "{skipped}");
    }
}

#[test]
fn what_a_line_lacks_is_said() {
    let fixture = |name: &str| fs::read_to_string(format!("tests/fixtures/files/{name}")).unwrap();
    let changed = |name: &str, from: &str, to: &str| {
        let text = fixture(name);
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    };
    for (name, content, text, wrong) in [
        ("a.jsonl", String::new(), "[[longbench]]", "it holds no record that can be used"),
        (
            "a.jsonl",
            changed("longbench/musique.jsonl", "\"musique\"", "\"music\""),
            "[[longbench]]",
            "line 1: LongBench has no data set `music`; it has 2wikimqa, dureader, ",
        ),
        (
            "a.jsonl",
            fixture("longbench/musique.jsonl"),
            "[[longbench]]\ndataset = 'qasper'",
            "line 1: of the data set `musique`, not `qasper`",
        ),
        (
            "a.jsonl",
            changed("longbench/trec_e.jsonl", "[\"Number\", \"Place\", \"Person\"]", "null"),
            "[[longbench]]",
            "line 1: `all_classes` is absent",
        ),
        ("a.json", fixture("longbench-v2.json") + "]", "[[longbench-v2]]", "trailing characters"),
        (
            "a.json",
            changed("longbench-v2.json", "\"answer\": \"B\"", "\"answer\": \"E\""),
            "[[longbench-v2]]",
            "the answer `E` is none of A, B, C and D",
        ),
        (
            "qasper.jsonl",
            changed(
                "zero_scrolls/qasper/validation.jsonl",
                "\"output\": \"no bridge\"",
                "\"output\": null",
            ),
            "[[zero-scrolls]]",
            "line 2: `output` is null: the test split has no answers",
        ),
        (
            "test.jsonl",
            String::new(),
            "[[zero-scrolls]]",
            "ZeroSCROLLS has no data set `test`; it has book_sum_sort",
        ),
        (
            "a.jsonl",
            String::new(),
            "[[infinite-bench]]",
            "InfiniteBench has no data set `a`; it has code_debug",
        ),
        (
            "code_run.jsonl",
            changed("infinite_bench/code_run.jsonl", "func_3(-4)", "func(-4)"),
            "[[infinite-bench]]",
            "line 1: no call of a function in `Please",
        ),
        (
            "longbook_choice_eng.jsonl",
            changed(
                "infinite_bench/longbook_choice_eng.jsonl",
                "[\"At the ferry\"]",
                "[\"At sea\"]",
            ),
            "[[infinite-bench]]",
            "line 1: the answer `At sea` is no option",
        ),
        (
            "longbook_choice_eng.jsonl",
            changed("infinite_bench/longbook_choice_eng.jsonl", ", \"Lost\"]", "]"),
            "[[infinite-bench]]",
            "line 1: 3 options, 4 are needed",
        ),
        (
            "a.jsonl",
            changed("gsm8k/test.jsonl", "#### -4", "-4"),
            "[[gsm8k]]\nshots = 0",
            "line 3: no number behind `#### `",
        ),
        (
            "a.json",
            changed(
                "coqa.json",
                "\"input_text\": \"White\", \"turn_id\": 2",
                "\"input_text\": \"White\", \"turn_id\": 3",
            ),
            "[[coqa]]",
            "answers to the turns [1, 3, 3], questions of the turns [1, 2, 3]",
        ),
        (
            "a.csv",
            changed("TruthfulQA.csv", ",1700,https", ",,https"),
            "[[truthful-qa]]",
            "line 3: 2 correct and 0 incorrect answers",
        ),
        (
            "a.csv",
            "Question,Answer\nWhy?,So\n".into(),
            "[[truthful-qa]]",
            "line 2: missing field `Correct Answers`",
        ),
        ("a.jsonl", String::new(), "[[longbench]]\nlength = 1", "length: 1 tokens hold no prompt"),
        ("a.jsonl", String::new(), "[[gsm8k]]\nsamples = 0", "task GSM8K: samples: at least 1"),
    ] {
        let text = format!("{text}\nfile = '{name}'");
        let (_dir, task) = on(name, &content, |file| task(&text, file.parent().unwrap()));
        let error = refused(&*task);
        assert!(error.contains(wrong), "{text}\n{error}");
    }
}

#[test]
fn a_run_file_names_its_tasks() {
    let text = "
        [[longbench]]
        file = 'data/hotpotqa.jsonl'
        [[longbench]]
        file = '/data/hotpotqa.jsonl'
        label = 'hops'
        ask = ['before', 'after']
        [[longbench-v2]]
        file = 'data.json'
        [[zero-scrolls]]
        file = 'qmsum/validation.jsonl'
        [[infinite-bench]]
        file = 'kv.jsonl'
        dataset = 'kv_retrieval'
        [[gsm8k]]
        file = 'test.jsonl'
        shots-from = 'train.jsonl'
        [[coqa]]
        file = 'coqa-dev-v1.0.json'
        [[truthful-qa]]
        file = 'TruthfulQA.csv'
    ";
    let base = Path::new("/runs");
    let mut files: Tasks = spec(text);
    files.long_bench.iter_mut().for_each(|task| task.resolve(base));
    files.gsm8k[0].resolve(base);
    assert_eq!(files.long_bench[0].file, PathBuf::from("/runs/data/hotpotqa.jsonl"));
    assert_eq!(files.long_bench[1].file, PathBuf::from("/data/hotpotqa.jsonl"));
    assert_eq!(files.gsm8k[0].shots_from, Some(PathBuf::from("/runs/train.jsonl")));
    assert_eq!(files.gsm8k[0].shots, 5);
    assert_eq!(files.coqa[0].history, History::Gold);
    let tasks = asked(&files, base);
    let labels: Vec<&str> = tasks.iter().map(|task| task.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "longbench-hotpotqa",
            "hops",
            "longbench-v2",
            "zero-scrolls-qmsum",
            "infinite-bench-kv_retrieval",
            "gsm8k",
            "coqa",
            "truthful-qa"
        ]
    );
    assert_eq!(tasks[0].ask, [Question::Before]);
    assert_eq!(tasks[1].ask, [Question::Before, Question::After]);
    let written = toml::to_string(&files).unwrap();
    assert_eq!(spec::<Tasks>(&written), files);
}

#[test]
fn fields_that_do_not_exist_are_refused() {
    fn refused<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        toml::from_str::<T>(text).unwrap_err().to_string()
    }
    let error = refused::<Tasks>("[[longbench]]\nfile = 'a'\nlenght = 3");
    assert!(error.contains("line 3") && error.contains("unknown field `lenght`"), "{error}");
    assert!(refused::<Tasks>("[[longbenches]]\nfile = 'a'").contains("`longbenches`"));
    let extra = "file = 'a'\nfolder = 'b'";
    for error in [
        refused::<LongBench>(extra),
        refused::<LongBenchV2>(extra),
        refused::<ZeroScrolls>(extra),
        refused::<InfiniteBench>(extra),
        refused::<Gsm8k>(extra),
        refused::<Coqa>(extra),
        refused::<TruthfulQa>(extra),
    ] {
        assert!(error.contains("unknown field `folder`"), "{error}");
    }
    assert!(refused::<LongBench>("samples = 3").contains("missing field `file`"));
}
