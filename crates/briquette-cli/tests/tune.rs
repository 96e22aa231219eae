//! `briquette fidelity` and `briquette tune` on the embedded model.

mod common;

use std::fs;

use briquette::{Budget, Policy};
use briquette_eval::{
    Error,
    journal::Accept,
    tasks::text::Text,
    tune::{Candidate, Material, Plan, Tuned, Tuning, Unit},
};
use briquette_models::{Model, Tokenizer};
use burn::tensor::DType;
use common::{
    MODEL, assert_says, folder, read, read_json, refused, refused_with, run_file, stdout, text,
};
use serde_json::Value;

#[test]
fn fidelity_writes_a_table_and_a_page() {
    let (_dir, [out, json]) = folder(["out", "copy.json"]);
    let sizes = ["fidelity", "--length", "160", "--tokens", "6", "--windows", "2"];
    let policies = ["--policies", "full,snapkv,streaming-llm", "--budgets", "16,48"];
    let files = ["--out", text(&out), "--json", text(&json)];
    let table = stdout([&sizes[..], &policies, &files].concat());
    let missing = "snapkv at 16: a budget of 16 keeps";
    assert_says(&table, &["KL", "streaming-llm", missing, "report.html"]);
    let report = read_json(&json);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let found = |policy: &str, budget: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy && row["budget"] == budget);
        row.unwrap().clone()
    };
    let kl = |policy: &str, budget: &str| found(policy, budget)["mean"]["mean"].as_f64().unwrap();
    assert_eq!(kl("full", "-"), 0.0);
    assert_eq!(found("full", "-")["beside"]["agreement"]["mean"], 1.0);
    assert!(found("full", "-")["beside"]["overlap"].is_null());
    assert!(kl("streaming-llm", "48") > 0.0);
    assert!(kl("streaming-llm", "16") > kl("streaming-llm", "48"), "{report}");
    assert_eq!(report["unavailable"][0]["policy"], "snapkv");
    // What each head held at the end of a prompt.
    let results = read(&out.join("results.jsonl"));
    let of_snapkv = |line: &&str| line.contains("\"policy\":\"snapkv\",\"budget\":\"48\"");
    let line: Value = serde_json::from_str(results.lines().find(of_snapkv).unwrap()).unwrap();
    assert_eq!(line["kept"]["heads"], serde_json::json!(vec![vec![48; 2]; 8]));
    assert!(out.join("report/tables.md").is_file());
}

#[test]
fn tune_writes_a_policy_that_holds_the_target() {
    let (dir, [out, json, again]) = folder(["best.toml", "tune.json", "again.json"]);
    let sizes = ["--length", "192", "--tokens", "4", "--windows", "2", "--target-ratio", "30%"];
    let policies = "local-window,tova,snapkv,kivi:store.residual=128";
    let args = ["--policies", policies, "--out", text(&out)];
    let shown = stdout([&["tune"][..], &sizes, &args, &["--json", text(&json)]].concat());
    let over = "kivi:store.residual=128: it has no budget and holds";
    assert_says(&shown, &["Use ", over, " %, over", "It asks no question"]);
    assert!(!dir.path().join("best.toml.partial").exists());

    let report = read_json(&json);
    let best = &report["ranked"][0];
    // Without the first token the model is lost, which a window does not keep.
    let label = best["label"].as_str().unwrap();
    assert_ne!(label, "local-window", "{report}");
    let policy = Policy::from_file(&out).unwrap();
    assert_eq!(Some(policy.name()), label.split(':').next());
    // Who keeps more than the target is shown with it, and is not among those to choose from.
    for one in report["ranked"].as_array().unwrap() {
        assert!(one["held"].as_f64().unwrap() <= 1.05 * 0.3, "{one}");
    }
    for one in report["refused"].as_array().unwrap() {
        assert!(one["held"].as_f64().unwrap() > 1.05 * 0.3, "{one}");
    }
    assert_eq!(policy.budget().unwrap().to_string(), best["budget"].as_str().unwrap());
    let comment = read(&out);
    assert!(comment.starts_with("# Found by briquette") && comment.contains("nats"), "{comment}");

    // What the policy holds is measured again, by the other command and elsewhere in the text.
    let check = ["fidelity", "--length", "192", "--tokens", "4", "--windows", "3"];
    stdout([&check[..], &["--policies", text(&out), "--json", text(&again)]].concat());
    let row = &read_json(&again)["rows"][0];
    assert_eq!(row["budget"], policy.budget().unwrap().to_string());
    let held = row["held_of_full"].as_f64().unwrap();
    assert!(held <= 1.05 * 0.3 && held > 0.28, "{row}");

    let tight = ["tune", "--length", "192", "--target-ratio", "0.01", "--policies", "kivi"];
    let error = refused([&tight[..], &["--out", text(&out)]].concat());
    assert_says(&error, &["no policy holds 1 % of the full cache at 192 tokens"]);
    for args in [&["--out", "x.json"][..], &["--out", "x.toml", "--policies", "nosuch"]] {
        refused([&["tune", "--target-ratio", "0.5"][..], args].concat());
    }
}

