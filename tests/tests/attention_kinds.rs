//! Caches of models whose weights are more than a softmax of scaled products: caps, sink logits,
//! ALiBi slopes, and windows in some layers, on every device of the build.

use briquette::{
    CacheConfig, CacheShape, Error, KvCache, Policy, Prompt,
    ops::{Fallback, OpError},
    position::NoPositionEncoding,
    state::Replay,
};
use briquette_kernels::supports;
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
    reference::{
        Budget, Encoding, Kind, Method, Prefill, Profile, Reduce, Rotate, Settings, Store,
    },
    session::{Session, Turn, chunked, prompt},
};
use burn::tensor::{
    DType, Device, Tensor, TensorData, activation::softmax, module::attention,
    ops::AttentionModuleOptions,
};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const CAP: f64 = 1.5;

fn sinks() -> Vec<f64> {
    vec![-1.0, 0.0, 0.5, 2.0]
}

fn slopes() -> Vec<f64> {
    vec![0.5, 0.25, 0.0625, 0.0]
}

fn kinds() -> [Kind; 4] {
    let none = Kind::default;
    [
        Kind { softcap: Some(CAP), ..none() },
        Kind { sinks: sinks(), ..none() },
        Kind { slopes: slopes(), ..none() },
        Kind { softcap: Some(CAP), sinks: sinks(), slopes: slopes(), window: None },
    ]
}

fn session(method: Method, decode_every: Option<usize>, kind: Kind) -> Session {
    // A model has slopes or rotates, and not both.
    let encoding = match kind.slopes.is_empty() {
        true => Encoding::Rotary { theta: 10_000.0 },
        false => Encoding::None,
    };
    let settings = Settings {
        layers: SHAPE.layers,
        query_heads: SHAPE.query_heads,
        kv_heads: SHAPE.kv_heads,
        head_dim: SHAPE.head_dim,
        scale: 1.0 / (SHAPE.head_dim as f64).sqrt(),
        kind,
        encoding,
        method,
        profile: Profile::default(),
        budget: Budget::Tokens(16),
        prefill: Prefill::AtEnd,
        decode_every,
    };
    let turns = vec![
        chunked(&[40, 23, 9], &[16, 24]),
        Turn::Decode(4),
        prompt(&[12, 9, 10]),
        Turn::Decode(2),
    ];
    Session { settings, turns, dtype: DType::F32, seed: 11 }
}

/// Outputs, and what is kept, against the f64 reference.
#[test]
fn caches_see_the_weights_that_the_model_sees() {
    let ems = Method { reduce: Reduce::ems(2.0, 0.6, Rotate::Own), ..Method::ems().with_window(5) };
    let kivi = Store::Quantized { bits: 8, group: 4, residual: 6 };
    let methods = [
        (Method::full(), None),
        (Method::h2o(), Some(1)),
        (Method::tova(), Some(1)),
        (Method::snapkv().with_window(8), None),
        (Method::adakv().with_window(5), None),
        (Method::streaming_llm(), Some(1)),
        (ems, Some(1)),
        (Method { store: kivi, ..Method::full() }, None),
        (Method::fp8(), None),
    ];
    for backend in backends() {
        for (index, (method, decode_every)) in methods.into_iter().enumerate() {
            if index > 3 && !backend.is_quick() {
                continue;
            }
            for kind in kinds() {
                println!("{}, {}, {kind:?}", backend.name, method.name);
                session(method, decode_every, kind).check(&backend.device);
            }
        }
    }
}

fn of_heads(list: &[f64], device: &Device) -> Tensor<1> {
    let list: Vec<f32> = list.iter().map(|&number| number as f32).collect();
    let data = TensorData::new(list, [SHAPE.query_heads]);
    Tensor::from_data(data, (device, DType::F32))
}

/// The keys or values of each query head.
fn repeated(x: Tensor<4>) -> Tensor<4> {
    let [batch, heads, columns, width] = x.dims();
    let x = x.unsqueeze_dim::<5>(2).expand([batch, heads, SHAPE.group(), columns, width]);
    x.reshape([batch, heads * SHAPE.group(), columns, width])
}

/// How a layer weighs.
#[derive(Clone, Debug, Default)]
struct Weighing {
    softcap: Option<f64>,
    sinks: Option<Tensor<1>>,
    window: Option<usize>,
}

/// Attention of all tokens by Burn, or by hand where it has neither sinks nor windows.
fn plain([q, k, v]: [Tensor<4>; 3], weighing: Weighing) -> Tensor<4> {
    let (k, v) = (repeated(k), repeated(v));
    let Weighing { softcap, sinks, window } = weighing;
    if sinks.is_none() && window.is_none() {
        let options = AttentionModuleOptions { scale: None, softcap, is_causal: true };
        return attention(q, k, v, None, None, options);
    }
    let [batch, heads, tokens, width] = q.dims();
    let mut scores = q.matmul(k.swap_dims(2, 3)) / (width as f64).sqrt();
    if let Some(cap) = softcap {
        scores = (scores / cap).tanh() * cap;
    }
    let all = Tensor::<2>::ones([tokens, tokens], &scores.device());
    let mut hidden = all.clone().triu(1);
    if let Some(window) = window {
        hidden = hidden + all.tril(-(window as i64));
    }
    let mut scores = vec![scores + hidden.reshape([1, 1, tokens, tokens]) * -1e30];
    if let Some(sinks) = sinks {
        scores.push(sinks.reshape([1, heads, 1, 1]).expand([batch, heads, tokens, 1]));
    }
    softmax(Tensor::cat(scores, 3), 3).narrow(3, 0, tokens).matmul(v)
}

