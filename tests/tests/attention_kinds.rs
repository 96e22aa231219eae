//! Caches of models whose weights are more than a softmax of scaled products: caps, sink logits,
//! ALiBi slopes, and windows in some layers, on every device of the build.

use std::ops::Range;

use briquette::{
    CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, SharedPrefill, ops::Window,
    position::NoPositionEncoding, state::Replay,
};
use briquette_kernels::supports;
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
    reference::{
        Budget, Encoding, Kind, Method, Prefill, Profile, Reduce, Rotate, Settings, Store,
        attention::weighted_mean,
    },
    session::{Session, Turn, chunked, prompt},
};
use burn::tensor::{
    DType, Device, Tensor, TensorData, module::attention, ops::AttentionModuleOptions,
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
        Kind { softcap: Some(CAP), sinks: sinks(), slopes: slopes(), ..none() },
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

/// How the layers of models weigh. Sinks differ between layers, and the first has the window.
fn models() -> Vec<[Kind; SHAPE.layers]> {
    let none = Kind::default;
    let sinks = || [sinks(), sinks().into_iter().rev().collect()];
    let windows = || [Some(7), None];
    let alike = |kind: Kind| [kind.clone(), kind];
    let capped = Kind { softcap: Some(CAP), ..none() };
    let mut all = [capped.clone(), Kind { slopes: slopes(), ..capped.clone() }];
    for ((kind, sinks), window) in all.iter_mut().zip(sinks()).zip(windows()) {
        *kind = Kind { sinks, slopes: slopes(), window, ..capped.clone() };
    }
    vec![
        alike(capped.clone()),
        sinks().map(|sinks| Kind { sinks, ..none() }),
        sinks().map(|sinks| Kind { sinks, ..capped.clone() }),
        alike(Kind { slopes: slopes(), ..none() }),
        windows().map(|window| Kind { window, ..none() }),
        [Some(7), None].map(|chunk| Kind { chunk, ..none() }),
        all,
    ]
}

/// The window of a layer, as its cache is told.
fn window(kind: &Kind) -> Option<Window> {
    kind.window.map(Window::Sliding).or(kind.chunk.map(Window::Chunk))
}

/// An empty cache of such a model.
fn cache(kinds: &[Kind; SHAPE.layers], policy: Policy, device: &Device) -> KvCache {
    let mut config = CacheConfig::default();
    if let Some(cap) = kinds[0].softcap {
        config = config.with_softcap(cap);
    }
    if !kinds[0].sinks.is_empty() {
        let sinks = kinds.iter().map(|kind| of_heads(&kind.sinks, device));
        config = config.with_sinks(sinks.collect());
    }
    if !kinds[0].slopes.is_empty() {
        config = config.with_slopes(of_heads(&kinds[0].slopes, device));
    }
    if kinds.iter().any(|kind| window(kind).is_some()) {
        config = config.with_windows(kinds.iter().map(window).collect());
    }
    KvCache::with_config(SHAPE, policy, config, device).unwrap()
}

/// Attention in f64. `places` tells the positions of a query and an entry, by row, query head,
/// query and column; `None` if the query does not see it.
fn by_hand(
    qkv: [&Tensor<4>; 3],
    kind: &Kind,
    places: impl Fn([usize; 3], usize) -> Option<[usize; 2]>,
) -> Tensor<4> {
    let ([batch, heads, new, width], [_, kv_heads, columns, _]) = (qkv[0].dims(), qkv[1].dims());
    let [q, k, v] = qkv.map(|x| {
        let numbers = x.clone().cast(DType::F32).try_into_vec_as::<f32>().unwrap();
        let rows = numbers.chunks(width).map(|row| row.iter().copied().map(f64::from).collect());
        rows.collect::<Vec<Vec<f64>>>()
    });
    let mut numbers = Vec::new();
    for (number, query) in q.iter().enumerate() {
        let (row, head) = (number / new / heads, number / new % heads);
        let first = (row * kv_heads + head / SHAPE.group()) * columns;
        let place = |column| Some((column, places([row, head, number % new], column)?));
        let sees = |(_, [at, position]): &(usize, [usize; 2])| kind.sees(*at, *position);
        let seen: Vec<_> = (0..columns).filter_map(place).filter(sees).collect();
        let Some((_, [at, _])) = seen.first().copied() else {
            numbers.extend(vec![0.0; width]);
            continue;
        };
        let of = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
            seen.iter().map(|(column, _)| x[first + column].clone()).collect()
        };
        let positions: Vec<usize> = seen.iter().map(|(_, [_, position])| *position).collect();
        let scale = 1.0 / (width as f64).sqrt();
        let weights = kind.weights(head, (query, at), (&of(&k), &positions), scale);
        numbers.extend(weighted_mean(&weights, &of(&v)).into_iter().map(|number| number as f32));
    }
    let data = TensorData::new(numbers, [batch, heads, new, width]);
    Tensor::from_data(data, (&qkv[0].device(), DType::F32))
}

