//! Every metric beside the scorer it is named after, on the cases of `fixtures/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use briquette_eval::metrics::Metric;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    answer: String,
    references: Vec<String>,
    classes: Vec<String>,
    scores: BTreeMap<Metric, f64>,
}

fn cases() -> Vec<Case> {
    let lines = include_str!("fixtures/metrics/metrics.jsonl").lines();
    let cases: Vec<Case> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 734);
    cases
}

#[test]
fn scores_are_those_of_the_official_scorers() {
    let mut wrong = Vec::new();
    for Case { answer, references, classes, scores } in cases() {
        for (metric, expected) in scores {
            let score = metric.score(&answer, &references, &classes);
            assert!(metric.range().contains(&score), "{} gives {score}", metric.name());
            if (score - expected).abs() >= 1e-6 {
                let name = metric.name();
                wrong.push(format!("{name}: {score}, not {expected}: {answer:?} {references:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} scores differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_metric_has_cases_that_tell_scores_apart() {
    let mut scores: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
    for case in cases() {
        for (metric, score) in case.scores {
            scores.entry(metric).or_default().push(score);
        }
    }
    for &metric in Metric::all() {
        let scores = scores.get(&metric).map_or(&[][..], Vec::as_slice);
        let different: BTreeSet<String> = scores.iter().map(f64::to_string).collect();
        let name = metric.name();
        assert!(scores.len() >= 20, "{name} has {} cases", scores.len());
        assert!(different.len() >= 2, "{name} has the score {different:?} only");
    }
}

#[test]
fn scores_without_references_are_zero() {
    for &metric in Metric::all() {
        for answer in ["", "The correct answer is (A): #### 5, 50%, Paragraph 1", "北京。"] {
            assert_eq!(metric.score(answer, &[], &[]), 0.0, "{} of {answer:?}", metric.name());
        }
    }
}
