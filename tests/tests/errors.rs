//! Every bad input gives a typed error that carries the numbers, and leaves the cache as it was.

use std::sync::Arc;

use briquette::{
    Budget, CacheConfig, CacheShape, Error, InputCheck, KvCache, LayerView, Policy, Profile,
    Prompt, Schedule,
    allocate::{ErrorAware, HeadAdaptive, HeadProfile, Preference, Pyramid, Share, VarianceShare},
    device::float_types,
    policy::Recent,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
    reduce::{EmaMerge, EvictThenMerge, GaussianMerge, Sigma, ValueMerge},
    score::{
        AttentionRequest, Cake, Ems, HeadMean, Normalize, Pick, Pool, RetrievalHeads, RoCo, Scorer,
        WindowAttention,
    },
    store::{Clustered, Dense, Quantized, Ragged},
};
use briquette_tests::{
    backends::{Backend, backends, host},
    profiles::profile,
};
use burn::tensor::{DType, Device, Distribution, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 8 };
const ROWS: usize = 2;

type Qkv = (Tensor<4>, Tensor<4>, Tensor<4>);

/// Holds an error to its variant and to what its message must contain.
macro_rules! assert_error {
    ($error:expr, $kind:pat, [$($part:expr),* $(,)?]) => {{
        let error: Error = $error;
        assert!(matches!(error, $kind), "{error:?} is not {}", stringify!($kind));
        let message = error.to_string();
        $( assert!(message.contains($part), "`{}` does not appear in: {message}", $part); )*
    }};
}

fn random(rows: usize, heads: usize, tokens: usize, head_dim: usize, device: &Device) -> Tensor<4> {
    Tensor::random([rows, heads, tokens, head_dim], Distribution::Normal(0.0, 1.0), device)
}

fn tokens(rows: usize, count: usize, device: &Device) -> Qkv {
    (
        random(rows, SHAPE.query_heads, count, SHAPE.head_dim, device),
        random(rows, SHAPE.kv_heads, count, SHAPE.head_dim, device),
        random(rows, SHAPE.kv_heads, count, SHAPE.head_dim, device),
    )
}

fn give(cache: &mut KvCache, layer: usize, (q, k, v): Qkv) -> Result<Tensor<4>, Error> {
    cache.attend(layer, q, k, v, &NoPositionEncoding)
}

/// Changes the query, the key or the value.
fn change(which: usize, (q, k, v): Qkv, change: impl Fn(Tensor<4>) -> Tensor<4>) -> Qkv {
    match which {
        0 => (change(q), k, v),
        1 => (q, change(k), v),
        _ => (q, k, change(v)),
    }
}

/// Gives every layer the same number of new tokens.
fn advance(cache: &mut KvCache, rows: usize, count: usize) {
    let device = cache.device().clone();
    for layer in 0..SHAPE.layers {
        give(cache, layer, tokens(rows, count, &device)).unwrap();
    }
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::full(),
        Policy::local_window(Budget::Tokens(12)),
        Policy::streaming_llm(Budget::Tokens(12)),
        Policy::h2o(Budget::Tokens(12)),
        Policy::tova(Budget::Tokens(12)),
        Policy::snapkv(Budget::Tokens(12)).with_window(4).with_schedule(Schedule::always(1)),
        Policy::roco(Budget::Tokens(12)).with_sinks(1).with_recent(Recent::Tokens(2)),
        Policy::cake(Budget::Tokens(12))
            .with_scorer(Cake { window: 4, gamma: 200.0, pool: None })
            .with_recent(Recent::Tokens(4)),
        Policy::adakv(Budget::Tokens(12)).with_window(4).with_schedule(Schedule::always(2)),
        Policy::headkv(Budget::Tokens(12)).with_window(4).with_profile(profile(SHAPE)),
        Policy::cam(Budget::Tokens(12)),
        Policy::kvmerger(Budget::Tokens(12)).with_schedule(Schedule::always(1)),
        Policy::d2o(Budget::Tokens(12)),
        Policy::ems(Budget::Tokens(12))
            .with_scorer(Ems { window: 4, pool: None, ..Default::default() })
            .with_recent(Recent::Tokens(4)),
        Policy::compresskv(Budget::Tokens(12)).with_profile(profile(SHAPE)),
        Policy::h2o(Budget::Tokens(12)).with_store(Quantized { bits: 4, group: 8, residual: 3 }),
    ]
}

/// Caches of two rows that have seen a padded prompt and two decoded tokens. They check every token
/// for NaN.
fn caches(device: &Device) -> Vec<KvCache> {
    let used = |policy| {
        let config = CacheConfig::default().with_input_check(InputCheck::Always);
        let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
        cache.begin_prompt(Prompt::new(20).left_padding(vec![0, 7])).unwrap();
        advance(&mut cache, ROWS, 20);
        advance(&mut cache, ROWS, 1);
        advance(&mut cache, ROWS, 1);
        cache
    };
    policies().into_iter().map(used).collect()
}

/// The error of `call`, after making sure that the cache is as it was: what it says about itself,
/// and what it answers to the next `next` tokens.
fn refused<T>(
    cache: &mut KvCache,
    next: usize,
    call: impl FnOnce(&mut KvCache) -> Result<T, Error>,
) -> Error {
    let before = cache.clone();
    let Err(error) = call(cache) else { panic!("not refused: {:?}", cache.policy()) };
    assert_same(cache, &before, &error);

    let device = cache.device().clone();
    let (mut after, mut before) = (cache.clone(), before);
    for layer in 0..SHAPE.layers {
        let qkv = tokens(ROWS, next, &device);
        let outputs = [&mut after, &mut before]
            .map(|cache| give(cache, layer, qkv.clone()).unwrap().into_data());
        assert_eq!(outputs[0], outputs[1], "the next output changed after: {error}");
    }
    assert_same(&after, &before, &error);
    error
}

