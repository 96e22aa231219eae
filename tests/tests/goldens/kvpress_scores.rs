//! The presses of kvpress that look at keys, values and queries.

use std::sync::Arc;

use briquette::{
    Budget, Policy, Schedule, Scorer,
    allocate::HeadAdaptive,
    policy::Recent,
    score::{
        CapKv, ChunkKv, Compactor, CriticalKv, CurDkv, ExpectedAttention, HeadMean, KeyDiff, Knorm,
        LagKv, Leverage, NonCausal, Pool, WindowAttention,
    },
};
use serde::Deserialize;

use super::{Compressed, Prompt, cases};

#[derive(Deserialize)]
struct Case {
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
    compression_ratio: f64,
    n_sink: usize,
    num_sinks: usize,
    sink_size_start: usize,
    lag_size: usize,
    local_window_size: usize,
    sketch_dimension: usize,
    chunk_size: usize,
    blending: Option<f64>,
    n_future_positions: usize,
    epsilon: f64,
    tau: f64,
    alpha_safeguard: Option<f64>,
    /// There where ChunkKVPress is around it.
    chunk_length: Option<usize>,
    /// There where CriticalKVPress is around it.
    first_stage_ratio: Option<f64>,
    window_size: usize,
    kernel_size: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            compression_ratio: 0.0,
            n_sink: 0,
            num_sinks: 0,
            sink_size_start: 0,
            lag_size: 128,
            local_window_size: 16,
            sketch_dimension: 48,
            chunk_size: 256,
            blending: None,
            n_future_positions: 512,
            epsilon: 0.0,
            tau: 5.0,
            alpha_safeguard: None,
            chunk_length: None,
            first_stage_ratio: None,
            window_size: 0,
            kernel_size: 1,
        }
    }
}

/// The composition that does what a press does. A press works on the prompt only.
fn policy(case: &Case) -> Policy {
    let params = &case.params;
    let budget = Budget::Tokens(case.n_kept);
    let leverage = Leverage { sketch: params.sketch_dimension, ..Leverage::default() };
    let attention = NonCausal { chunk: params.chunk_size, pool: Some(Pool::avg(3)) };
    let future = params.n_future_positions;
    let policy = match case.press.as_str() {
        "snapkv" => Policy::snapkv(budget)
            .with_window(params.window_size)
            .with_pool(Pool::avg(params.kernel_size)),
        "knorm" => Policy::knorm(budget),
        "keydiff" => Policy::keydiff(budget),
        "lagkv" => Policy::lagkv(budget).with_scorer(LagKv { lag: params.lag_size }),
        "curdkv" => Policy::curdkv(budget).with_scorer(CurDkv { window: params.local_window_size }),
        "leverage" => Policy::leverage(budget).with_scorer(leverage),
        "chunk_attention" => Policy::non_causal(budget).with_scorer(attention),
        "compactor" => Policy::compactor(budget).with_scorer(Compactor {
            leverage,
            attention,
            blend: params.blending,
        }),
        "expected_attention" => Policy::expected_attention(budget)
            .with_scorer(ExpectedAttention { future, epsilon: params.epsilon }),
        "capkv" => Policy::capkv(budget).with_scorer(CapKv { tau: params.tau, future }),
        press => panic!("no policy for the press {press}"),
    };
    let policy = policy
        .with_sinks(params.n_sink + params.num_sinks + params.sink_size_start)
        .with_recent(Recent::Tokens(params.window_size))
        .with_schedule(Schedule::prefill_only());
    let policy = match params.alpha_safeguard {
        Some(floor) => policy.with_allocator(HeadAdaptive { floor, ..Default::default() }),
        None => policy,
    };
    let of = || around(&case.press, params);
    if let Some(length) = params.chunk_length {
        return policy.with_scorer(ChunkKv { length, of: of() });
    }
    match params.first_stage_ratio {
        Some(first) => policy.with_scorer(CriticalKv { first, epsilon: 1e-4, of: of() }),
        None => policy,
    }
}

/// The scorer of a press that another is around.
fn around(press: &str, params: &Params) -> Arc<dyn Scorer> {
    match press {
        "knorm" => Arc::new(Knorm {}),
        "keydiff" => Arc::new(KeyDiff {}),
        "snapkv" => Arc::new(WindowAttention {
            window: params.window_size,
            pool: Some(Pool::avg(params.kernel_size)),
            heads: HeadMean::Group,
        }),
        press => panic!("no scorer for the press {press}"),
    }
}

#[test]
fn scores_of_kvpress() {
    for case in cases::<Case>("kvpress_scores.json", 26) {
        let tokens = &case.prompt.tokens;
        let place = format!("{} {:?}, {} tokens", case.press, case.params, tokens.len());
        let kept_share = tokens.len() as f64 * (1.0 - case.params.compression_ratio);
        assert_eq!(case.n_kept, kept_share as usize, "what kvpress keeps, {place}");
        Compressed::new(&policy(&case), tokens).assert_kept(&case.prompt, &place);
    }
}
