//! A model and questions that are not ours: forms of prompts, tasks from any file, predictions made
//! elsewhere.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use common::{
    assert_says, file, outputs, read, records_without, refused, refused_with, run_file, stdout,
    text,
};
use serde_json::{Value, json};

const EMBER: &str = r#"
introduction = "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you about the numbers afterwards.\n"
needle = "\nOne of the special magic numbers is {word}:{number}."
question = "\nWhat is the special magic number for {word} mentioned in the provided text?"
answer = " The special magic number is {word}:{number}"
"#;

/// The answers of a small grid, without the seconds they took.
fn needle(more: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let args = "needle --lengths 256 --depths 0,100 --samples 1 --policies tova --budgets 64 --out";
    stdout(args.split(' ').chain([text(dir.path())]).chain(more.iter().copied()));
    // A form is part of the label of a task, and a folder of that of a model.
    let differs = |key: &str| key.ends_with("seconds") || ["task", "model"].contains(&key);
    records_without(&dir.path().join("results.jsonl"), differs)
}

#[test]
fn needles_are_asked_for_in_any_form() {
    let dir = tempfile::tempdir().unwrap();
    let ours = needle(&[]);
    let own = file(dir.path(), "own.toml", EMBER);
    assert_eq!(needle(&["--form", text(&own)]), ours);
    assert_eq!(needle(&["--form", "ember"]), ours);
    let ruler = needle(&["--form", "ruler"]);
    assert_ne!(ruler, ours);

    let small = "needle --lengths 128 --depths 50 --samples 1 --policies tova --budgets 48";
    let small = small.split(' ');
    assert_says(&refused(small.clone().chain(["--form", "no/such.toml"])), &["no/such.toml"]);
    let half = file(dir.path(), "half.toml", "introduction = \"\"\n");
    let error = refused(small.clone().chain(["--form", text(&half)]));
    assert_says(&error, &["half.toml", "there is no `needle`"]);
    assert_says(&refused(small.chain(["--chat"])), &["no chat template"]);
}

#[test]
fn a_run_file_asks_for_needles_in_a_form_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "own.toml", EMBER);
    let needles = |keys: &str| {
        let policy = "[[policies]]\nname = \"full\"\n";
        let task = format!("[[tasks.needle]]\nlengths = [256]\n{keys}");
        run_file(dir.path(), "run.toml", "", &format!("{policy}{task}"))
    };
    let prompts = |form: &str| {
        let run = needles(&format!("label = \"n\"\nsamples = 1\n{form}"));
        let out = dir.path().join("prompts.jsonl");
        stdout(["run", text(&run), "--prompts", text(&out)]);
        read(&out)
    };
    let ours = prompts("");
    assert_eq!(prompts("form = \"own.toml\"\n"), ours);
    assert_ne!(prompts("form = \"ruler\"\n"), ours);
    for (form, said) in [
        ("form = \"rular\"\n", "not `short`, `ruler` or a file"),
        ("form = \"gone.toml\"\n", "gone.toml"),
        ("form = \"own.toml\"\nvalues = 2\n", "one number under a word"),
    ] {
        assert_says(&refused(["run", text(&needles(form)), "--dry-run"]), &[said]);
    }
}

#[test]
fn profiles_and_tables_are_made_in_any_form_and_not_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let own = file(dir.path(), "own.toml", EMBER);
    let at = |name: &str| dir.path().join(name);
    let calibrate = |out: &Path, form: &str| {
        let args = ["calibrate", "--prompts", "1", "--tokens", "128", "--min-right", "0"];
        stdout([&args[..], &["--out", text(out), "--form", form]].concat());
        read(out)
    };
    let ours = calibrate(&at("a.json"), "ember");
    assert_eq!(calibrate(&at("b.json"), text(&own)), ours);
    assert_ne!(calibrate(&at("c.json"), "ruler"), ours);

    let profile = at("a.json");
    let masked = "mask-heads --counts 0,1 --length 128 --depths 50 --samples 1 --form ruler";
    assert_says(&stdout(masked.split(' ').chain(["--profile", text(&profile)])), &["semantic"]);

    let table = at("table");
    let compare = "compare --length 256 --depths 50 --samples 1 --tokens 2 --windows 1";
    for (form, task) in [("ember", "needle\n"), ("ruler", "needle-ruler\n")] {
        let args = ["--policies", "tova", "--budgets", "48", "--out", text(&table), "--form", form];
        assert_says(&stdout(compare.split(' ').chain(args)), &[task]);
    }
}