/// Attention of all tokens: by Burn where it can weigh so, else by hand.
fn plain(qkv: [Tensor<4>; 3], kind: &Kind) -> Tensor<4> {
    let is_burns = *kind == Kind { softcap: kind.softcap, ..Kind::default() };
    let [q, k, v] = qkv;
    if is_burns {
        let softcap = kind.softcap;
        let options = AttentionModuleOptions { softcap, is_causal: true, ..Default::default() };
        return attention(q, repeated(k), repeated(v), None, None, options);
    }
    by_hand([&q, &k, &v], kind, |[_, _, query], column| {
        (column <= query).then_some([query, column])
    })
}

const LENGTHS: [usize; 2] = [31, 19];
const DECODED: usize = 6;
const COLUMNS: usize = LENGTHS[0] + DECODED;

type Layers = [[Tensor<4>; 3]; SHAPE.layers];

/// What the layers are given.
fn inputs(device: &Device) -> Layers {
    let mut noise = Noise::new(5);
    let mut random = |heads| noise.tensor([2, heads, COLUMNS, SHAPE.head_dim], device);
    [(); SHAPE.layers]
        .map(|()| [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random))
}

fn padded_prompt() -> Prompt {
    let padding = LENGTHS.map(|length| LENGTHS[0] - length).to_vec();
    Prompt::new(LENGTHS[0]).left_padding(padding)
}

/// Makes a call for these tokens of a layer.
fn call(cache: &mut KvCache, layers: &Layers, layer: usize, tokens: Range<usize>) -> Tensor<4> {
    let [q, k, v] = layers[layer].clone().map(|x| x.narrow(2, tokens.start, tokens.len()));
    cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap()
}

/// A prompt in chunks, and decoded tokens.
fn pieces() -> impl Iterator<Item = Range<usize>> {
    [0..13, 13..LENGTHS[0]].into_iter().chain((LENGTHS[0]..COLUMNS).map(|token| token..token + 1))
}

/// Gives a cache a padded prompt in chunks, and decoded tokens. Returns what the layers are given,
/// and all that they return.
fn give(cache: &mut KvCache) -> (Layers, [Tensor<4>; SHAPE.layers]) {
    let layers = inputs(cache.device());
    cache.begin_prompt(padded_prompt()).unwrap();
    let mut found: [Vec<Tensor<4>>; SHAPE.layers] = Default::default();
    for tokens in pieces() {
        for (layer, found) in found.iter_mut().enumerate() {
            found.push(call(cache, &layers, layer, tokens.clone()));
        }
    }
    (layers, found.map(|outputs| Tensor::cat(outputs, 2)))
}

/// Holds what a layer returned, without its padding, to attention without a cache.
fn compare(qkv: &[Tensor<4>; 3], found: &Tensor<4>, kind: &Kind, what: &str) {
    for (row, length) in LENGTHS.into_iter().enumerate() {
        let (padding, columns) = (LENGTHS[0] - length, found.dims()[2]);
        let own = |x: Tensor<4>| x.narrow(0, row, 1).narrow(2, padding, columns - padding);
        let expected = plain(qkv.clone().map(own), kind);
        let off = farthest(own(found.clone()), expected);
        assert!(off < 1e-4, "{what}, row {row}: {off}");
    }
}

