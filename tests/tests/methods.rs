//! Every method, on every device of the build, against the f64 reference: kept positions exactly, outputs to
//! 1e-4 (f32) and 2e-2 (f16, bf16).

use briquette_tests::{
    backends::backends,
    reference::{Budget, Encoding, Method, Pool, Prefill, Settings, attention},
    session::{Session, Turn, chunked, compare, prompt, tolerance},
};
use burn::tensor::DType;

/// (query heads, kv heads): grouped, multi-head, multi-query.
const HEADS: [(usize, usize); 4] = [(4, 2), (2, 2), (8, 2), (4, 1)];

struct Script {
    turns: Vec<Turn>,
    budget: Budget,
    prefill: Prefill,
    decode_every: Option<usize>,
}

/// The sessions of a method that compresses in decoding every `usual` tokens. Slow devices play the first
/// with all heads, the next two with the first ones, and no others.
fn scripts(usual: Option<usize>) -> Vec<Script> {
    let script = |turns: Vec<Turn>| Script {
        turns,
        budget: Budget::Tokens(16),
        prefill: Prefill::AtEnd,
        decode_every: usual,
    };
    vec![
        // Unequal prompts, one of them all padding in the first chunk; then a second prompt on top.
        script(vec![
            chunked(&[40, 23, 9], &[16, 24]),
            Turn::Decode(3),
            prompt(&[12, 9, 10]),
            Turn::Decode(2),
        ]),
        // Chunks that bring a row nothing but padding, on top of what it holds.
        Script {
            decode_every: Some(5),
            prefill: Prefill::EveryChunk,
            ..script(vec![
                prompt(&[20, 20]),
                Turn::Decode(4),
                chunked(&[3, 7], &[1; 7]),
                Turn::Decode(2),
            ])
        },
        Script {
            decode_every: Some(2),
            ..script(vec![
                prompt(&[20, 11]),
                Turn::Decode(3),
                chunked(&[2, 5], &[1; 5]),
                Turn::Decode(3),
            ])
        },
        script(vec![prompt(&[40]), Turn::Decode(6)]),
        script(vec![chunked(&[40], &[13, 1, 19, 7]), Turn::Decode(3)]),
        script(vec![prompt(&[40]), Turn::Decode(3), chunked(&[14], &[9, 5]), Turn::Decode(3)]),
        // A second prompt that is shorter than any window, and one of a single token.
        script(vec![prompt(&[30, 30]), prompt(&[3, 1]), Turn::Decode(1), prompt(&[1, 1])]),
        Script { decode_every: Some(4), ..script(vec![prompt(&[30]), Turn::Decode(10)]) },
        // The budget is reached in decoding.
        Script { decode_every: Some(3), ..script(vec![prompt(&[6]), Turn::Decode(17)]) },
        Script {
            decode_every: Some(1),
            prefill: Prefill::Never,
            ..script(vec![prompt(&[24]), Turn::Decode(4)])
        },
        Script { decode_every: None, ..script(vec![prompt(&[24]), Turn::Decode(4)]) },
        Script { budget: Budget::Ratio(0.4), ..script(vec![prompt(&[40, 31]), Turn::Decode(6)]) },
        Script {
            prefill: Prefill::EveryChunk,
            ..script(vec![chunked(&[40, 28], &[13, 20, 7]), Turn::Decode(2)])
        },
    ]
}

fn settings(
    (query_heads, kv_heads): (usize, usize),
    head_dim: usize,
    method: Method,
    script: &Script,
) -> Settings {
    Settings {
        query_heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f64).sqrt(),
        encoding: Encoding::Rotary { theta: 10_000.0 },
        method,
        budget: script.budget,
        prefill: script.prefill,
        decode_every: script.decode_every,
    }
}

fn check(method: Method, usual: Option<usize>) {
    for backend in backends() {
        for dtype in backend.dtypes() {
            for (head_index, heads) in HEADS.into_iter().enumerate() {
                for (index, script) in scripts(usual).iter().enumerate() {
                    if !backend.is_quick() && index > 0 && (head_index > 0 || index > 2) {
                        continue;
                    }
                    let session = Session {
                        layers: 2,
                        settings: settings(heads, 16, method, script),
                        turns: script.turns.clone(),
                        dtype,
                        seed: 100 * head_index as u64 + index as u64,
                    };
                    println!("{}, {dtype:?}, {heads:?} heads, script {index}", backend.name);
                    session.check(&backend.device);
                }
            }
        }
    }
}

