//! The book and README recommend what the leaderboard's file measured.

use std::collections::{BTreeMap, BTreeSet};

use super::read;

/// Scores of the real model by policy, budget and time of the question: the mean of the tasks.
pub(super) fn scores() -> BTreeMap<(String, String, String), f64> {
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
    for (case, ask) in [("Query-aware", "before"), ("Query-agnostic", "after")] {
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

/// The rows of README's table: a method, then its scores at a quarter and an eighth of the cache,
/// where the question is known and where it is not.
#[test]
fn the_table_of_the_readme_is_that_of_the_leaderboard() {
    let scores = scores();
    let readme = read("README.md");
    let head = "| method | query-aware 25% | 12.5% | query-agnostic 25% | 12.5% |";
    let rows = readme.lines().skip_while(|line| *line != head).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| !line.is_empty()).collect();
    assert!(rows.len() > 8, "{rows:?}");
    let cells = [("before", "25%"), ("before", "12.5%"), ("after", "25%"), ("after", "12.5%")];
    for row in rows {
        let (_, rest) = row.split_once('`').unwrap();
        let (method, rest) = rest.split_once('`').unwrap();
        let said: Vec<&str> = rest.trim_matches('|').split('|').skip(1).map(str::trim).collect();
        let measured = cells.map(|(ask, budget)| match (method, budget) {
            ("full", "25%") => scores.get(&(method.into(), "-".into(), ask.into())),
            _ => scores.get(&(method.into(), budget.into(), ask.into())),
        });
        let measured = measured.map(|score| score.map_or("–".into(), |one| format!("{one:.2}")));
        assert_eq!(said, measured, "{method}");
    }
}