const LENGTHS: [usize; 2] = [31, 19];
const DECODED: usize = 6;
const COLUMNS: usize = LENGTHS[0] + DECODED;

type Layers = [[Tensor<4>; 3]; SHAPE.layers];

/// Gives a cache a padded prompt in chunks, and decoded tokens. Returns what the layers are given,
/// and all that they return.
fn give(cache: &mut KvCache) -> (Layers, [Tensor<4>; SHAPE.layers]) {
    let device = cache.device().clone();
    let mut noise = Noise::new(5);
    let mut random = |heads| noise.tensor([2, heads, COLUMNS, SHAPE.head_dim], &device);
    let layers = [(); SHAPE.layers]
        .map(|()| [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random));
    let padding = LENGTHS.map(|length| LENGTHS[0] - length).to_vec();
    cache.begin_prompt(Prompt::new(LENGTHS[0]).left_padding(padding)).unwrap();
    let mut found: [Vec<Tensor<4>>; SHAPE.layers] = Default::default();
    let tokens = (LENGTHS[0]..COLUMNS).map(|token| (token, 1));
    for (start, length) in [(0, 13), (13, LENGTHS[0] - 13)].into_iter().chain(tokens) {
        for (layer, found) in found.iter_mut().enumerate() {
            let [q, k, v] = layers[layer].clone().map(|x| x.narrow(2, start, length));
            found.push(cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap());
        }
    }
    (layers, found.map(|outputs| Tensor::cat(outputs, 2)))
}

/// Holds what a layer returned, without its padding, to attention without a cache.
fn compare(qkv: &[Tensor<4>; 3], found: &Tensor<4>, weighing: &Weighing, what: &str) {
    for (row, length) in LENGTHS.into_iter().enumerate() {
        let padding = LENGTHS[0] - length;
        let own = |x: Tensor<4>| x.narrow(0, row, 1).narrow(2, padding, COLUMNS - padding);
        let expected = plain(qkv.clone().map(own), weighing.clone());
        let off = (own(found.clone()) - expected).abs().max();
        let off = off.try_into_scalar::<f32>().unwrap();
        assert!(off < 1e-4, "{what}, row {row}: {off}");
    }
}

/// Sinks differ between layers.
#[test]
fn a_full_cache_is_the_models_own_attention() {
    for backend in backends() {
        let device = &backend.device;
        let sinks = [sinks(), sinks().into_iter().rev().collect()];
        let sinks = sinks.map(|sinks| of_heads(&sinks, device));
        for (softcap, has_sinks) in [(Some(CAP), false), (None, true), (Some(CAP), true)] {
            let mut config = CacheConfig::default();
            if let Some(cap) = softcap {
                config = config.with_softcap(cap);
            }
            if has_sinks {
                config = config.with_sinks(sinks.to_vec());
            }
            let mut cache = KvCache::with_config(SHAPE, Policy::full(), config, device).unwrap();
            let (layers, found) = give(&mut cache);
            for (layer, (qkv, found)) in layers.iter().zip(&found).enumerate() {
                let sinks = has_sinks.then(|| sinks[layer].clone());
                let weighing = Weighing { softcap, sinks, window: None };
                compare(qkv, found, &weighing, &format!("{}, {softcap:?}", backend.name));
            }
            if supports(device) {
                let kind = if softcap.is_some() { "softcap" } else { "sinks" };
                let counted = cache.fallbacks().into_iter().any(|fallback| {
                    matches!(fallback.reason, OpError::NoKernel { what, .. } if what == kind)
                });
                assert!(counted, "{}: {:?}", backend.name, cache.fallbacks());
            }
        }
    }
}

