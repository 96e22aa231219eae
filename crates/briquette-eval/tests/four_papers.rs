//! The profile that CompressKV needs, against a reading of the paper alone, in Python:
//! `tests/goldens/four_papers.py` writes the fixture.

use std::path::Path;

use briquette_eval::calibrate::{errors, heads::HeadScore};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    head_scores: HeadScores,
    layer_errors: LayerErrors,
}

/// Eq. 5: a model that generates more than the answer.
#[derive(Deserialize)]
struct HeadScores {
    /// `[head][generated token][position]`
    attention: Vec<Vec<Vec<f32>>>,
    generated: Vec<u32>,
    span_tokens: Vec<u32>,
    span_positions: Vec<usize>,
    scores: Vec<f64>,
}

/// Eq. 8 to 12.
#[derive(Deserialize)]
struct LayerErrors {
    /// `[data set][layer][token][channel]`
    full: Vec<Vec<Vec<Vec<f64>>>>,
    compressed: Vec<Vec<Vec<Vec<f64>>>>,
    errors: Vec<f64>,
}

fn fixture() -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/four_papers.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn assert_close(found: &[f64], expected: &[f64]) {
    let same = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(same && found.len() == expected.len(), "{found:?}, expected {expected:?}");
}

/// The paper sums over the generated tokens that are in the answer; here the model is fed the
/// answer, and it is the mean over its tokens.
#[test]
fn semantic_scores_of_heads_agree_with_the_reading() {
    let HeadScores { attention, generated, span_tokens, span_positions, scores } =
        fixture().head_scores;
    let span = span_positions[0]..span_positions[0] + span_positions.len();
    assert_eq!(span.clone().collect::<Vec<_>>(), span_positions);
    let answers: Vec<bool> = generated.iter().map(|token| span_tokens.contains(token)).collect();
    let found = attention.iter().map(|head| {
        let rows = head.iter().zip(&answers).filter(|(_, answers)| **answers);
        let rows: Vec<&[f32]> = rows.map(|(row, _)| row.as_slice()).collect();
        HeadScore::of(&rows, &span).semantic * rows.len() as f64
    });
    assert_close(&found.collect::<Vec<_>>(), &scores);
}

#[test]
fn errors_of_layers_agree_with_the_reading() {
    let LayerErrors { full, compressed, errors } = fixture().layer_errors;
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt() as f32;
    let of_layer = |(full, compressed): (&Vec<Vec<f64>>, &Vec<Vec<f64>>)| {
        let norms: Vec<f32> = full.iter().map(|full| norm(full)).collect();
        let difference = |(full, compressed): (&Vec<f64>, &Vec<f64>)| {
            norm(&full.iter().zip(compressed).map(|(full, other)| other - full).collect::<Vec<_>>())
        };
        let differences: Vec<f32> = full.iter().zip(compressed).map(difference).collect();
        errors::relative(&differences, &norms) as f32
    };
    let sets: Vec<Vec<f32>> = full
        .iter()
        .zip(&compressed)
        .map(|(full, compressed)| full.iter().zip(compressed).map(of_layer).collect())
        .collect();
    let sets: Vec<Vec<&[f32]>> = sets.iter().map(|prompt| vec![prompt.as_slice()]).collect();
    assert_close(&errors::combine(&sets, errors.len()), &errors);
}