#[test]
fn tune_asks_questions_behind_compressed_contexts() {
    let (dir, [file, out, json]) = folder(["asked.toml", "best.toml", "tune.json"]);
    let run = |tasks: &str| run_file(dir.path(), "asked.toml", "", tasks);
    let sizes = ["tune", "--samples", "2", "--target-ratio", "50%", "--tasks", text(&file)];
    let policies = "local-window,tova,kivi:store.residual=128";
    let args = [&sizes[..], &["--policies", policies, "--out", text(&out)]].concat();
    let continued = "[[tasks.perplexity]]\nprompt = 48\ntokens = 2\n";
    let asked = "label = \"lost\"\nlengths = [256]\ndepths = [50]\nsamples = 3\nask = [\"after\"]";
    run(&format!("[[tasks.needle]]\n{asked}\n{continued}"));
    let shown = stdout([&args[..], &["--json", text(&json)]].concat());
    let asked = "asked.toml: lost: contexts of up to";
    assert_says(&shown, &[asked, "on 2 questions", "Use ", "of up to"]);
    assert!(!shown.contains("asks no question"), "{shown}");
    let report = read_json(&json);
    assert_eq!(report["asks"], true);
    assert_eq!(report["plan"]["windows"], 2);
    // What is behind the contexts is not counted as theirs.
    let prompt = report["plan"]["prompt"].as_u64().unwrap();
    assert!((200..256).contains(&prompt), "{prompt}");
    let ranked = report["ranked"].as_array().unwrap();
    let labels: Vec<&str> = ranked.iter().map(|one| one["label"].as_str().unwrap()).collect();
    assert!(labels.contains(&"local-window") && labels.contains(&"tova"), "{report}");
    for one in ranked {
        assert!(one["held"].as_f64().unwrap() <= 1.05 * 0.5, "{one}");
        assert_eq!(one["kl"]["count"], 2);
    }
    assert!(Policy::from_file(&out).unwrap().budget().is_some());

    run(continued);
    assert_says(&refused(&args), &["no task asks after the compression"]);
    // Texts and their sizes are those of the tasks.
    for other in [["--text", text(&file)], ["--length", "512"], ["--tokens", "8"]] {
        assert_says(&refused_with(2, [&args[..], &other].concat()), &[other[0]]);
    }
}

#[test]
fn a_search_that_was_cut_off_ends_with_the_same_ranking() {
    let dir = tempfile::tempdir().unwrap();
    let device = briquette::device::open("flex").unwrap();
    let model = Model::load(MODEL, &device, DType::F32).unwrap();
    let tokenizer = Tokenizer::load(MODEL).unwrap();
    let text = Text::built_in(&tokenizer).unwrap();
    let ample = Budget::Tokens(1 << 20);
    let candidate =
        |name: &str, policy: Policy| Candidate { label: name.into(), policy: Ok(policy) };
    let tuning = |threads: usize, seed: u64, target: f64| Tuning {
        model: &model,
        material: Material::Text(&text),
        plan: Plan { target, unit: Unit::Share, prompt: 160, tokens: 3, windows: 6, seed },
        candidates: vec![
            candidate("window", Policy::local_window(ample)),
            candidate("h2o", Policy::h2o(ample)),
            candidate("tova", Policy::tova(ample)),
            candidate("snapkv", Policy::snapkv(ample)),
            candidate("kvmerger", Policy::kvmerger(ample)),
            candidate("headkv", Policy::headkv(ample)),
            Candidate { label: "absent".into(), policy: Err("it is not there".into()) },
        ],
        name: "ember".into(),
        weights: "as they are".into(),
        accept: Accept::default(),
        threads,
    };
    let ranking = |tuned: &Tuned| serde_json::to_value(&tuned.ranked).unwrap();

    let whole = dir.path().join("whole");
    let mut last = (0, 0);
    let tuned = tuning(2, 1, 0.65).run(&whole, |done, all, _| last = (done, all)).unwrap();
    assert_eq!(last.0, last.1);
    assert_eq!(tuned.ranked.len() + tuned.refused.len(), 7);
    let refused: Vec<(&str, &str)> =
        tuned.refused.iter().map(|one| (one.label.as_str(), one.reason.as_str())).collect();
    assert!(refused.contains(&("absent", "it is not there")), "{refused:?}");
    assert!(refused.iter().any(|(label, why)| *label == "headkv" && why.contains("profile")));
    for one in &tuned.ranked {
        assert!(one.held <= 1.05 * 0.65 && one.held > 0.3, "{one:?}");
    }
    // All five on two windows, the best three on six.
    let rounds: Vec<(usize, usize)> =
        tuned.rounds.iter().map(|round| (round.candidates, round.windows)).collect();
    assert_eq!(rounds, [(5, 2), (3, 6)]);
    let windows: Vec<usize> = tuned.ranked.iter().map(|one| one.kl.count).collect();
    assert_eq!(windows, [6, 6, 6, 2, 2]);
    let kl: Vec<f64> = tuned.ranked.iter().map(|one| one.kl.mean).collect();
    assert!(kl[..3].is_sorted() && kl[3..].is_sorted(), "{kl:?}");
    assert_eq!(tuned.ranked[0].above_best.mean, 0.0);
    let expected = ranking(&tuned);
    drop(tuned);

    // Cut in the middle of a line, after the budgets and in the middle of the rounds.
    let bytes = fs::read(&whole).unwrap();
    for share in [0.3, 0.8] {
        let cut = dir.path().join(format!("cut-{share}"));
        fs::write(&cut, &bytes[..(bytes.len() as f64 * share) as usize]).unwrap();
        let again = tuning(1, 1, 0.65).run(&cut, |_, _, _| {}).unwrap();
        assert_eq!(ranking(&again), expected);
        again.journal.remove().unwrap();
    }
    let other = tuning(1, 2, 0.65).run(&whole, |_, _, _| {}).unwrap_err();
    assert!(matches!(other, Error::RunSettings { .. }), "{other}");
    let outside = tuning(1, 1, 1.5).run(&whole, |_, _, _| {}).unwrap_err().to_string();
    assert!(outside.contains("1.5 is not a share"), "{outside}");
}