fn assert_same(cache: &KvCache, before: &KvCache, error: &Error) {
    assert_eq!(cache.tokens_seen(), before.tokens_seen(), "tokens seen after: {error}");
    assert_eq!(cache.bytes_held(), before.bytes_held(), "bytes held after: {error}");
    for layer in 0..SHAPE.layers {
        let kept = [cache, before].map(|cache| cache.kept_positions(layer).unwrap());
        assert_eq!(kept[0], kept[1], "kept positions of layer {layer} after: {error}");
        assert_eq!(cache.tokens_kept(layer).unwrap(), before.tokens_kept(layer).unwrap());
    }
}

#[test]
fn layers() {
    let device = host();
    for mut cache in caches(&device) {
        let error = refused(&mut cache, 1, |cache| give(cache, 2, tokens(ROWS, 1, &device)));
        assert_error!(
            error,
            Error::LayerOutOfRange { layer: 2, layers: 2 },
            ["layer 2", "2 layers"]
        );
        assert_error!(
            cache.kept_positions(5).unwrap_err(),
            Error::LayerOutOfRange { .. },
            ["5", "2"]
        );
        assert_error!(cache.tokens_kept(2).unwrap_err(), Error::LayerOutOfRange { .. }, ["2"]);
    }
}

#[test]
fn shapes() {
    let device = host();
    // (query, key, value) as [rows, heads, tokens, head_dim], and what the message must name.
    let wrong = [
        ([2, 3, 1, 8], [2, 2, 1, 8], [2, 2, 1, 8], "[2, 3, 1, 8]"),
        ([2, 4, 1, 8], [2, 4, 1, 8], [2, 2, 1, 8], "[2, 4, 1, 8]"),
        ([2, 4, 1, 8], [2, 2, 1, 8], [2, 1, 1, 8], "[2, 1, 1, 8]"),
        ([2, 4, 1, 16], [2, 2, 1, 8], [2, 2, 1, 8], "[2, 4, 1, 16]"),
        ([2, 4, 1, 8], [2, 2, 1, 4], [2, 2, 1, 8], "[2, 2, 1, 4]"),
        ([2, 4, 1, 8], [2, 2, 1, 8], [2, 2, 1, 9], "[2, 2, 1, 9]"),
        ([2, 4, 5, 8], [2, 2, 3, 8], [2, 2, 5, 8], "[2, 2, 3, 8]"),
        ([2, 4, 1, 8], [2, 2, 1, 8], [2, 2, 2, 8], "[2, 2, 2, 8]"),
        ([2, 4, 1, 8], [1, 2, 1, 8], [2, 2, 1, 8], "[1, 2, 1, 8]"),
    ];
    for mut cache in caches(&device) {
        for (q, k, v, named) in wrong {
            let random = |[rows, heads, tokens, head_dim]: [usize; 4]| {
                random(rows, heads, tokens, head_dim, &device)
            };
            let error =
                refused(&mut cache, 1, |cache| give(cache, 1, (random(q), random(k), random(v))));
            assert_error!(error, Error::TensorShape { .. }, [named, "expected"]);
        }
    }
}

#[test]
fn batch() {
    let device = host();
    for mut cache in caches(&device) {
        for rows in [1, 3] {
            for count in [1, 6] {
                let error =
                    refused(&mut cache, 1, |cache| give(cache, 0, tokens(rows, count, &device)));
                assert_error!(
                    error,
                    Error::BatchChanged { expected: 2, .. },
                    [&rows.to_string(), "2"]
                );
            }
        }
    }
    // The batch is that of the cache, not of each layer.
    let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    give(&mut cache, 0, tokens(2, 4, &device)).unwrap();
    assert_error!(
        give(&mut cache, 1, tokens(3, 4, &device)).unwrap_err(),
        Error::BatchChanged { expected: 2, found: 3 },
        ["3", "2"]
    );
}

#[test]
fn data_types() {
    let device = host();
    for mut cache in caches(&device) {
        for wrong in 0..3 {
            let error = refused(&mut cache, 1, |cache| {
                give(
                    cache,
                    0,
                    change(wrong, tokens(ROWS, 1, &device), |tensor| tensor.cast(DType::F64)),
                )
            });
            assert_error!(error, Error::DataType { dtype: DType::F64, .. }, ["F64"]);
        }
    }
    for dtype in [DType::I32, DType::F64] {
        let config = CacheConfig::default().with_dtype(dtype);
        let error = KvCache::with_config(SHAPE, Policy::full(), config, &device).unwrap_err();
        assert_error!(error, Error::DataType { .. }, [&format!("{dtype:?}")]);
    }
    // Software Vulkan has no bf16.
    for Backend { device, .. } in &backends() {
        let has = float_types(device);
        for dtype in [DType::F16, DType::BF16].into_iter().filter(|dtype| !has.contains(dtype)) {
            let config = CacheConfig::default().with_dtype(dtype);
            let error = KvCache::with_config(SHAPE, Policy::full(), config, device).unwrap_err();
            assert_error!(error, Error::DataType { .. }, [&format!("{dtype:?}"), ": F32"]);
        }
    }
}

/// A device of another kind, if the build holds one.
#[test]
fn devices() {
    let backends = backends();
    let [one, other, ..] = backends.as_slice() else { return };
    let mut cache = KvCache::new(SHAPE, Policy::h2o(Budget::Tokens(12)), &one.device).unwrap();
    advance(&mut cache, ROWS, 20);
    for wrong in 0..3 {
        let error = refused(&mut cache, 1, |cache| {
            let elsewhere = |tensor: Tensor<4>| Tensor::zeros(tensor.dims(), &other.device);
            give(cache, 0, change(wrong, tokens(ROWS, 1, &one.device), elsewhere))
        });
        assert_error!(error, Error::WrongDevice { .. }, ["device"]);
    }
    let error = briquette::device::open("abacus").unwrap_err();
    assert_error!(error, Error::Device { .. }, ["abacus", &one.name, &other.name]);
    assert_error!(
        briquette::device::open("Flex").unwrap_err(),
        Error::Device { .. },
        ["did you mean `flex`? there is no backend `Flex`; this build has: "]
    );
    assert_error!(briquette::device::open("flex:x").unwrap_err(), Error::Device { .. }, ["flex:x"]);
    assert_error!(briquette::device::open("").unwrap_err(), Error::Device { .. }, ["flex"]);
}