#[cfg(unix)]
#[test]
fn a_models_own_conversation_is_written_around_the_question() {
    use common::{MODEL, WEIGHTS, folder};

    // The embedded model under a chat template.
    let (_dir, [model]) = folder(["chatty"]);
    fs::create_dir(&model).unwrap();
    for name in WEIGHTS {
        std::os::unix::fs::symlink(fs::canonicalize(MODEL).unwrap().join(name), model.join(name))
            .unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %} It is{% endif %}";
    file(&model, "chat_template.jinja", template);
    file(&model, "tokenizer_config.json", "{\"bos_token\": \"<|begin_of_text|>\"}");
    let model = ["--model", text(&model)];
    let answers = |more: &[&str]| needle(&[&model[..], more].concat());
    let (plain, chat) = (answers(&[]), answers(&["--chat"]));
    // Words before the answer are what the template adds, so all prompts are others.
    assert_eq!(plain.len(), chat.len());
    assert!(chat.iter().all(|line| !plain.contains(line)), "{chat:?}");
    assert_eq!(plain, needle(&[]));
}

/// Questions that the embedded model can answer, with what they are hidden in.
fn questions() -> Vec<Value> {
    let sentences = "The rain had stopped before noon. The road was wet and nobody came. ";
    let one = |(word, number): (&str, &str)| {
        let hidden = format!("\nOne of the special magic numbers is {word}:{number}.");
        let prose = sentences.repeat(4);
        let passage = format!("{prose}{hidden} {}", prose.trim_end());
        json!({ "passage": passage, "word": word, "number": number })
    };
    [("countess", "8174205"), ("lantern", "0471963"), ("harbour", "5530218")].map(one).into()
}

const RUN: &str = r#"
[[tasks.questions]]
file = "FILE"
context = "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you about the numbers afterwards.\n{passage}"
question = "\nWhat is the special magic number for {word} mentioned in the provided text? The special magic number is {word}:"
answers = "number"
metric = "exact-match"
max-new-tokens = 12
ask = ["before", "after"]
"#;

#[test]
fn questions_of_ones_own_are_a_task() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = questions().iter().map(Value::to_string).collect();
    let cells = |question: &Value| {
        let cell = |name: &str| format!("\"{}\"", question[name].as_str().unwrap());
        [cell("number"), cell("passage"), cell("word")].join(",")
    };
    let rows: Vec<String> = questions().iter().map(cells).collect();
    let mut found = Vec::new();
    for (name, content) in [
        ("mine.jsonl", lines.join("\n")),
        ("mine.json", format!("[{}]", lines.join(",\n"))),
        ("mine.csv", format!("number,passage,word\n{}\n", rows.join("\n"))),
    ] {
        file(dir.path(), name, content);
        let run = run_file(dir.path(), "run.toml", "", &RUN.replace("FILE", name));
        let out = dir.path().join(name.replace('.', "-"));
        stdout(["run", text(&run), "--out", text(&out), "--no-report"]);
        let results = read(&out.join("results.jsonl"));
        let mut scores: Vec<(String, f64)> = results
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|line| {
                let answer = &line["answers"][0];
                let said = answer["said"].as_str().unwrap().to_owned();
                (said, answer["score"].as_f64().unwrap())
            })
            .collect();
        scores.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(scores.len(), 6, "{results}");
        assert!(scores.iter().all(|(_, score)| *score == 1.0), "{name}: {scores:?}");
        // A number of a table keeps its zeros.
        assert!(scores.iter().any(|(said, _)| said == "0471963"), "{scores:?}");
        found.push(scores);
    }
    assert!(found.iter().all(|scores| *scores == found[0]));
}