fn farthest(a: Tensor<4>, b: Tensor<4>) -> f32 {
    (a - b).abs().max().try_into_scalar().unwrap()
}

#[test]
fn a_full_cache_is_the_models_own_attention() {
    for backend in backends() {
        for kinds in models() {
            let mut cache = cache(&kinds, Policy::full(), &backend.device);
            let (layers, found) = give(&mut cache);
            for (layer, kind) in kinds.iter().enumerate() {
                let what = format!("{}, {kind:?}", backend.name);
                compare(&layers[layer], &found[layer], kind, &what);
            }
            if supports(&backend.device) && !backend.binds_few() {
                assert!(cache.fallbacks().is_empty(), "{}: {:?}", backend.name, cache.fallbacks());
            }
        }
    }
}

#[test]
fn what_is_read_is_weighed_as_the_model_weighs() {
    let budget = briquette::Budget::Tokens(12);
    for backend in backends() {
        let device = &backend.device;
        let policies = [
            Policy::full(),
            Policy::h2o(budget),
            Policy::snapkv(budget).with_window(8),
            Policy::adakv(budget).with_window(8),
            Policy::streaming_llm(budget),
            Policy::fp8(),
        ];
        for (kinds, policy) in
            models().iter().flat_map(|kinds| policies.clone().map(|policy| (kinds, policy)))
        {
            let what = format!("{}, {}, {kinds:?}", backend.name, policy.name());
            // A codec's pages are read by the kernel, and are laid out by hand.
            let tolerance = if policy.store().repacks_entries() { 2e-3 } else { 1e-4 };
            let mut cache = cache(kinds, policy, device);
            give(&mut cache);
            for (layer, new) in [(0, 1), (0, 5), (1, 1), (1, 5)] {
                let queries =
                    Noise::new(6).tensor([2, SHAPE.query_heads, new, SHAPE.head_dim], device);
                let found = cache.read(layer, queries.clone(), &NoPositionEncoding).unwrap();
                let entries = cache.entries(layer).unwrap().unwrap();
                let columns = entries.keys.dims()[2];
                let positions = entries.positions.try_into_vec_as::<i64>().unwrap();
                let places = |[row, head, query]: [usize; 3], column: usize| {
                    let of_head = row * SHAPE.kv_heads + head / SHAPE.group();
                    let position = usize::try_from(positions[of_head * columns + column]).ok()?;
                    Some([LENGTHS[row] + DECODED + query, position])
                };
                let qkv = [&queries, &entries.keys, &entries.values];
                let off = farthest(found, by_hand(qkv, &kinds[layer], places));
                assert!(off < tolerance, "{what}, layer {layer}, {new} queries: {off}");
            }
        }
    }
}