#[test]
fn budgets() {
    let device = host();
    let new = |policy| KvCache::new(SHAPE, policy, &device).unwrap_err();
    assert_error!(
        new(Policy::streaming_llm(Budget::Tokens(3))),
        Error::BudgetTooSmall { tokens: 3, sinks: 4, recent: 0, .. },
        ["3", "4"]
    );
    assert_error!(
        new(Policy::snapkv(Budget::Tokens(31))),
        Error::BudgetTooSmall { tokens: 31, sinks: 0, recent: 32, .. },
        ["31", "32"]
    );
    assert_error!(
        new(Policy::h2o(Budget::Tokens(10)).with_sinks(6)),
        Error::BudgetTooSmall { tokens: 10, sinks: 6, recent: 5, .. },
        ["10", "6", "5"]
    );
    assert_error!(
        Policy::named("snapkv", Budget::Tokens(8)).unwrap_err(),
        Error::BudgetTooSmall { .. },
        ["8"]
    );
    // Where all is taken by what is protected, no score chooses.
    let all_protected = |policy: Policy, tokens, sinks, recent| {
        let budget = Budget::Tokens(tokens);
        assert_error!(
            new(policy.clone().with_budget(budget)),
            Error::BudgetAllProtected { .. },
            [
                &format!(
                    "a budget of {tokens} keeps {tokens} tokens, all taken by the {sinks} sinks"
                ),
                &format!("and {recent} recent"),
                &format!("`{}` choose none: give at least {}", policy.name(), tokens + 1),
            ]
        );
        policy.with_budget(Budget::Tokens(tokens + 1)).check().unwrap();
    };
    let any = Budget::Tokens(100);
    all_protected(Policy::snapkv(any), 32, 0, 32);
    all_protected(Policy::snapkv(any).with_sinks(4).with_recent(Recent::Tokens(28)), 32, 4, 28);
    all_protected(Policy::tova(any), 1, 0, 1);
    all_protected(Policy::cake(any), 32, 0, 32);
    all_protected(Policy::roco(any), 14, 4, 10);
    all_protected(Policy::h2o(any).with_sinks(5), 10, 5, 5);
    // A window is chosen by nothing else.
    for policy in [Policy::local_window(any), Policy::streaming_llm(any)] {
        let policy = policy.with_recent(Recent::Tokens(8));
        let least = Budget::Tokens(policy.protect().sinks + 8);
        policy.with_budget(least).check().unwrap();
    }

    // What comes of a budget in bytes depends on the batch, so it only shows when tokens arrive.
    let bytes = |bytes| {
        let policy = Policy::snapkv(Budget::Bytes(bytes)).with_window(8);
        let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
        let before = cache.clone();
        let result = give(&mut cache, 0, tokens(ROWS, 50, &device)).map(|_| cache.bytes_held());
        if let Err(error) = &result {
            assert_same(&cache, &before, error);
        }
        result
    };
    let error = bytes(1000).unwrap_err();
    let Error::BytesTooFew { bytes: 1000, rows: ROWS, least } = error else { panic!("{error:?}") };
    assert_error!(error, Error::BytesTooFew { .. }, ["1000", &least.to_string()]);
    // What it asks for is enough, and a byte less is not; it bounds one layer of two here.
    assert!(bytes(least as u64).unwrap() <= least / SHAPE.layers);
    assert_error!(
        bytes(least as u64 - 1).unwrap_err(),
        Error::BudgetAllProtected { .. } | Error::BudgetTooSmall { .. },
        [&Budget::Bytes(least as u64 - 1).to_string()]
    );
}

#[test]
fn parameters() {
    let device = host();
    let new = |policy| KvCache::new(SHAPE, policy, &device).unwrap_err();
    let tova = Policy::tova;
    let wrong = [
        (tova(Budget::Tokens(0)), "0"),
        (tova(Budget::Bytes(0)), "0"),
        (tova(Budget::Ratio(0.0)), "0"),
        (tova(Budget::Ratio(-0.5)), "-50%"),
        (tova(Budget::Ratio(1.5)), "150%"),
        (tova(Budget::Ratio(f64::NAN)), "NaN"),
        (tova(Budget::Tokens(9)).with_schedule(Schedule::always(0)), "0"),
        (tova(Budget::Tokens(9)).with_recent(Recent::Share(1.25)), "1.25"),
        (Policy::snapkv(Budget::Tokens(9)).with_window(0), "0"),
        (Policy::snapkv(Budget::Tokens(40)).with_pool(Pool::avg(4)), "4"),
        (Policy::snapkv(Budget::Tokens(40)).with_pool(Pool::max(0)), "0"),
    ];
    for (policy, value) in wrong {
        assert_error!(new(policy), Error::InvalidParameter { .. }, [value, "must be"]);
    }
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let config = CacheConfig::default().with_softmax_scale(scale);
        let error = KvCache::with_config(SHAPE, Policy::full(), config, &device).unwrap_err();
        assert_error!(error, Error::InvalidParameter { .. }, ["softmax_scale", &scale.to_string()]);
    }
    for shape in [
        CacheShape { layers: 0, ..SHAPE },
        CacheShape { query_heads: 0, ..SHAPE },
        CacheShape { kv_heads: 0, ..SHAPE },
        CacheShape { head_dim: 0, ..SHAPE },
        CacheShape { query_heads: 5, ..SHAPE },
        CacheShape { kv_heads: 8, ..SHAPE },
    ] {
        let error = KvCache::new(shape, Policy::full(), &device).unwrap_err();
        assert_error!(
            error,
            Error::InvalidShape { .. },
            [&format!("query_heads: {}", shape.query_heads)]
        );
    }
    for (head_dim, max_positions, theta, value) in [
        (7, 10, 1e4, "7"),
        (0, 10, 1e4, "0"),
        (8, 0, 1e4, "0"),
        (8, 10, -2.0, "-2"),
        (8, 10, f64::NAN, "NaN"),
    ] {
        let error = RotaryEmbedding::new(head_dim, max_positions, theta, &device).unwrap_err();
        assert_error!(error, Error::InvalidParameter { .. }, [value]);
    }
    for (text, part) in
        [("", "``"), ("12x", "12x"), ("-3", "-3"), ("0%", "0%"), ("140%", "140%"), ("1.5", "1.5")]
    {
        let error = text.parse::<Budget>().unwrap_err();
        assert_error!(
            error,
            Error::BudgetText { .. } | Error::InvalidParameter { .. },
            [part.trim_end_matches('%')]
        );
    }
}