#[test]
fn a_task_that_cannot_be_asked_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "mine.jsonl", "{\"context\":\"a\",\"question\":\"b\",\"answers\":[\"c\"]}\n");
    let run = |task: &str| {
        let task = format!("[[tasks.questions]]\nfile = \"mine.jsonl\"\n{task}\n");
        run_file(dir.path(), "run.toml", "", &task)
    };
    stdout(["run", text(&run("metric = \"qa-f1\"")), "--dry-run"]);
    for (task, reason) in [
        ("", "`tasks.questions[0]` has no `metric`"),
        ("metric = \"blue\"", "`blue`"),
        ("metric = \"qa-f1\"\nanswers = \"answer\"", "no `answer`; there are answers, context"),
        ("metric = \"qa-f1\"\ncontext = \"{text}\"", "no `text`"),
        ("metric = \"qa-f1\"\ncontext = \"\"\nask = [\"after\"]", "nothing precedes"),
        ("metric = \"qa-f1\"\ncontext = \"x\"\nquestion = \"y\"", "names no field"),
        ("metric = \"qa-f1\"\nmax-new-tokens = 0", "at least 1"),
        ("metric = \"qa-f1\"\nlength = 0", "no prompt"),
    ] {
        assert_says(&refused(["run", text(&run(task)), "--dry-run"]), &[reason]);
    }
}

#[test]
fn predictions_made_elsewhere_are_scored_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "{\"prediction\":\"the red fox\",\"answers\":[\"a red fox\",\"fox\"]}\n\
                 {\"prediction\":\"a dog\",\"answers\":\"the red fox\"}\n";
    let path = file(dir.path(), "said.jsonl", lines);
    let args = ["score", text(&path), "--metric", "qa-f1,exact-match"];
    assert_says(&stdout(args), &["qa-f1", "0.500"]);
    let scores = common::json(args);
    assert_eq!(scores["metrics"]["qa-f1"]["mean"], 0.5);
    assert_eq!(scores["metrics"]["exact-match"]["mean"], 0.0);
    assert_eq!(scores["records"][0]["scores"]["qa-f1"], 1.0);
    assert_eq!(scores["records"][1]["line"], 2);

    // A table, with fields called otherwise.
    let table = file(dir.path(), "said.csv", "said,right\n007,007\n7,007\n");
    let fields = ["--prediction", "said", "--answers", "right", "--metric", "exact-match"];
    let scores = common::json([&["score", text(&table)], &fields[..]].concat());
    assert_eq!(scores["metrics"]["exact-match"]["mean"], 0.5);

    let damaged = file(dir.path(), "damaged.jsonl", format!("{lines}{{\"answers\":[]}}\nno\n"));
    let args = ["score", text(&damaged), "--metric", "rouge1"];
    assert_says(&refused(args), &["line 3", "no `prediction`"]);
    let (_, said) = outputs([&args[..], &["--skip-damaged"]].concat());
    assert_eq!(said.matches("left out").count(), 2, "{said}");
    let none = file(dir.path(), "none.jsonl", "{\"prediction\":\"a\",\"answers\":[]}\n");
    let error = refused(["score", text(&none), "--metric", "rouge1"]);
    assert_says(&error, &["line 1", "`answers` holds no answer"]);
    let empty = file(dir.path(), "empty.jsonl", "");
    assert_says(&refused(["score", text(&empty), "--metric", "rouge1"]), &["empty.jsonl"]);

    // Every metric has its name on the command line, and no other is taken.
    let help = stdout(["score", "--help"]);
    for metric in briquette_eval::metrics::Metric::all() {
        assert_says(&help, &[metric.name()]);
    }
    refused_with(2, ["score", text(&path), "--metric", "blue"]);
}

/// A run over questions of one's own, scored by `metric`, in a folder; returns the run file.
fn questions_scored_by(dir: &Path, metric: &str) -> PathBuf {
    let lines: Vec<String> = questions().iter().map(Value::to_string).collect();
    file(dir, "mine.jsonl", lines.join("\n"));
    let task = RUN.replace("FILE", "mine.jsonl").replace("\"exact-match\"", metric);
    run_file(dir, "run.toml", "", &task)
}