/// A model that masks by what it is returned, and does the rest by itself, has its own attention.
#[test]
fn masks_of_updates_hide_what_a_layer_hides() {
    for backend in backends() {
        let device = &backend.device;
        let layers = inputs(device);
        // Entries of a layer with a window lie in any order, and slopes go by distances.
        let models = models().into_iter();
        let models: Vec<_> = models
            .filter(|kinds| window(&kinds[0]).is_none() || kinds[0].slopes.is_empty())
            .collect();
        for (kinds, with_queries) in models.iter().flat_map(|it| [(it, false), (it, true)]) {
            let mut cache = cache(kinds, Policy::full(), device);
            cache.begin_prompt(padded_prompt()).unwrap();
            let mut found: [Vec<Tensor<4>>; SHAPE.layers] = Default::default();
            for (tokens, layer) in pieces().flat_map(|it| [(it.clone(), 0), (it, 1)]) {
                let new = tokens.len();
                let [q, k, v] = layers[layer].clone().map(|x| x.narrow(2, tokens.start, new));
                let held = match with_queries {
                    true => cache.update_with(layer, q.clone(), k, v, &NoPositionEncoding),
                    false => cache.update(layer, k, v),
                };
                let held = held.unwrap();
                assert_eq!(held.queries.is_some(), with_queries);
                let columns = held.keys.dims()[2];
                let mask = held.mask.unwrap();
                assert_eq!(mask.dims(), [2, SHAPE.query_heads, new, columns]);
                let hidden = mask.int().try_into_vec_as::<i64>().unwrap();
                let places = |[row, head, query]: [usize; 3], column: usize| {
                    let place = ((row * SHAPE.query_heads + head) * new + query) * columns + column;
                    let distance = (columns - new + query).abs_diff(column);
                    // Distances count alone.
                    (hidden[place] == 0).then(|| [COLUMNS, COLUMNS - distance])
                };
                // What the window hides is said by the mask alone.
                let kind = Kind { window: None, chunk: None, ..kinds[layer].clone() };
                found[layer].push(by_hand([&q, &held.keys, &held.values], &kind, places));
            }
            for ((kind, qkv), found) in kinds.iter().zip(&layers).zip(found) {
                let what = format!("{}, {with_queries}, {kind:?}", backend.name);
                compare(qkv, &Tensor::cat(found, 2), kind, &what);
            }
        }
    }
}

/// What a policy sums is summed of the model's own weights, through either door.
#[test]
fn updates_keep_what_attention_keeps() {
    let budget = briquette::Budget::Tokens(12);
    for backend in backends() {
        let device = &backend.device;
        for kinds in models() {
            for policy in
                [Policy::h2o(budget), Policy::tova(budget), Policy::snapkv(budget).with_window(8)]
            {
                let what = format!("{}, {}, {kinds:?}", backend.name, policy.name());
                let [mut first, mut second] =
                    [(); 2].map(|()| cache(&kinds, policy.clone(), device));
                let (layers, _) = give(&mut first);
                second.begin_prompt(padded_prompt()).unwrap();
                for (tokens, layer) in pieces().flat_map(|it| [(it.clone(), 0), (it, 1)]) {
                    let [q, k, v] =
                        layers[layer].clone().map(|x| x.narrow(2, tokens.start, tokens.len()));
                    second.update_with(layer, q, k, v, &NoPositionEncoding).unwrap();
                }
                for layer in 0..SHAPE.layers {
                    let kept = [&first, &second].map(|it| it.kept_positions(layer).unwrap());
                    assert_eq!(kept[0], kept[1], "{what}, layer {layer}");
                }
            }
        }
    }
}

#[test]
fn a_shared_prefill_weighs_as_the_model_does() {
    let budget = briquette::Budget::Tokens(12);
    for backend in backends() {
        let device = &backend.device;
        let layers = inputs(device);
        for kinds in models() {
            let policies = [
                Policy::full(),
                Policy::h2o(budget),
                Policy::tova(budget),
                Policy::snapkv(budget).with_window(8),
                Policy::streaming_llm(budget),
            ];
            let caches = || policies.clone().map(|policy| cache(&kinds, policy, device));
            let (mut together, alone) = (caches(), caches());
            let mut prefill = SharedPrefill::new(&mut together, padded_prompt()).unwrap();
            for (layer, kind) in kinds.iter().enumerate() {
                let [q, k, v] = layers[layer].clone().map(|x| x.narrow(2, 0, LENGTHS[0]));
                let found = prefill.attend(layer, q, k, v, &NoPositionEncoding).unwrap();
                compare(&layers[layer], &found, kind, &format!("{}, {kind:?}", backend.name));
            }
            for (shared, mut alone) in together.iter_mut().zip(alone) {
                let what = format!("{}, {}, {kinds:?}", backend.name, alone.policy().name());
                alone.begin_prompt(padded_prompt()).unwrap();
                for layer in 0..SHAPE.layers {
                    call(&mut alone, &layers, layer, 0..LENGTHS[0]);
                }
                for (token, layer) in (LENGTHS[0]..COLUMNS).flat_map(|it| [(it, 0), (it, 1)]) {
                    let [found, expected] = [&mut *shared, &mut alone]
                        .map(|cache| call(cache, &layers, layer, token..token + 1).into_data());
                    assert_eq!(found, expected, "{what}, token {token}");
                }
                for layer in 0..SHAPE.layers {
                    let kept = [&*shared, &alone].map(|it| it.kept_positions(layer).unwrap());
                    assert_eq!(kept[0], kept[1], "{what}, layer {layer}");
                }
            }
        }
    }
}