/// Every parameter of every stage, one beyond its range at a time.
#[test]
fn parameters_of_stages() {
    let device = host();
    let budget = Budget::Tokens(64);
    let window = |window| WindowAttention { window, pool: None, heads: HeadMean::Group };
    let retrieval = |pick| WindowAttention {
        heads: HeadMean::Retrieval(RetrievalHeads { pick, ..RetrievalHeads::top(1) }),
        ..window(8)
    };
    let variance = Cake { window: 8, gamma: 1.0, pool: None };
    let preference = Preference { window: 8, tau1: 1.0, tau2: 1.0 };
    let gaussian = GaussianMerge { protect: 0.1, sigma: Sigma::Adaptive, ..Default::default() };
    let ems = EvictThenMerge::default();
    let ema = EmaMerge::default();
    let kivi = Quantized { bits: 2, group: 32, residual: 128 };
    let scored = Ems { pool: None, ..Default::default() };
    let adaptive = HeadAdaptive::default();
    let h2o = || Policy::h2o(budget);
    let wrong = [
        (h2o().with_scorer(RoCo { std_share: 1.5 }), "score.std-share is 1.5"),
        (h2o().with_scorer(Cake { gamma: -1.0, ..variance }), "score.gamma is -1"),
        (h2o().with_scorer(Cake { window: 0, ..variance }), "score.window is 0"),
        (h2o().with_scorer(Ems { window: 0, ..scored }), "score.window is 0"),
        (h2o().with_scorer(retrieval(Pick::Top(0))), "pick.top is 0"),
        (
            h2o().with_scorer(retrieval(Pick::Adaptive { threshold: 2.0, least: 4 })),
            "pick.adaptive.threshold is 2",
        ),
        (h2o().with_allocator(Pyramid { beta: 0.5 }), "allocate.beta is 0.5"),
        (h2o().with_allocator(Preference { tau1: 0.0, ..preference }), "allocate.tau1 is 0"),
        (h2o().with_allocator(Preference { tau2: -1.0, ..preference }), "allocate.tau2 is -1"),
        (h2o().with_allocator(HeadAdaptive { floor: 1.1, ..adaptive }), "allocate.floor is 1.1"),
        (
            h2o().with_allocator(HeadAdaptive { by: Some(window(0)), ..adaptive }),
            "score.window is 0",
        ),
        (
            h2o().with_allocator(HeadProfile { beta: 0.9, by: Default::default() }),
            "allocate.beta is 0.9",
        ),
        (h2o().with_allocator(ErrorAware { least: 0, most: 3.0 }), "allocate.least is 0"),
        (h2o().with_allocator(ErrorAware { least: 1, most: 0.5 }), "allocate.most is 0.5"),
        (
            h2o().with_reducer(ValueMerge { window: 0, seed: 0, prompts: false }),
            "reduce.window is 0",
        ),
        (h2o().with_reducer(EmaMerge { beta: 1.2, ..ema }), "reduce.beta is 1.2"),
        (h2o().with_reducer(GaussianMerge { protect: -0.1, ..gaussian }), "reduce.protect is -0.1"),
        (
            h2o().with_reducer(GaussianMerge { threshold: Some(1.5), ..gaussian }),
            "reduce.threshold is 1.5",
        ),
        (
            h2o().with_reducer(GaussianMerge { sigma: Sigma::Fixed(0.0), ..gaussian }),
            "reduce.sigma.fixed is 0",
        ),
        (h2o().with_reducer(EvictThenMerge { gamma: 0.5, ..ems }), "reduce.gamma is 0.5"),
        (h2o().with_reducer(EvictThenMerge { tau: 1.5, ..ems }), "reduce.tau is 1.5"),
        (h2o().with_reducer(EvictThenMerge { tau: -0.5, ..ems }), "reduce.tau is -0.5"),
        (h2o().with_store(Quantized { bits: 3, ..kivi }), "store.bits is 3"),
        (h2o().with_store(Quantized { group: 10, ..kivi }), "store.group is 10"),
        (h2o().with_store(Quantized { group: 0, ..kivi }), "store.group is 0"),
    ];
    for (policy, part) in wrong {
        let error = KvCache::new(SHAPE, policy, &device).unwrap_err();
        assert_error!(error, Error::InvalidParameter { .. }, [part, "must be"]);
    }
    // A group of 32 numbers does not divide 40 channels.
    let shape = CacheShape { head_dim: 40, ..SHAPE };
    let error = KvCache::new(shape, Policy::kivi(2), &device).unwrap_err();
    assert_error!(error, Error::InvalidParameter { .. }, ["store.group is 32", "40"]);
}

/// Entries that merging cannot reach, and stores that cannot hold the remaining ones.
#[test]
fn stages_that_do_not_fit() {
    let device = host();
    let budget = Budget::Tokens(64);
    let new = |policy| KvCache::new(SHAPE, policy, &device).unwrap_err();
    let merge = |protect| GaussianMerge { protect, ..Default::default() };
    // 32 recent tokens, 19 heavy ones and the 20 runs between them are more than 64.
    assert_error!(
        new(Policy::h2o(budget).with_reducer(merge(0.3))),
        Error::MergeBudget { target: 64, recent: 32, heavy: 19, reachable: 71, .. },
        ["64", "32", "19", "71"]
    );
    assert_error!(
        new(Policy::h2o(Budget::Ratio(0.5)).with_reducer(merge(0.3))),
        Error::MergeBudget { .. },
        ["50%"]
    );
    // With a threshold of its own nothing has to be reached.
    let fixed = GaussianMerge { threshold: Some(0.75), ..merge(0.3) };
    KvCache::new(SHAPE, Policy::h2o(budget).with_reducer(fixed), &device).unwrap();

    for (policy, part) in [
        (Policy::adakv(budget).with_store(Dense {}), "head-adaptive"),
        (Policy::kvmerger(budget).with_store(Dense {}), "gaussian-merge"),
        (Policy::ems(budget).with_store(Dense {}), "evict-then-merge"),
        (Policy::ems(budget).with_store(Ragged {}), "evict-then-merge"),
        (Policy::ems(budget).with_store(Quantized::kivi(2)), "evict-then-merge"),
    ] {
        assert_error!(new(policy), Error::StoreMismatch { .. }, [part]);
    }
    KvCache::new(SHAPE, Policy::adakv(budget).with_store(Clustered {}), &device).unwrap();
    let share = VarianceShare { share: Share::Inverse, normalize: false };
    KvCache::new(SHAPE, Policy::snapkv(budget).with_allocator(share), &device).unwrap();
}

