//! Policies of one's own in a plan, beside those of its run file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use briquette::{Budget, LayerView, Policy, score::Scorer};
use briquette_eval::{
    Error, Result,
    journal::Accept,
    run::{OwnPolicy, Plan, RunFile, Runner, begin, execute},
};
use burn::tensor::{DType, Tensor};

const RUN: &str = r#"
name = "own"

[[models]]
dir = "models/ember-7m"

[[tasks.needle]]
lengths = [192]
depths = [50]
samples = 1
ask = "after"
"#;

const SNAPKV: &str = "[[policies]]\nname = \"snapkv\"";

/// The lower the norm of its key, the longer a token is kept.
#[derive(Debug)]
struct Short;

impl Scorer for Short {
    fn name(&self) -> &str {
        "short"
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        Ok(view.keys()?.cast(DType::F32).square().sum_dim(3).neg().squeeze_dim(3))
    }
}

fn short(tokens: usize) -> OwnPolicy {
    let policy = Policy::custom("short", Budget::Tokens(tokens), Short);
    OwnPolicy::new("short", policy).with_version("1")
}

fn file(top: &str, policies: &str) -> RunFile {
    let text = format!("{top}\n{RUN}\n{policies}");
    let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    RunFile::parse(&text, "own.toml".as_ref(), &base).unwrap()
}

fn plan(file: &RunFile, policies: &[OwnPolicy]) -> Result<Plan> {
    Plan::with_policies(file, policies, Vec::new(), false)
}

/// Labels and budgets, in the order they run.
fn names(plan: &Plan) -> Vec<String> {
    plan.units().map(|unit| format!("{} {}", unit.key.policy, unit.key.budget)).collect()
}

/// Runs a plan in a folder, and says how many units had no results before.
fn measured(dir: &Path, file: &RunFile, plan: &Plan) -> Result<usize> {
    let mut results = begin(dir, file, plan, "flex", None, Accept::default())?;
    let mut counts = BTreeSet::new();
    let runner = Runner::new(&briquette::device::open("flex").unwrap());
    execute(plan, &mut results, &runner, |progress| {
        counts.insert(progress.done);
    })?;
    Ok(counts.last().unwrap() - counts.first().unwrap())
}

#[test]
fn own_policies_stand_behind_those_of_the_file() {
    let both = plan(&file("budgets = [64]", SNAPKV), &[short(32), short(64)]).unwrap();
    assert_eq!(names(&both), ["full -", "snapkv 64", "short 32", "short 64"]);
    // A file may have none.
    let own = plan(&file("full = false", ""), &[short(64)]).unwrap();
    assert_eq!(names(&own), ["short 64"]);
    let error = plan(&file("full = false", ""), &[]).unwrap_err();
    assert!(matches!(error, Error::RunFile { .. }), "{error}");
}

#[test]
fn budgets_of_the_file_are_for_those_without_one() {
    let score = Policy::named("snapkv", None).unwrap().with_scorer(Short);
    let open = OwnPolicy::new("open", score).with_version("1");
    let kept = OwnPolicy::new("kept", Policy::full());
    let own = [open.clone(), kept, short(64)];
    let all = plan(&file("full = false\nbudgets = [48, \"50%\"]", ""), &own).unwrap();
    assert_eq!(names(&all), ["open 48", "open 50%", "kept -", "short 64"]);
    let error = plan(&file("", ""), &[open]).unwrap_err().to_string();
    assert!(error.contains("policy `open`: it needs a budget"), "{error}");
}

#[test]
fn labels_are_held_to_what_those_of_files_are() {
    let snapkv = |label: &str| OwnPolicy::new(label, Policy::snapkv(Budget::Tokens(64)));
    for (own, says) in [
        (vec![short(64), short(64)], "`short`: it is there twice with budget 64; give one of"),
        (vec![snapkv("snapkv")], "`snapkv`: it is there twice with budget 64"),
        (vec![OwnPolicy::new("full", Policy::full())], "`full`: it is there twice with budget -"),
        (vec![snapkv("")], "``: its label cannot be shown: it is empty"),
        (vec![snapkv("a\nb")], "`a\\nb`: its label cannot be shown: it holds a control character"),
        (vec![snapkv("a\u{202e}b")], "a mark of direction, U+202E"),
    ] {
        let error = plan(&file("budgets = [64]", SNAPKV), &own).unwrap_err();
        let is_text = matches!(error, Error::PolicyText { .. });
        assert!(is_text && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_no_run_could_do_is_refused_by_the_plan() {
    let pool = Policy::custom("short", Budget::Tokens(64), Short).with_window(8);
    for policy in [pool, Policy::full().with_budget(Budget::Tokens(64))] {
        let error = plan(&file("", ""), &[OwnPolicy::new("own", policy)]).unwrap_err();
        assert!(matches!(error, Error::Cache(_)), "{error}");
    }
}

#[test]
fn code_needs_a_version() {
    let policy = Policy::custom("short", Budget::Tokens(64), Short);
    let error = plan(&file("", ""), &[OwnPolicy::new("mine", policy.clone())]).unwrap_err();
    let Error::PolicyVersion { label, stage, name } = &error else { panic!("{error}") };
    assert_eq!((label.as_str(), *stage, name.as_str()), ("mine", "scorer", "short"));
    assert!(error.to_string().contains("`with_version`"), "{error}");
    // A policy without code of one's own may have one.
    let known = OwnPolicy::new("known", Policy::snapkv(Budget::Tokens(64)));
    let file = file("full = false", "");
    let of = |own: OwnPolicy| {
        plan(&file, &[own]).unwrap().units().next().map(|unit| unit.fingerprint.clone())
    };
    assert_ne!(of(known.clone()), of(known.with_version("1")));
    let version = |version: &str| OwnPolicy::new("mine", policy.clone()).with_version(version);
    assert_ne!(of(version("1")), of(version("2")));
    assert_eq!(of(version("2")), of(version("2")));
}

#[test]
fn a_run_goes_on_with_the_version_that_began_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let file = file("budgets = [64]", SNAPKV);
    let plan = |own: OwnPolicy| plan(&file, &[own]).unwrap();
    assert_eq!(measured(dir, &file, &plan(short(64))).unwrap(), 3);
    assert_eq!(measured(dir, &file, &plan(short(64))).unwrap(), 0);
    let error = measured(dir, &file, &plan(short(64).with_version("2"))).unwrap_err();
    let says = "holds results of another policy `short`";
    assert!(matches!(error, Error::UnitChanged { .. }) && error.to_string().contains(says));
    // At another budget it is measured beside them.
    assert_eq!(measured(dir, &file, &plan(short(32).with_version("2"))).unwrap(), 1);
}

#[test]
fn a_method_in_code_is_that_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole = file("budgets = [64]", SNAPKV);
    assert_eq!(measured(dir.path(), &whole, &plan(&whole, &[]).unwrap()).unwrap(), 2);
    let none = file("", "");
    let own = OwnPolicy::new("snapkv", Policy::snapkv(Budget::Tokens(64)));
    assert_eq!(measured(dir.path(), &none, &plan(&none, &[own]).unwrap()).unwrap(), 0);
}
