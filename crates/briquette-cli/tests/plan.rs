//! The memory that a run will take, and the models that are read.

mod common;

use std::{fs, path::Path};

use common::{
    MODEL, assert_says, command, done, folder, json, refused, refused_with, stdout, text,
};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../briquette-models/tests/fixtures");

/// The plan of a policy at a budget.
fn planned<'a>(plan: &'a Value, policy: &str, budget: Option<&str>) -> &'a Value {
    let of = |one: &&Value| one["policy"] == policy && one["budget"].as_str() == budget;
    plan["policies"].as_array().unwrap().iter().find(of).unwrap()
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join("docs/src").join(name)).unwrap()
}

#[test]
fn a_plan_has_the_numbers_of_a_run() {
    let (_dir, [out]) = folder(["text.bqk"]);
    let harbour = format!("{ROOT}/examples/harbour.txt");
    let run = ["compress", "--model", MODEL, "--device", "flex", "--file", &harbour];
    for (policy, budget) in [("snapkv", Some("25%")), ("d2o", Some("12.5%")), ("kivi", None)] {
        let mut args = run.to_vec();
        args.extend(["--policy", policy, "--out", text(&out), "--force"]);
        args.extend(budget.map(|budget| ["--budget", budget]).into_iter().flatten());
        let run = json(args);
        let number = |key: &str| run[key].as_u64().unwrap();
        let held = (number("bytes_held") - number("bytes_spare")) as f64;
        let tokens = number("tokens").to_string();
        let plan = json(["plan", "--model", MODEL, "--device", "flex", "--context", &tokens]);
        let planned = planned(&plan, policy, budget)["cache_bytes"].as_f64().unwrap();
        assert!((planned / held - 1.0).abs() < 0.02, "{policy}: {planned} planned, {held} held");
    }
}

#[test]
fn a_plan_fits_the_terminal_and_programs() {
    let args = ["plan", "--model", MODEL, "--context", "2048", "--batch", "8", "--memory", "24GiB"];
    let (table, _) = done(command(args).env("COLUMNS", "80"));
    let mut lines = table.lines().filter(|line| line.contains(['│', '┆', '╞', '┌']));
    assert!(lines.all(|line| line.chars().count() <= 80), "{table}");
    let says = ["weights  27.0 MiB of ", "of 8 prompts of 2048 tokens", "most rows", "12.5%"];
    assert_says(&table, &says);
    let tsv = stdout([&args[..], &["--format", "tsv"]].concat());
    let cells = tsv.lines().filter(|line| !line.is_empty()).map(|line| line.split('\t').count());
    assert!(tsv.lines().count() == 41 && cells.clone().all(|cells| cells == 6), "{tsv}");
    let plan = json(args);
    let of_rows = |batch: &str| {
        let args = ["plan", "--model", MODEL, "--context", "2048", "--batch", batch];
        let plan = json(args);
        let cache = planned(&plan, "h2o", Some("25%"))["cache_bytes"].as_u64().unwrap();
        cache + plan["weight_bytes"].as_u64().unwrap()
    };
    let most = planned(&plan, "h2o", Some("25%"))["rows"].as_u64().unwrap();
    assert!(of_rows(&most.to_string()) <= 24 << 30 && of_rows(&(most + 1).to_string()) > 24 << 30);
    // The type of a run.
    let dtype = |more: &[&str]| {
        let plan = json([&["plan", "--model", MODEL], more].concat());
        (plan["dtype"].as_str().unwrap().to_owned(), plan["weight_bytes"].as_u64().unwrap())
    };
    let (named, whole) = dtype(&[]);
    assert_eq!((named.as_str(), dtype(&["--dtype", "bf16"])), ("f32", ("bf16".into(), whole / 2)));
    assert!(dtype(&["--quantize", "4"]).1 < whole / 2);
}

#[test]
fn what_a_model_refuses_is_named() {
    let model = format!("{FIXTURES}/gemma3");
    let (said, _) =
        done(&mut command(["plan", "--model", &model, "--policies", "full,d2o,headkv"]));
    assert_says(&said, &["full", "\nd2o: ", "goes layer by layer", "\nheadkv: ", "profile"]);
    let gguf = format!("{FIXTURES}/gguf/llama-quantized.gguf");
    assert_says(&stdout(["plan", "--model", &gguf, "--policies", "full"]), &["weights  "]);
}

#[test]
fn a_plan_that_cannot_be_is_refused() {
    let plan = |more: &[&str]| refused([&["plan", "--model", MODEL], more].concat());
    assert_says(&plan(&["--memory", "1MiB"]), &["take 27.0 MiB", "is 1.0 MiB", "--quantize"]);
    for context in ["0", "5000"] {
        assert_says(&plan(&["--context", context]), &["context", context, "from 1 to 4096"]);
    }
    assert_says(&plan(&["--policies", "snapvk"]), &["did you mean `snapkv`?"]);
    assert_says(&plan(&["--policies", "snapkv:budget=99"]), &["leave one out"]);
    assert_says(&refused(["plan", "--model", "no/such"]), &["no/such", "there is no model"]);
    let (_dir, [empty]) = folder(["empty"]);
    fs::create_dir(&empty).unwrap();
    assert_says(&refused(["plan", "--model", text(&empty)]), &[text(&empty)]);
    let many = ["--batch", "99999999999", "--policies", "full"];
    assert_says(&plan(&many), &["none of the policies", "full: ", "at most"]);
    for more in [["--memory", "24"], ["--batch", "0"]] {
        refused_with(2, [&["plan", "--model", MODEL][..], &more].concat());
    }
}

#[test]
fn the_book_has_the_models_and_a_plan() {
    let table = stdout(["models", "--format", "markdown"]);
    assert!(page("models.md").contains(&table), "docs/src/models.md has not the table\n{table}");
    assert_eq!(json(["models"])["families"][0]["model_type"], "llama");

    let page = page("memory.md");
    let line = page.lines().find(|line| line.contains(" -- plan ")).unwrap();
    let (_, args) = line.split_once(" -- ").unwrap();
    let mut plan = command(args.split(' '));
    let (said, _) = done(plan.env("COLUMNS", "80").current_dir(ROOT));
    assert!(page.contains(&said), "docs/src/memory.md has not the plan\n{said}");
}