/// Where budgets depend on the layers before, a prompt must go through the layers in order.
#[test]
fn layers_out_of_order() {
    let device = host();
    for policy in [Policy::cake(Budget::Tokens(40)), Policy::d2o(Budget::Tokens(40))] {
        let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
        let error = refused(&mut cache, 50, |cache| give(cache, 1, tokens(ROWS, 50, &device)));
        assert_error!(
            error,
            Error::LayerOrder { layer: 1, missing: 0, .. },
            ["layer 1", "layer 0"]
        );
    }
    let mut cache = KvCache::new(SHAPE, Policy::snapkv(Budget::Tokens(40)), &device).unwrap();
    give(&mut cache, 1, tokens(ROWS, 50, &device)).unwrap();
    give(&mut cache, 0, tokens(ROWS, 50, &device)).unwrap();
}

#[test]
fn profiles() {
    let device = host();
    for name in ["headkv", "compresskv", "compresskv-adakv", "compresskv-headkv"] {
        let policy = Policy::named(name, Budget::Tokens(64)).unwrap();
        let error = KvCache::new(SHAPE, policy.clone(), &device).unwrap_err();
        assert_error!(error, Error::ProfileMissing { .. }, [name, "calibrate"]);

        let other = CacheShape { layers: 3, ..SHAPE };
        let policy = policy.with_profile(profile(other));
        let error = KvCache::new(SHAPE, policy.clone(), &device).unwrap_err();
        assert_error!(error, Error::ProfileShape { .. }, ["layers: 2", "layers: 3"]);
        KvCache::new(other, policy, &device).unwrap();
    }

    let good = profile(SHAPE);
    let spoiled = |spoil: &dyn Fn(&mut Profile)| {
        let mut profile = (*good).clone();
        spoil(&mut profile);
        assert!(Profile::from_json(&profile.to_json().unwrap()).is_err());
        let policy = Policy::headkv(Budget::Tokens(64)).with_profile(Arc::new(profile));
        KvCache::new(SHAPE, policy, &device).unwrap_err()
    };
    let invalid = [
        (spoiled(&|profile| profile.heads.semantic.truncate(1)), "1 layers"),
        (spoiled(&|profile| profile.heads.headkv[1].truncate(3)), "Headkv"),
        (spoiled(&|profile| profile.heads.copy_paste[0][0] = -1.0), "negative"),
        (spoiled(&|profile| profile.layer_errors.push(0.1)), "3 layer errors"),
    ];
    for (error, part) in invalid {
        assert_error!(error, Error::InvalidProfile { .. }, [part]);
    }
    assert_error!(
        Profile::from_json("{\n  \"model\": 3\n}").unwrap_err(),
        Error::ProfileFile { .. },
        ["line 2"]
    );
    assert_error!(
        Profile::from_file("/nowhere/profile.json").unwrap_err(),
        Error::ProfileFile { .. },
        ["/nowhere/profile.json"]
    );

    // A policy file holds its profile, or the place of it, seen from the file.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine.json"), good.to_json().unwrap()).unwrap();
    let policy = Policy::headkv(Budget::Tokens(64));
    let by_path = format!("profile = \"mine.json\"\n{}", policy.to_toml().unwrap());
    std::fs::write(dir.path().join("policy.toml"), by_path).unwrap();
    let read = Policy::from_file(dir.path().join("policy.toml")).unwrap();
    assert_eq!(read.profile(), Some(good.as_ref()));
    let whole = policy.with_profile(good.clone()).to_toml().unwrap();
    assert_eq!(Policy::from_toml(&whole).unwrap().profile(), Some(good.as_ref()));
}

#[test]
fn numbers_that_are_not_finite() {
    for backend in backends() {
        let device = &backend.device;
        let caches = if backend.is_quick() { caches(device) } else { caches(device).split_off(3) };
        for mut cache in caches {
            for (count, number, wrong) in [
                (1, f32::NAN, 0),
                (1, f32::INFINITY, 1),
                (1, f32::NAN, 2),
                (9, f32::NEG_INFINITY, 0),
                (9, f32::NAN, 1),
            ] {
                let spoil = |tensor: Tensor<4>| {
                    let mut data = tensor.into_data();
                    let numbers: &mut [f32] = data.as_mut_slice().unwrap();
                    let last = numbers.len() - 1;
                    numbers[last] = number;
                    numbers[last / 2] = number;
                    Tensor::from_data(data, device)
                };
                let spoiled = change(wrong, tokens(ROWS, count, device), spoil);
                let error = refused(&mut cache, 1, |cache| give(cache, 1, spoiled));
                assert_error!(
                    error,
                    Error::NotFinite { layer: 1, count: 2, .. },
                    ["layer 1", "2 numbers"]
                );
            }
        }
    }
}

/// Prompts are checked unless it is said otherwise, and decoded tokens, for which a check is a
/// round trip, are not.
#[test]
fn input_check() {
    let device = host();
    let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    let broken = |count: usize| {
        let (q, k, v) = tokens(ROWS, count, &device);
        (q.mul_scalar(f32::NAN), k, v)
    };
    let error = refused(&mut cache, 4, |cache| give(cache, 0, broken(5)));
    let numbers = ROWS * 4 * 5 * 8;
    assert_error!(error, Error::NotFinite { .. }, [&numbers.to_string()]);
    advance(&mut cache, ROWS, 5);
    assert!(give(&mut cache, 0, broken(1)).is_ok());
}