/// The answers of a run: what was said and its scores by metric, by unit.
fn answers(out: &Path) -> BTreeMap<String, (String, BTreeMap<String, f64>)> {
    let answer = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let answer = &line["answers"][0];
        let beside = answer["beside"].as_object().into_iter().flatten();
        let scores = beside.map(|(name, score)| (name.clone(), score.as_f64().unwrap()));
        let first = answer["metric"].as_str().unwrap().to_owned();
        let scores = scores.chain([(first, answer["score"].as_f64().unwrap())]).collect();
        let unit = format!("{} {}", line["sample"], line["ask"]);
        (unit, (answer["said"].as_str().unwrap().to_owned(), scores))
    };
    read(&out.join("results.jsonl")).lines().skip(1).map(answer).collect()
}

#[test]
fn an_answer_has_several_metrics_and_can_be_scored_again_without_being_asked() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = questions_scored_by(dir.path(), "[\"exact-match\", \"contains-any\"]");
    let out = at("out");
    let args = ["run", text(&run), "--out", text(&out)];
    assert_says(&stdout(args), &["exact-match", "contains-any"]);
    let asked = answers(&out);
    assert_eq!(asked.len(), 6);
    for (said, scores) in asked.values() {
        assert_eq!(scores.len(), 2, "{said}");
        assert_eq!((scores["exact-match"], scores["contains-any"]), (1.0, 1.0), "{said}");
    }
    let csv = read(&out.join("report/report.csv"));
    assert_says(csv.lines().next().unwrap(), &["measure,metric"]);
    assert_says(&csv, &[",score,exact-match,", ",contains-any,contains-any,"]);

    // A finished run by other metrics: the same numbers as Briquette gives to the texts themselves.
    let other = at("other");
    let scored = ["score", text(&out), "--metric", "rouge1,qa-f1", "--out", text(&other)];
    let before = fs::read(out.join("results.jsonl")).unwrap();
    assert_says(&stdout(scored), &["rouge1", "nothing was asked again"]);
    assert_eq!(fs::read(out.join("results.jsonl")).unwrap(), before);
    let again = answers(&other);
    assert!(other.join("report.html").is_file());
    for taken in [&other, &out] {
        assert_says(&refused([&scored[..5], &[text(taken)]].concat()), &["name another folder"]);
    }
    stdout([&scored[..], &["--force"]].concat());
    for (unit, (said, _)) in &asked {
        let (kept, scores) = &again[unit];
        assert_eq!(kept, said);
        assert_eq!(scores.keys().collect::<Vec<_>>(), ["qa-f1", "rouge1"]);
        assert_eq!(scores["qa-f1"], 1.0, "{said}");
    }
    let results = out.join("results.jsonl");
    let scores = common::json(["score", text(&results), "--metric", "rouge1"]);
    assert_eq!(scores["metrics"], json!(["rouge1"]));
    assert_eq!(scores["missing"], 0);
    let rows = scores["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{scores}");
    let mut right = rows.iter().map(|row| (&row["mean"]["mean"], &row["metric"]));
    assert!(right.all(|(mean, metric)| *mean == 1.0 && *metric == "rouge1"), "{scores}");

    // Other metrics in the run file: the answers stay.
    questions_scored_by(dir.path(), "\"rouge1\"");
    let (_, tried) = outputs(["run", text(&run), "--out", text(&out), "--dry-run"]);
    assert_says(&tried, &["6 results are scored anew"]);
    assert_eq!(fs::read(&results).unwrap(), before);
    assert_says(&refused([&args[..], &["--shard", "1/2"]].concat()), &["scored by other metrics"]);
    assert_says(&outputs(args).1, &["6 results are scored anew"]);
    for (unit, (said, scores)) in answers(&out) {
        assert_eq!((&said, &scores["rouge1"], scores.len()), (&asked[&unit].0, &1.0, 1));
    }
    let seconds = |results: &[u8]| -> Vec<String> {
        let lines = std::str::from_utf8(results).unwrap().lines().skip(1);
        lines
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["ended_seconds"].to_string())
            .collect()
    };
    assert_eq!(seconds(&fs::read(&results).unwrap()), seconds(&before));
}