/// The first layer holds what its next token sees, whatever the policy does in the other one.
#[test]
fn layers_with_windows_hold_them_and_no_more() {
    for backend in backends() {
        let device = &backend.device;
        for window in [1, 2, 7, 100] {
            for policy in [Policy::full(), Policy::h2o(briquette::Budget::Tokens(12))] {
                let what = format!("{}, {}, {window}", backend.name, policy.name());
                let kept = policy.budget().is_some().then_some(12);
                let config = CacheConfig::default().with_windows(vec![Some(window), None]);
                let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
                let (layers, found) = give(&mut cache);
                let weighing = Weighing { window: Some(window), ..Weighing::default() };
                compare(&layers[0], &found[0], &weighing, &what);
                let seen = LENGTHS.map(|length| length + DECODED);
                let before = (window - 1).max(1);
                assert_eq!(cache.tokens_kept(0).unwrap(), seen.map(|seen| seen.min(before)));
                let of_policy = seen.map(|seen| kept.unwrap_or(seen));
                assert_eq!(cache.tokens_kept(1).unwrap(), of_policy, "{what}");
                if kept.is_none() {
                    compare(&layers[1], &found[1], &Weighing::default(), &what);
                }
                // What the newest token sees is all that is held: kernels decode it.
                if window > 1 && supports(device) && !backend.binds_few() {
                    let decoded = |fallback: &Fallback| fallback.operation == "decode_attention";
                    assert!(!cache.fallbacks().iter().any(decoded), "{:?}", cache.fallbacks());
                }
                let full = CacheShape { layers: 1, ..SHAPE }.token_bytes(cache.dtype());
                let tokens: usize = seen.iter().map(|&seen| seen.min(window) + seen).sum();
                assert_eq!(cache.bytes_full(), full * tokens);
                assert_eq!(cache.fallback_reason(), None, "{what}");
                cache.reset();
                let (layers, again) = give(&mut cache);
                compare(&layers[0], &again[0], &weighing, &what);
            }
        }
    }
}

/// A saved cache goes on as it would have, and a draft that is taken back leaves the window.
#[test]
fn windows_go_to_files_and_stay_behind_drafts() {
    let device = host();
    let config = || CacheConfig::default().with_windows(vec![Some(7), None]);
    let policy = || Policy::h2o(briquette::Budget::Tokens(12));
    let mut cache = KvCache::with_config(SHAPE, policy(), config(), &device).unwrap();
    let (layers, _) = give(&mut cache);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prefix");
    cache.save(&path).unwrap();
    let mut loaded = KvCache::load(&path, SHAPE, policy(), config(), &device).unwrap();
    let mut drafted = cache.fork();
    let next = |cache: &mut KvCache, start: usize, length: usize| {
        let call = |(layer, qkv): (usize, &[Tensor<4>; 3])| {
            let [q, k, v] = qkv.clone().map(|x| x.narrow(2, start, length));
            cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap()
        };
        layers.iter().enumerate().map(call).collect::<Vec<_>>()
    };
    let expected = next(&mut cache, 3, 1);
    for (found, expected) in next(&mut loaded, 3, 1).into_iter().zip(&expected) {
        assert_eq!(found.into_data(), expected.to_data());
    }
    let columns = drafted.columns_seen().into_iter().max().unwrap();
    drafted.begin_decode(3).unwrap();
    next(&mut drafted, 9, 3);
    drafted.truncate(columns).unwrap();
    assert_eq!(drafted.tokens_kept(0).unwrap(), [6, 6]);
    let found = next(&mut drafted, 3, 1).swap_remove(0);
    let off = (found - expected[0].clone()).abs().max().try_into_scalar::<f32>().unwrap();
    assert!(off < 1e-4, "{off}");
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let device = host();
    let new = |config| KvCache::with_config(SHAPE, Policy::full(), config, &device).unwrap_err();
    let zeros = |heads: usize| Tensor::<1>::zeros([heads], &device);
    for cap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = new(CacheConfig::default().with_softcap(cap));
        assert!(
            matches!(&error, Error::InvalidParameter { parameter: "softcap", value, .. }
                if *value == cap.to_string()),
            "{error}"
        );
    }
    let error = new(CacheConfig::default().with_sinks(vec![zeros(4)]));
    assert!(matches!(error, Error::InvalidParameter { parameter: "sinks", .. }), "{error}");
    let error = new(CacheConfig::default().with_sinks(vec![zeros(4), zeros(2)]));
    assert!(matches!(error, Error::TensorShape { tensor: "sinks", .. }), "{error}");
    let error = new(CacheConfig::default().with_slopes(zeros(5)));
    assert!(matches!(error, Error::TensorShape { tensor: "slopes", .. }), "{error}");
    let windows = |windows: Vec<Option<usize>>, policy: Policy| {
        let config = CacheConfig::default().with_windows(windows);
        KvCache::with_config(SHAPE, policy, config, &device).unwrap_err()
    };
    for error in [
        windows(vec![Some(4)], Policy::full()),
        windows(vec![Some(0), None], Policy::full()),
        windows(vec![Some(4), None], Policy::cake(briquette::Budget::Tokens(64))),
        windows(vec![Some(4), None], Policy::h2o(briquette::Budget::Bytes(1 << 20))),
    ] {
        assert!(matches!(error, Error::InvalidParameter { parameter: "windows", .. }), "{error}");
    }
    for backend in backends().into_iter().filter(|backend| backend.device != device) {
        let elsewhere = Tensor::<1>::zeros([4], &backend.device);
        let error = new(CacheConfig::default().with_slopes(elsewhere));
        assert!(matches!(error, Error::WrongDevice { tensor: "slopes", .. }), "{error}");
    }
}