#[test]
fn policy_files() {
    for policy in policies() {
        let json = policy.to_json().unwrap();
        let toml = policy.to_toml().unwrap();
        assert_eq!(Policy::from_json(&json).unwrap().to_json().unwrap(), json);
        assert_eq!(Policy::from_toml(&toml).unwrap().to_toml().unwrap(), toml);

        // An unknown field in the file, and in each of its tables.
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let mut places = Vec::new();
        objects(&value, "", &mut places);
        assert!(places.len() > 2, "{json}");
        for place in places {
            let mut wrong = value.clone();
            let object = wrong.pointer_mut(&place).unwrap().as_object_mut().unwrap();
            object.insert("colour".into(), "red".into());
            let text = wrong.to_string();
            match Policy::from_json(&text) {
                Err(error) => assert_error!(error, Error::PolicyFile { .. }, ["JSON"]),
                Ok(_) => panic!("an unknown field at `{place}` was accepted: {text}"),
            }
        }
        let error = Policy::from_json(&json.replacen('{', "{\"colour\": \"red\",", 1)).unwrap_err();
        assert_error!(error, Error::PolicyFile { .. }, ["JSON", "colour", "line 1"]);
        let error = Policy::from_toml(&format!("colour = \"red\"\n{toml}")).unwrap_err();
        assert_error!(error, Error::PolicyFile { .. }, ["TOML", "colour", "line 1"]);
        let error = Policy::from_toml(&format!("{toml}\n[protect.colour]\nred = 1\n")).unwrap_err();
        assert_error!(error, Error::PolicyFile { .. }, ["TOML"]);
    }
    for text in ["", "{", "[]", "name = 3"] {
        assert_error!(Policy::from_json(text).unwrap_err(), Error::PolicyFile { .. }, ["JSON"]);
        assert_error!(Policy::from_toml(text).unwrap_err(), Error::PolicyFile { .. }, ["TOML"]);
    }
    let missing = std::env::temp_dir().join("there-is-no-such-policy.toml");
    let error = Policy::from_file(&missing).unwrap_err();
    assert_error!(error, Error::PolicyFile { .. }, ["there-is-no-such-policy.toml"]);
    let error = Policy::from_file("policy.yaml").unwrap_err();
    assert_error!(error, Error::PolicyFile { .. }, ["policy.yaml"]);
}

/// The JSON pointers of all objects whose keys are field names. An object with a single field may
/// stand for a variant, where a second one is refused as well.
fn objects(value: &serde_json::Value, place: &str, places: &mut Vec<String>) {
    if let Some(object) = value.as_object() {
        places.push(place.to_owned());
        for (name, field) in object {
            objects(field, &format!("{place}/{name}"), places);
        }
    }
}

#[test]
fn names() {
    let error = Policy::named("snap-kv", Budget::Tokens(64)).unwrap_err();
    assert_error!(
        error,
        Error::UnknownMethod { .. },
        ["`snap-kv` is no method: did you mean `snapkv`? Known: full, "]
    );
    for method in briquette::methods() {
        assert_eq!(Policy::named(&method.name, None).unwrap().name(), method.name);
    }
}

/// A policy whose schedule compresses needs a budget, and only such a policy takes one.
#[test]
fn budgets_that_are_missing_or_given_in_vain() {
    let (device, budget) = (host(), Budget::Ratio(0.25));
    let of = |policy: &Policy| (policy.takes_budget(), policy.budget());
    for name in ["full", "kivi", "fp8"] {
        let policy = Policy::named(name, None).unwrap();
        assert_eq!(of(&policy), (false, None));
        assert_eq!(of(&policy.clone().with_default_budget(budget)), (false, None));
        policy.check().unwrap();
        for error in [
            Policy::named(name, budget).unwrap_err(),
            policy.clone().with_budget(budget).check().unwrap_err(),
            KvCache::new(SHAPE, policy.with_budget(budget), &device).unwrap_err(),
        ] {
            assert_error!(error, Error::BudgetUnused { .. }, [name, "25%"]);
        }
    }
    let packs = Policy::full().with_store(Quantized::kivi(4)).with_budget(budget);
    assert_error!(packs.check().unwrap_err(), Error::BudgetUnused { .. }, ["full", "25%"]);
    // Where something is dropped beside, the budget is of what stays.
    let both = Policy::snapkv(budget).with_store(Quantized::kivi(4));
    assert_eq!(of(&both), (true, Some(budget)));
    both.check().unwrap();

    for method in briquette::methods() {
        let policy = Policy::named(&method.name, None).unwrap();
        if policy.takes_budget() {
            let error = policy.check().unwrap_err();
            assert_error!(error, Error::BudgetMissing { .. }, [&method.name, "[budget]", "tokens"]);
        }
    }

    // A file without a budget takes the one that it is given, and compresses to it.
    let text = Policy::tova(Budget::Tokens(12)).to_toml().unwrap();
    let text = text.replace("[budget]\ntokens = 12\n", "");
    let read = Policy::from_toml(&text).unwrap();
    assert_eq!(of(&read), (true, None));
    let error = KvCache::new(SHAPE, read.clone(), &device).unwrap_err();
    assert_error!(error, Error::BudgetMissing { .. }, ["tova", "tokens = 256"]);
    let mut cache = KvCache::new(SHAPE, read.with_budget(budget), &device).unwrap();
    advance(&mut cache, ROWS, 20);
    assert_eq!(cache.tokens_kept(0).unwrap(), [5, 5]);
    // One that never compresses has nothing that a budget is of.
    let never = text.replace("prefill = \"at-end\"\ndecode-every = 1", "prefill = \"never\"");
    assert_eq!(of(&Policy::from_toml(&never).unwrap()), (false, None));
    let error = Policy::from_toml(&format!("{never}\n[budget]\ntokens = 12\n")).unwrap_err();
    assert_error!(error, Error::BudgetUnused { .. }, ["tova", "12"]);
}