#[test]
fn shards_that_were_merged_keep_scores_that_no_longer_count() {
    let dir = tempfile::tempdir().unwrap();
    let run = questions_scored_by(dir.path(), "\"exact-match\"");
    let out = dir.path().join("out");
    let args = ["run", text(&run), "--out", text(&out), "--no-report"];
    for shard in ["1/2", "2/2"] {
        stdout([&args[..], &["--shard", shard]].concat());
    }
    stdout(["merge", text(&out)]);
    questions_scored_by(dir.path(), "\"rouge1\"");
    stdout(args);
    stdout(["merge", text(&out)]);
    let scored = answers(&out);
    assert_eq!(scored.len(), 6);
    assert!(scored.values().all(|(_, scores)| scores.keys().eq(["rouge1"])), "{scored:?}");
    let score = ["score", text(&out), "--metric", "qa-f1"];
    assert_says(&stdout(score), &["qa-f1"]);
    // Other answers are a conflict still.
    let shard = out.join("results-1-of-2.jsonl");
    fs::write(&shard, read(&shard).replace("\"said\":\"", "\"said\":\"x")).unwrap();
    for args in [&["merge", text(&out)][..], &score] {
        assert_says(&refused(args), &["not the same"]);
    }
}

#[test]
fn scores_of_a_run_that_cannot_be_had_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let score =
        |path: &Path, more: &[&str]| refused([&["score", text(path), "--metric"], more].concat());
    let run = questions_scored_by(dir.path(), "\"exact-match\"");
    let out = at("out");
    stdout(["run", text(&run), "--out", text(&out), "--no-report"]);
    assert_says(&score(&out, &["rouge1", "--answers", "right"]), &["--answers"]);
    assert_says(&score(&out, &["truthfulqa-bleu-acc"]), &["kept without any"]);
    assert_says(&score(&out, &["rouge1,rouge1"]), &["`rouge1` is there twice"]);
    let said = file(dir.path(), "said.jsonl", "{\"prediction\":\"a\",\"answers\":\"a\"}\n");
    let error = score(&said, &["rouge1", "--out", text(&at("other"))]);
    assert!(error.contains("--out") && !at("other").exists(), "{error}");
    for metric in ["[]", "[\"rouge1\", \"rouge1\"]", "\"rogue1\""] {
        let wrong = questions_scored_by(dir.path(), metric);
        let error = refused(["run", text(&wrong), "--dry-run"]);
        assert!(error.contains("metric") || error.contains("rogue1"), "{error}");
    }

    let task = "[[tasks.perplexity]]\nprompt = 48\ntokens = 2\nwindows = 1\n";
    let run = run_file(dir.path(), "losses.toml", "", task);
    let losses = at("losses");
    stdout(["run", text(&run), "--out", text(&losses), "--no-report"]);
    assert_says(&score(&losses, &["rouge1"]), &["holds no answers"]);
}

