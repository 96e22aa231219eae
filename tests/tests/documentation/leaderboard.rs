//! The book and README recommend what the leaderboard's file measured.

use std::collections::{BTreeMap, BTreeSet};

use super::read;

/// Scores of the real model by policy, budget and time of the question: the mean of the tasks.
fn scores() -> BTreeMap<(String, String, String), f64> {
    let mut found: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for line in read("docs/src/results/leaderboard-smollm2.csv").lines().skip(1) {
        let [_, policy, budget, ask, _, _, score, ..] = line.split(',').collect::<Vec<&str>>()[..]
        else {
            panic!("{line}");
        };
        let cell = [policy, budget, ask].map(str::to_owned);
        found.entry(cell.into()).or_default().push(score.parse().unwrap());
    }
    let mean = |scores: Vec<f64>| scores.iter().sum::<f64>() / scores.len() as f64;
    found.into_iter().map(|(cell, scores)| (cell, mean(scores))).collect()
}

/// The methods that a row of `which-policy.md` names.
fn recommended(case: &str) -> Vec<String> {
    let page = read("docs/src/which-policy.md");
    let row = page.lines().find(|line| line.starts_with(&format!("| {case}"))).unwrap();
    let quoted = row.split('`').skip(1).step_by(2);
    quoted.map(|label| label.split(':').next().unwrap().to_owned()).collect()
}

#[test]
fn what_is_recommended_is_near_the_full_cache() {
    let scores = scores();
    let full = scores[&("full".into(), "-".into(), "after".into())];
    for (case, ask) in
        [("The question stands in the prompt", "before"), ("The question comes later", "after")]
    {
        let methods = recommended(case);
        assert!(methods.len() > 2, "{methods:?}");
        for method in methods {
            let at = |budget: &str| scores.get(&(method.clone(), budget.into(), ask.into()));
            let quarter = at("25%").unwrap_or_else(|| panic!("{method} was not measured"));
            assert!(*quarter > full - 0.15, "{method}: {quarter} of {full}");
        }
    }
}

/// A method without a row is one that the page says is missing.
#[test]
fn every_method_is_on_the_leaderboard_or_said_to_be_missing() {
    let page = read("docs/src/leaderboard.md");
    for file in ["leaderboard-smollm2", "leaderboard-ember"] {
        let rows = read(&format!("docs/src/results/{file}.csv"));
        for method in briquette::methods() {
            let measured: BTreeSet<&str> = rows
                .lines()
                .map(|line| line.split(',').collect::<Vec<&str>>())
                .filter(|row| row[1] == method.name && row[3] == "after")
                .map(|row| row[2])
                .collect();
            if measured == BTreeSet::from(["-"]) || measured.len() == 4 {
                continue;
            }
            let missing = page.split(['.', ':']).any(|sentence| {
                let sentence = sentence.to_lowercase();
                let name = method.name.replace("-plus", "+");
                sentence.contains("missing") && sentence.contains(&name)
            });
            assert!(missing, "{file}: {} has {measured:?}", method.name);
        }
    }
}

#[test]
fn the_table_of_the_readme_is_that_of_the_leaderboard() {
    let (readme, table) = (read("README.md"), read("docs/src/results/leaderboard-smollm2.md"));
    let head = table.lines().next().unwrap();
    let rows = readme.lines().skip_while(|line| *line != head).take_while(|line| !line.is_empty());
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 10, "{rows:?}");
    assert!(rows.iter().all(|row| table.lines().any(|line| line == *row)), "{rows:?}");
    // The methods that the sentence above the table names.
    let (before, _) = readme.split_once(head).unwrap();
    let sentence = &before[before.rfind("Where nobody knows").unwrap()..];
    let (later, known) = sentence.split_once("where it is in the prompt").unwrap();
    for (part, case) in
        [(later, "The question comes later"), (known, "The question stands in the prompt")]
    {
        let named: Vec<&str> = part.split('`').skip(1).step_by(2).collect();
        let recommended = recommended(case);
        let known = |name: &&str| recommended.iter().any(|other| other == name);
        assert!(!named.is_empty() && named.iter().all(known), "{named:?} {recommended:?}");
    }
}
