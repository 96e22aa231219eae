//! The presses of kvpress that work on a prompt.

use briquette::{
    Budget, CacheShape, Policy, Schedule,
    allocate::{HeadAdaptive, Pyramid},
    policy::{PositionMode, Recent},
    score::{Normalize, Pool},
};
use serde::Deserialize;

use super::{Case, Compressed, Next, Prompt, cases, counts_of_length, kept_of};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    compression_ratio: f64,
    window_size: usize,
    kernel_size: usize,
    n_sink: usize,
    /// Whether keys are rotated to their rank in the cache.
    key_rotation: bool,
}

/// The composition that does what a press does. A press works on the prompt only.
fn policy(case: &Case<Params>) -> Policy {
    let params = &case.params;
    let budget = Budget::Tokens(case.n_kept);
    let policy = match case.press.as_str() {
        "snapkv" => Policy::snapkv(budget)
            .with_window(params.window_size)
            .with_pool(Pool::avg(params.kernel_size)),
        "streaming_llm" => {
            let positions =
                if params.key_rotation { PositionMode::InCache } else { PositionMode::Written };
            Policy::streaming_llm(budget).with_sinks(params.n_sink).with_positions(positions)
        }
        "tova" => Policy::tova(budget),
        "observed_attention" => {
            Policy::h2o(budget).with_normalize(Normalize::Mean).with_recent(Recent::Tokens(0))
        }
        // FinchPress has a fixture of its own. The window is what it finds behind the delimiter.
        "" => Policy::finch(budget).with_window(params.window_size),
        press => panic!("no policy for the press {press}"),
    };
    policy.with_schedule(Schedule::prefill_only())
}

fn compare(fixture: &str, count: usize) {
    for case in cases::<Case<Params>>(fixture, count) {
        let share = kept_of(case.prompt.tokens.len(), case.params.compression_ratio);
        assert_eq!(case.n_kept, share, "what kvpress keeps, {}", case.place());
        assert!(case.next.is_some(), "{}", case.place());
        case.compare(&policy(&case));
    }
}

#[test]
fn presses_of_kvpress() {
    compare("kvpress.json", 24);
}

#[test]
fn questions_of_kvpress() {
    compare("kvpress_finch.json", 3);
}

#[derive(Deserialize)]
struct PyramidCase {
    params: PyramidParams,
    n_tokens: usize,
    budget: usize,
    beta_here: f64,
    kept_per_layer: Vec<usize>,
    kept_per_layer_here: Vec<usize>,
    agrees: bool,
    #[serde(flatten)]
    golden: Option<Golden>,
}

#[derive(Debug, Deserialize)]
struct PyramidParams {
    compression_ratio: f64,
    window_size: usize,
    /// Missing where only numbers matter.
    #[serde(default = "one")]
    kernel_size: usize,
    beta: f64,
}

fn one() -> usize {
    1
}

/// Further fields of cases that agree.
#[derive(Deserialize)]
struct Golden {
    #[serde(flatten)]
    prompt: Prompt,
    #[serde(flatten)]
    next: Next,
}

#[test]
fn pyramid_of_kvpress() {
    for case in cases::<PyramidCase>("kvpress_pyramid.json", 9) {
        let place = format!("{:?}, {} tokens", case.params, case.n_tokens);
        let PyramidParams { compression_ratio, window_size, kernel_size, beta } = case.params;
        assert_eq!(case.budget, kept_of(case.n_tokens, compression_ratio));
        let policy = Policy::pyramidkv(Budget::Tokens(case.budget))
            .with_window(window_size)
            .with_pool(Pool::avg(kernel_size))
            .with_allocator(Pyramid { beta: case.beta_here });
        let layers = case.kept_per_layer_here.len();
        let shape = CacheShape { layers, query_heads: 1, kv_heads: 1, head_dim: 2 };
        let kept = counts_of_length(policy.clone(), shape, case.n_tokens).concat();
        assert_eq!(kept, case.kept_per_layer_here, "{place}");
        assert_eq!(kept == case.kept_per_layer, case.agrees, "{place}");
        assert_eq!(case.golden.is_some(), case.agrees, "{place}");

        let Some(golden) = case.golden else { continue };
        assert!(case.beta_here > beta, "kvpress's pyramid has its window inside, {place}");
        let compressed = Compressed::new(&policy, &golden.prompt.tokens);
        compressed.assert_kept(&golden.prompt, &place);
        compressed.assert_next(&golden.next, &place);
    }
}

#[derive(Deserialize)]
struct AdaptiveCase {
    params: AdaptiveParams,
    budget: usize,
    floor: usize,
    #[serde(flatten)]
    golden: Golden,
}

#[derive(Debug, Deserialize)]
struct AdaptiveParams {
    compression_ratio: f64,
    window_size: usize,
    kernel_size: usize,
    alpha_safeguard: f64,
}

#[test]
fn adakv_of_kvpress() {
    for case in cases::<AdaptiveCase>("kvpress_adakv.json", 4) {
        let Golden { prompt, next } = case.golden;
        let place = format!("{:?}, {} tokens", case.params, prompt.tokens.len());
        let AdaptiveParams { compression_ratio, window_size, kernel_size, alpha_safeguard } =
            case.params;
        let share = kept_of(prompt.tokens.len(), compression_ratio);
        assert_eq!(case.budget, share, "what kvpress keeps, {place}");
        let policy = Policy::adakv(Budget::Tokens(case.budget))
            .with_window(window_size)
            .with_pool(Pool::avg(kernel_size))
            .with_allocator(HeadAdaptive { floor: alpha_safeguard, ..Default::default() });

        let compressed = Compressed::new(&policy, &prompt.tokens);
        for heads in compressed.counts() {
            assert_eq!(heads.iter().sum::<usize>(), heads.len() * case.budget, "{place}");
            assert!(heads.iter().all(|&kept| kept >= case.floor), "{heads:?}, {place}");
        }
        compressed.assert_kept(&prompt, &place);
        compressed.assert_next(&next, &place);
    }
}