#[test]
fn seconds_of_policies_that_shared_a_prefill_are_those_of_each_alone() {
    let dir = tempfile::tempdir().unwrap();
    let policies = "[[policies]]\nname = \"full\"\n[[policies]]\nname = \"snapkv\"\nbudgets = [64]\n\
                    [[policies]]\nname = \"tova\"\nbudgets = [64]\n";
    let task = "[[tasks.needle]]\nlengths = [512]\ndepths = [50]\nsamples = 1\nask = \"after\"\n";
    let run = run_file(dir.path(), "run.toml", "", &format!("{policies}{task}"));
    let out = dir.path().join("out");
    stdout(["run", text(&run), "--out", text(&out), "--no-report"]);
    let results = read(&out.join("results.jsonl"));
    let lines: Vec<Value> =
        results.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{results}");
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap();
    let began: Vec<f64> = lines.iter().map(|line| number(line, "began_seconds")).collect();
    assert!(began.iter().all(|one| *one == began[0]), "{began:?}");
    for line in &lines {
        let wall = number(line, "ended_seconds") - number(line, "began_seconds");
        let parts = number(line, "prefill_seconds") + number(line, "decode_seconds");
        let seconds = number(line, "seconds");
        // A policy's own is no more than passed, and holds its prefill and its steps.
        assert!(parts <= seconds * 1.001 && seconds <= wall * 1.001, "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_that_is_not_utf8_is_named_or_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use common::{MODEL, command};

    let dir = tempfile::tempdir().unwrap();
    let odd = |bytes: &[u8]| dir.path().join(OsStr::from_bytes(bytes));
    std::os::unix::fs::symlink(fs::canonicalize(MODEL).unwrap(), odd(b"m\xff")).unwrap();
    let prose = "It was a bright cold day in April. ".repeat(40);
    fs::write(odd(b"t\xff.txt"), &prose).unwrap();
    fs::create_dir(odd(b"h\xff")).unwrap();
    fs::write(odd(b"h\xff").join("a.txt"), &prose).unwrap();
    fs::copy(Path::new(MODEL).join("profile.json"), odd(b"p\xff.json")).unwrap();
    let run = |line: &str| {
        let word = |word: &str| match word.split_once('%') {
            Some((before, after)) => odd(&[before.as_bytes(), b"\xff", after.as_bytes()].concat()),
            None => PathBuf::from(word),
        };
        command(line.split(' ').map(word)).current_dir(dir.path()).output().unwrap()
    };
    let small = "--policies tova --budgets 48 --samples 1";
    for line in [
        format!("needle --model m% {small}"),
        format!("needle --profile p%.json {small}"),
        format!("needle --haystack h% {small}"),
        format!("perplexity --model m% {small}"),
        format!("perplexity --text t%.txt {small}"),
        format!("fidelity --text t%.txt {small}"),
        format!("compare --model m% {small} --out o"),
        format!("compare --text t%.txt {small} --out o"),
    ] {
        let output = run(&line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert_says(&said, &["\\xFF", "is not UTF-8"]);
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
    // Where no run file is between, such a path is as good as any other.
    let text = "--text t%.txt --target-ratio 0.9 --length 96 --tokens 2 --windows 2";
    for line in [
        "generate --model m% --file t%.txt --max-new-tokens 1 --json g%.json".to_owned(),
        "compress --model m% --file t%.txt --budget 48 --out x%.prefix --json c%.json".into(),
        format!("tune --model m% {text} --policies tova --out f%.toml --json t%.json"),
        "policies --json l%.json".into(),
        "needle --lengths 128 --depths 50 --policies tova --budgets 48 --samples 1 --out o% --json n%.json"
            .into(),
        "report o%".into(),
        "merge o% --json m%.json".into(),
    ] {
        let output = run(&line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
    }
    let merged: Value = serde_json::from_slice(&fs::read(odd(b"m\xff.json")).unwrap()).unwrap();
    assert!(merged["file"].as_str().unwrap().ends_with("o\\xff/results.jsonl"), "{merged}");
}

/// A run, a page and a merge let the same result of a unit count.
#[test]
fn results_that_are_there_twice_are_one_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let task = "[[tasks.perplexity]]\nprompt = 48\ntokens = 2\nwindows = 2\n";
    let run = run_file(dir.path(), "run.toml", "", task);
    let out = dir.path().join("out");
    let args = ["run", text(&run), "--out", text(&out), "--no-report"];
    stdout(args);
    let results = out.join("results.jsonl");
    let whole = read(&results);
    let last: Value = serde_json::from_str(whole.lines().last().unwrap()).unwrap();
    let with = |change: fn(&mut Value)| {
        let mut line = last.clone();
        change(&mut line);
        fs::write(&results, format!("{whole}{line}\n")).unwrap();
    };
    let merged = dir.path().join("merged");
    let commands =
        [&args[..], &["merge", text(&out), "--out", text(&merged)], &["report", text(&out)]];

    // Another number of seconds is the same result.
    with(|line| line["seconds"] = json!(12345.0));
    for args in commands {
        stdout(args);
    }
    let merged = read(&merged.join("results.jsonl"));
    assert!(!merged.contains("12345"), "{merged}");
    // Other losses are not, and no one can say which are right.
    with(|line| line["nats"][0] = json!(0.25));
    for args in commands {
        assert_says(&refused(args), &["the results", "not the same"]);
    }
}