#[test]
fn full() {
    check(Method::Full, None);
}

#[test]
fn local_window() {
    check(Method::LocalWindow, Some(1));
}

#[test]
fn streaming_llm() {
    check(Method::StreamingLlm { sinks: 4 }, Some(1));
}

#[test]
fn sinks_and_window_at_written_positions() {
    check(Method::SinksAndWindow { sinks: 4 }, Some(1));
}

#[test]
fn h2o() {
    check(Method::H2o { mean: false, recent_half: true }, Some(1));
}

#[test]
fn h2o_mean() {
    check(Method::H2o { mean: true, recent_half: false }, Some(1));
}

#[test]
fn tova() {
    check(Method::Tova, Some(1));
}

#[test]
fn snapkv() {
    check(Method::SnapKv { window: 8, pool: Pool::Average(5) }, None);
}

#[test]
fn snapkv_max_pool() {
    check(Method::SnapKv { window: 5, pool: Pool::Max(7) }, None);
}

/// The parameters of the papers, at a size where they matter.
#[test]
fn default_parameters() {
    let methods = [
        (Method::H2o { mean: false, recent_half: true }, Some(1)),
        (Method::SnapKv { window: 32, pool: Pool::Average(5) }, None),
        (Method::StreamingLlm { sinks: 4 }, Some(1)),
    ];
    for backend in backends().into_iter().filter(|backend| backend.is_quick()) {
        for (method, decode_every) in methods {
            let turns = vec![prompt(&[120, 80]), Turn::Decode(3)];
            let script =
                Script { turns, budget: Budget::Tokens(48), prefill: Prefill::AtEnd, decode_every };
            let session = Session {
                layers: 1,
                settings: settings((4, 2), 32, method, &script),
                turns: script.turns,
                dtype: DType::F32,
                seed: 7,
            };
            session.check(&backend.device);
        }
    }
}

/// Another softmax scale, another RoPE base, and no positions at all.
#[test]
fn scale_and_encoding() {
    let device = briquette_tests::backends::host();
    for encoding in [Encoding::None, Encoding::Rotary { theta: 100.0 }] {
        for method in [Method::Tova, Method::StreamingLlm { sinks: 2 }] {
            let script = &scripts(Some(1))[0];
            let session = Session {
                layers: 1,
                settings: Settings { scale: 0.6, encoding, ..settings((4, 2), 8, method, script) },
                turns: script.turns.clone(),
                dtype: DType::F32,
                seed: 11,
            };
            session.check(&device);
        }
    }
}

/// The reference's own cache against attention without any cache.
#[test]
fn full_cache_is_dense_attention() {
    let script = Script {
        turns: vec![chunked(&[20, 13], &[9, 11])],
        budget: Budget::Tokens(1),
        prefill: Prefill::Never,
        decode_every: None,
    };
    let session = Session {
        layers: 1,
        settings: settings((4, 2), 8, Method::Full, &script),
        turns: script.turns,
        dtype: DType::F32,
        seed: 3,
    };
    for (row, padding) in session.traces().iter().zip([0, 7]) {
        let (mut q, mut k, mut v) = (vec![vec![vec![9.0; 8]; padding]; 4], vec![], vec![]);
        k.resize(2, vec![vec![9.0; 8]; padding]);
        v.resize(2, vec![vec![9.0; 8]; padding]);
        let mut outputs = vec![vec![vec![0.0; 8]; padding]; 4];
        for call in &row[0].calls {
            let append = |to: &mut Vec<Vec<Vec<f64>>>, from: &[Vec<Vec<f64>>]| {
                to.iter_mut().zip(from).for_each(|(to, from)| to.extend_from_slice(from));
            };
            append(&mut q, &call.tokens.q);
            append(&mut k, &call.tokens.k);
            append(&mut v, &call.tokens.v);
            append(&mut outputs, &call.outputs);
        }
        let dense = attention::dense(
            &q,
            &k,
            &v,
            padding,
            session.settings.encoding,
            session.settings.scale,
        );
        compare(&outputs, &dense, 1e-12, "the reference against itself");
    }
    assert_eq!(tolerance(DType::F32), 1e-4);
}
