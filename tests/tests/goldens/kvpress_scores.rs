//! The presses of kvpress that look at keys, values and queries.

use std::sync::Arc;

use briquette::{
    Budget, Policy, Schedule,
    allocate::HeadAdaptive,
    policy::Recent,
    score::{
        CapKv, ChunkKv, Compactor, CriticalKv, CurDkv, EntropyGated, ExpectedAttention, HeadMean,
        KeyDiff, Knorm, LagKv, Leverage, NonCausal, Pool, Scorer, WindowAttention,
    },
};
use serde::Deserialize;

use super::{Case, cases, kept_of};

/// Parameters by kvpress's names. A default of kvpress that is not zero stands where it is used.
#[derive(Debug, Default, Deserialize)]
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
    n_future_positions: Option<usize>,
    epsilon: f64,
    tau: Option<f64>,
    alpha_safeguard: Option<f64>,
    /// Of ChunkKVPress or EntropyGatedChunkKVPress around it.
    chunk_length: Option<usize>,
    low_entropy_chunk_length: Option<usize>,
    /// There where CriticalKVPress is around it.
    first_stage_ratio: Option<f64>,
    window_size: usize,
    kernel_size: usize,
}

impl Params {
    fn expected_attention(&self) -> ExpectedAttention {
        let future = self.n_future_positions.unwrap_or(512);
        ExpectedAttention { future, epsilon: self.epsilon }
    }
}

/// The composition that does what a press does. A press works on the prompt only.
fn policy(case: &Case<Params>) -> Policy {
    let params = &case.params;
    let budget = Budget::Tokens(case.n_kept);
    let leverage = Leverage { sketch: params.sketch_dimension, ..Leverage::default() };
    let attention = NonCausal { chunk: params.chunk_size, pool: Some(Pool::avg(3)) };
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
        "expected_attention" => {
            Policy::expected_attention(budget).with_scorer(params.expected_attention())
        }
        "capkv" => {
            let future = params.n_future_positions.unwrap_or(512);
            Policy::capkv(budget).with_scorer(CapKv { tau: params.tau.unwrap_or(5.0), future })
        }
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
        "expected_attention" => Arc::new(params.expected_attention()),
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
    for case in cases::<Case<Params>>("kvpress_scores.json", 26) {
        let share = kept_of(case.prompt.tokens.len(), case.params.compression_ratio);
        assert_eq!(case.n_kept, share, "what kvpress keeps, {}", case.place());
        case.compare(&policy(&case));
    }
}

#[test]
fn gated_chunks_of_kvpress() {
    for case in cases::<Case<Params>>("kvpress_gated.json", 4) {
        let length = case.params.chunk_length.unwrap_or(10);
        let few = case.params.low_entropy_chunk_length.unwrap_or(4);
        let of = around(&case.press, &case.params);
        let policy = Policy::knorm(Budget::Tokens(case.n_kept));
        case.compare(&policy.with_scorer(EntropyGated { length, few, of }));
    }
}
