//! The presses of kvpress that look at keys, values and queries.

use briquette::{
    Budget, Policy, Schedule,
    allocate::HeadAdaptive,
    policy::Recent,
    score::{
        Capacity, ChunkAttention, Compactor, Cur, ExpectedAttention, LagRelative, Leverage, Pool,
    },
};
use serde::Deserialize;

use super::{Cases, Compressed, Prompt, fixture};

#[derive(Deserialize)]
struct Case {
    press: String,
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
}

/// By kvpress's names and with its defaults.
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
        }
    }
}

/// The composition that does what a press does. A press works on the prompt only.
fn policy(case: &Case) -> Policy {
    let params = &case.params;
    let budget = Budget::Tokens(case.n_kept);
    let leverage = Leverage { sketch: params.sketch_dimension, ..Leverage::default() };
    let attention = ChunkAttention { chunk: params.chunk_size, pool: Some(Pool::avg(3)) };
    let future = params.n_future_positions;
    let policy = match case.press.as_str() {
        "knorm" => Policy::knorm(budget),
        "keydiff" => Policy::keydiff(budget),
        "lagkv" => Policy::lagkv(budget).with_score(LagRelative { lag: params.lag_size }),
        "cur" => Policy::cur(budget).with_score(Cur { window: params.local_window_size }),
        "leverage" => Policy::leverage(budget).with_score(leverage),
        "chunk_attention" => Policy::chunk_attention(budget).with_score(attention),
        "compactor" => Policy::compactor(budget).with_score(Compactor {
            leverage,
            attention,
            blend: params.blending,
        }),
        "expected_attention" => Policy::expected_attention(budget)
            .with_score(ExpectedAttention { future, epsilon: params.epsilon }),
        "capkv" => Policy::capkv(budget).with_score(Capacity { tau: params.tau, future }),
        press => panic!("no policy for the press {press}"),
    };
    let policy = policy
        .with_sinks(params.n_sink + params.num_sinks + params.sink_size_start)
        .with_recent(Recent::Tokens(0))
        .with_schedule(Schedule::prefill_only());
    match params.alpha_safeguard {
        Some(floor) => policy.with_allocate(HeadAdaptive { floor, by: None }),
        None => policy,
    }
}

#[test]
fn scores_of_kvpress() {
    let presses: Cases<Case> = fixture("kvpress_scores.json");
    for case in presses.cases {
        let tokens = &case.prompt.tokens;
        let place = format!("{} {:?}, {} tokens", case.press, case.params, tokens.len());
        let kept_share = tokens.len() as f64 * (1.0 - case.params.compression_ratio);
        assert_eq!(case.n_kept, kept_share as usize, "what kvpress keeps, {place}");
        Compressed::new(&policy(&case), tokens).assert_kept(&case.prompt, &place);
    }
}
