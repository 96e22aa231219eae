//! The tokens that kvpress's FinchPress keeps.

use briquette::{Budget, Policy};
use serde::Deserialize;

use super::{Compressed, Next, Prompt, cases};

#[derive(Deserialize)]
struct Case {
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
    #[serde(flatten)]
    next: Next,
}

/// Parameters by kvpress's names.
#[derive(Debug, Deserialize)]
struct Params {
    /// Tokens that it finds behind the delimiter.
    window_size: usize,
}

#[test]
fn questions_of_kvpress() {
    for case in cases::<Case>("kvpress_finch.json", 3) {
        let policy =
            Policy::finch(Budget::Tokens(case.n_kept)).with_window(case.params.window_size);
        let place = format!("{:?}, {} tokens", case.params, case.prompt.tokens.len());
        let compressed = Compressed::new(&policy, &case.prompt.tokens);
        compressed.assert_kept(&case.prompt, &place);
        compressed.assert_next(&case.next, &place);
    }
}