/// Caches that weigh in different ways share no attention.
#[test]
fn a_prefill_is_shared_by_caches_that_weigh_alike() {
    let device = host();
    for kinds in models() {
        let plain = [(); SHAPE.layers].map(|()| Kind::default());
        let mut caches = [&plain, &kinds].map(|kinds| cache(kinds, Policy::full(), &device));
        let error = SharedPrefill::new(&mut caches, padded_prompt()).unwrap_err();
        assert!(matches!(error, Error::SharedPrefill { cache: 1, .. }), "{error}");
    }
}

/// The first layer holds what its next token sees, whatever the policy does in the other one.
#[test]
fn layers_with_windows_hold_them_and_no_more() {
    for backend in backends() {
        let device = &backend.device;
        let sizes = [1, 2, 7, 100];
        let windows = sizes.map(Window::Sliding).into_iter().chain(sizes.map(Window::Chunk));
        for window in windows {
            for policy in [Policy::full(), Policy::h2o(briquette::Budget::Tokens(12))] {
                let what = format!("{}, {}, {window:?}", backend.name, policy.name());
                let kept = policy.budget().is_some().then_some(12);
                let config = CacheConfig::default().with_windows(vec![Some(window), None]);
                let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
                let (layers, found) = give(&mut cache);
                let (kind, window) = match window {
                    Window::Sliding(size) => (Kind { window: Some(size), ..Kind::default() }, size),
                    Window::Chunk(size) => (Kind { chunk: Some(size), ..Kind::default() }, size),
                };
                compare(&layers[0], &found[0], &kind, &what);
                let seen = LENGTHS.map(|length| length + DECODED);
                let before = (window - 1).max(1);
                assert_eq!(cache.tokens_kept(0).unwrap(), seen.map(|seen| seen.min(before)));
                let of_policy = seen.map(|seen| kept.unwrap_or(seen));
                assert_eq!(cache.tokens_kept(1).unwrap(), of_policy, "{what}");
                if kept.is_none() {
                    compare(&layers[1], &found[1], &Kind::default(), &what);
                }
                if supports(device) && !backend.binds_few() {
                    let fallbacks = cache.fallbacks();
                    assert!(fallbacks.is_empty(), "{fallbacks:?}");
                }
                let full = CacheShape { layers: 1, ..SHAPE }.token_bytes(cache.dtype());
                let tokens: usize = seen.iter().map(|&seen| seen.min(window) + seen).sum();
                assert_eq!(cache.bytes_full(), full * tokens);
                assert_eq!(cache.fallback_reason(), None, "{what}");
                cache.reset();
                let (layers, again) = give(&mut cache);
                compare(&layers[0], &again[0], &kind, &what);
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
        new(CacheConfig::default().with_windows(vec![Some(Window::Chunk(0)), None])),
    ] {
        assert!(matches!(error, Error::InvalidParameter { parameter: "windows", .. }), "{error}");
    }
    for policy in [
        Policy::cake(briquette::Budget::Tokens(64)),
        Policy::h2o(briquette::Budget::Bytes(1 << 20)),
    ] {
        let error = windows(vec![Some(4), None], policy);
        assert!(error.to_string().contains("layers with a window"), "{error}");
    }
    for backend in backends().into_iter().filter(|backend| backend.device != device) {
        let elsewhere = Tensor::<1>::zeros([4], &backend.device);
        let error = new(CacheConfig::default().with_slopes(elsewhere));
        assert!(matches!(error, Error::WrongDevice { tensor: "slopes", .. }), "{error}");
    }
}