#[test]
fn empty_prompts() {
    let device = host();
    for mut cache in caches(&device) {
        let error = refused(&mut cache, 1, |cache| cache.begin_prompt(Prompt::new(0)));
        assert_error!(error, Error::EmptyPrompt { columns: 0, .. }, ["0 columns"]);
        let error = refused(&mut cache, 1, |cache| give(cache, 0, tokens(ROWS, 0, &device)));
        assert_error!(error, Error::EmptyPrompt { .. } | Error::TensorShape { .. }, ["0"]);
        for padding in [6, 7] {
            let prompt = Prompt::new(6).left_padding(vec![1, padding]);
            let error = refused(&mut cache, 1, |cache| cache.begin_prompt(prompt));
            assert_error!(
                error,
                Error::EmptyPrompt { row: 1, columns: 6, .. },
                ["row 1", "6", &padding.to_string()]
            );
        }
    }
}

#[test]
fn padding_rows() {
    let device = host();
    for mut cache in caches(&device) {
        let error = refused(&mut cache, 1, |cache| {
            let mut trial = cache.clone();
            trial.begin_prompt(Prompt::new(6).left_padding(vec![1, 2, 3]))?;
            give(&mut trial, 0, tokens(ROWS, 6, &device))
        });
        assert_error!(error, Error::PaddingRows { expected: 2, found: 3 }, ["3", "2"]);
    }
    // A cache that has seen nothing learns its batch from the first tensors.
    let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    let error = match cache.begin_prompt(Prompt::new(6).left_padding(vec![1, 2, 3])) {
        Err(error) => error,
        Ok(()) => give(&mut cache, 0, tokens(ROWS, 6, &device)).unwrap_err(),
    };
    assert_error!(error, Error::PaddingRows { expected: 2, found: 3 }, ["3", "2"]);
}

#[test]
fn prompts_that_overrun() {
    let device = host();
    for mut cache in caches(&device) {
        cache.begin_prompt(Prompt::new(10).left_padding(vec![4, 0])).unwrap();
        advance(&mut cache, ROWS, 6);
        let error = refused(&mut cache, 4, |cache| give(cache, 0, tokens(ROWS, 5, &device)));
        assert_error!(
            error,
            Error::PromptOverrun { declared: 10, arrived: 6, new: 5, .. },
            ["10", "11", "5", "declare the whole prompt once"]
        );

        let error = refused(&mut cache, 4, |cache| cache.begin_prompt(Prompt::new(3)));
        assert_error!(error, Error::PromptUnfinished { arrived: 6, declared: 10, .. }, ["6", "10"]);
    }
}

#[test]
fn positions_beyond_the_encoding() {
    let device = host();
    let rope =
        |positions| RotaryEmbedding::new(SHAPE.head_dim, positions, 10_000.0, &device).unwrap();
    let attend = |cache: &mut KvCache, layer, count, rope: &dyn PositionEncoding| {
        let (q, k, v) = tokens(ROWS, count, &device);
        cache.attend(layer, q, k, v, rope)
    };
    for policy in policies() {
        let name = policy.name().to_owned();
        let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
        let error = refused(&mut cache, 20, |cache| attend(cache, 0, 25, &rope(24)));
        assert_error!(error, Error::PositionOverflow { position: 24, max: 24 }, ["24"]);
        for layer in 0..SHAPE.layers {
            attend(&mut cache, layer, 24, &rope(24)).unwrap();
        }
        let more = if name == "streaming-llm" {
            // Its positions are counted inside the cache, so that a stream has no end.
            for _ in 0..40 {
                for layer in 0..SHAPE.layers {
                    attend(&mut cache, layer, 1, &rope(24)).unwrap();
                }
            }
            assert_eq!(cache.tokens_seen(), [64, 64]);
            13
        } else {
            1
        };
        let error = refused(&mut cache, 1, |cache| attend(cache, 0, more, &rope(24)));
        assert_error!(error, Error::PositionOverflow { position: 24, max: 24 }, ["24"]);
    }
}

/// Scorers of a user's own crate that go wrong.
#[derive(Debug)]
enum Broken {
    Shape,
    NaN,
    Fails,
}

impl Scorer for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        let [rows, heads, entries] = view.positions().dims();
        let device = view.positions().device();
        match self {
            Self::Shape => Ok(Tensor::zeros([rows, heads + 1, entries], &device)),
            Self::NaN => Ok(Tensor::full([rows, heads, entries], f32::NAN, &device)),
            Self::Fails => Err(Error::Stage {
                stage: "scorer",
                name: "broken".into(),
                reason: "it says 1234".into(),
            }),
        }
    }
}

#[test]
fn encodings_of_another_shape_or_device() {
    let device = host();
    let errors = |head_dim, of: &Device| -> Vec<Error> {
        let rope = RotaryEmbedding::new(head_dim, 100, 10_000.0, of).unwrap();
        let attend = |cache: &mut KvCache| {
            let (q, k, v) = tokens(ROWS, 3, &device);
            cache.attend(0, q, k, v, &rope)
        };
        caches(&device).iter_mut().map(|cache| refused(cache, 3, attend)).collect()
    };
    for error in errors(SHAPE.head_dim / 2, &device) {
        assert_error!(error, Error::InvalidParameter { .. }, ["4", "8"]);
    }
    let backends = backends();
    let other = backends.iter().find(|backend| backend.device != device);
    for error in other.into_iter().flat_map(|other| errors(SHAPE.head_dim, &other.device)) {
        assert_error!(error, Error::WrongDevice { .. }, ["rotary"]);
    }
}

#[test]
fn numbers_that_overflow() {
    let sinks = Policy::local_window(Budget::Tokens(12)).with_sinks(usize::MAX);
    let sinks = sinks.with_recent(Recent::Tokens(usize::MAX));
    assert_error!(sinks.check().unwrap_err(), Error::BudgetTooSmall { .. }, ["12"]);
    // Room is made as it is needed, not for all a policy could ever hold.
    for policy in [
        Policy::local_window(Budget::Tokens(usize::MAX)),
        Policy::local_window(Budget::Tokens(12)).with_schedule(Schedule::always(usize::MAX)),
    ] {
        let mut cache = KvCache::new(SHAPE, policy, &host()).unwrap();
        advance(&mut cache, ROWS, 20);
        advance(&mut cache, ROWS, 1);
        assert!(cache.bytes_held() < 1 << 20, "{}", cache.bytes_held());
    }
}

