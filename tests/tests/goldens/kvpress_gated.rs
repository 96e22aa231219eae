//! The tokens that kvpress's EntropyGatedChunkKVPress keeps.

use std::sync::Arc;

use briquette::{
    Budget, Policy, Scorer,
    score::{EntropyGated, ExpectedAttention, KeyDiff, Knorm},
};
use serde::Deserialize;

use super::{Compressed, Prompt, cases};

#[derive(Deserialize)]
struct Case {
    /// The press inside.
    press: String,
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
}

/// Parameters by kvpress's names and with its defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Params {
    chunk_length: usize,
    low_entropy_chunk_length: usize,
    epsilon: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self { chunk_length: 10, low_entropy_chunk_length: 4, epsilon: 0.0 }
    }
}

#[test]
fn gated_chunks_of_kvpress() {
    for case in cases::<Case>("kvpress_gated.json", 4) {
        let Params { chunk_length: length, low_entropy_chunk_length: few, epsilon } = case.params;
        let of: Arc<dyn Scorer> = match case.press.as_str() {
            "knorm" => Arc::new(Knorm {}),
            "keydiff" => Arc::new(KeyDiff {}),
            "expected_attention" => Arc::new(ExpectedAttention { future: 512, epsilon }),
            press => panic!("no scorer for the press {press}"),
        };
        let policy = Policy::knorm(Budget::Tokens(case.n_kept));
        let policy = policy.with_scorer(EntropyGated { length, few, of });
        let place =
            format!("{} {:?}, {} tokens", case.press, case.params, case.prompt.tokens.len());
        Compressed::new(&policy, &case.prompt.tokens).assert_kept(&case.prompt, &place);
    }
}