#[test]
fn broken_scorers() {
    let device = host();
    for (broken, part) in [(Broken::Shape, "3"), (Broken::NaN, "NaN"), (Broken::Fails, "1234")] {
        let mut cache =
            KvCache::new(SHAPE, Policy::custom("mine", Budget::Tokens(8), broken), &device)
                .unwrap();
        // Nothing is scored before the budget is reached.
        advance(&mut cache, ROWS, 7);
        let error = refused(&mut cache, 1, |cache| give(cache, 1, tokens(ROWS, 5, &device)));
        assert_error!(error, Error::Stage { .. } | Error::NotFinite { .. }, [part]);
    }
}

/// A setter that a policy has no use for is an error that says what the policy has, wherever it is
/// checked.
#[test]
fn setters_that_do_not_apply() {
    let (device, budget) = (host(), Budget::Tokens(64));
    let wrong = [
        (Policy::h2o(budget).with_window(8), "with_window", "accumulated-attention"),
        (Policy::streaming_llm(budget).with_window(8), "with_window", "recency"),
        (Policy::full().with_window(8), "with_window", "recency"),
        (Policy::roco(budget).with_pool(Pool::avg(3)), "with_pool", "roco, 25%"),
        (Policy::d2o(budget).with_pool(Pool::avg(3)), "with_pool", "variance-share"),
        (Policy::ems(budget).with_normalize(Normalize::Mean), "with_normalize", "ems 32"),
        (Policy::custom("mine", budget, Broken::NaN).with_window(8), "with_window", "broken"),
        // A mistake stays one, whatever is set after it.
        (
            Policy::h2o(budget).with_pool(Pool::avg(3)).with_scorer(Ems::default()),
            "with_pool",
            "accumulated-attention",
        ),
    ];
    for (policy, setter, has) in wrong {
        let error = KvCache::new(SHAPE, policy.clone(), &device).unwrap_err();
        assert_error!(error, Error::SetterMismatch { .. }, [setter, has, policy.name()]);
        assert_error!(policy.check().unwrap_err(), Error::SetterMismatch { .. }, [setter]);
    }
}

/// A user's own, which has a window.
#[derive(Debug)]
struct Windowed(usize);

impl Scorer for Windowed {
    fn name(&self) -> &str {
        "windowed"
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.0)
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self(window)))
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        WindowAttention { window: self.0, pool: None, heads: HeadMean::Group }.score(view)
    }
}

#[test]
fn a_scorer_of_ones_own_takes_part_in_setters() {
    let policy = Policy::custom("mine", Budget::Tokens(64), Windowed(4)).with_window(9);
    policy.check().unwrap();
    assert_eq!((policy.observes().window, policy.protect().recent), (9, Recent::Tokens(9)));
    let error = policy.with_pool(Pool::avg(3)).check().unwrap_err();
    assert_error!(error, Error::SetterMismatch { .. }, ["with_pool", "windowed"]);
}

/// A setter of window, pooling or normalisation changes every stage that has one, wherever it
/// stands.
#[test]
fn setters_reach_every_stage_that_has_the_parameter() {
    let budget = Budget::Tokens(64);
    let pool = Pool::max(3);
    let windows = [
        (Policy::tova(budget), 1, 1),
        (Policy::snapkv(budget), 1, 1),
        (Policy::cake(budget), 2, 1),
        (Policy::ems(budget), 1, 1),
        (Policy::compresskv(budget), 1, 1),
        (Policy::compresskv_adakv(budget), 2, 2),
    ];
    for (policy, expected, pools) in windows {
        let name = policy.name().to_owned();
        let changed = policy.clone().with_window(17);
        assert_eq!(changed.protect().recent, Recent::Tokens(17), "{name}");
        let file = changed.to_toml().unwrap();
        assert_eq!(file.matches("window = 17").count(), expected, "{name}: {file}");
        assert_eq!(file.matches("window = ").count(), expected, "{name}: {file}");
        let file = policy.with_pool(pool).to_toml().unwrap();
        assert_eq!(file.matches("kernel = 3").count(), pools, "{name}: {file}");
        assert_eq!(file.matches("kernel = ").count(), pools, "{name}: {file}");
    }
    let mean = Policy::cam(budget).with_normalize(Normalize::Mean).to_toml().unwrap();
    assert!(mean.contains("normalize = \"mean\""), "{mean}");
}

/// Scores are checked when inputs are; a device that selects by itself is not asked otherwise.
#[test]
fn scores_that_are_nan() {
    for Backend { ref name, ref device, .. } in backends() {
        let on_host = name == "flex";
        let cache = |check| {
            let policy = Policy::custom("mine", Budget::Tokens(8), Broken::NaN);
            let config = CacheConfig::default().with_input_check(check);
            KvCache::with_config(SHAPE, policy, config, device).unwrap()
        };
        for (check, of_prompts, of_decoding) in [
            (InputCheck::Always, true, true),
            (InputCheck::Prompt, true, false),
            (InputCheck::Never, false, false),
        ] {
            let mut prompt = cache(check);
            let mut decoding = cache(check);
            advance(&mut decoding, ROWS, 8);
            for (cache, count, checked) in
                [(&mut prompt, 11, of_prompts), (&mut decoding, 1, of_decoding)]
            {
                let result = give(cache, 0, tokens(ROWS, count, device));
                if checked || on_host {
                    assert_error!(result.unwrap_err(), Error::NotFinite { .. }, ["scores"]);
                } else {
                    assert!(result.is_ok(), "{name}, {check:?}");
                    let kept = cache.kept_positions(0).unwrap();
                    assert!(kept.iter().flatten().all(|head| head.len() == 8), "{kept:?}");
                }
            }
        }
    }
}
