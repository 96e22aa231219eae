//! Prefixes that are kept: a cache that was saved and loaded, or forked, goes on as the one that
//! never was.

use std::{collections::BTreeMap, fs, path::PathBuf};

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, PrefillCompression, Prefix, Prompt,
    Schedule,
    position::RotaryEmbedding,
    prefix::PrefixError,
    store::{Fp8, KeyChannels, TurboQuant},
};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::tensor::{DType, Device, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 48;

/// Queries, keys and values of all layers: the same for the same seed on every device.
struct Tokens {
    layers: Vec<[Tensor<4>; 3]>,
    rope: RotaryEmbedding,
}

impl Tokens {
    fn new(seed: u64, rows: usize, tokens: usize, device: &Device) -> Self {
        let mut noise = Noise::new(seed);
        let mut random = |heads| noise.tensor([rows, heads, tokens, SHAPE.head_dim], device);
        let heads = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads];
        let layers = (0..SHAPE.layers).map(|_| heads.map(&mut random)).collect();
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 1024, 10_000.0, device).unwrap();
        Self { layers, rope }
    }

    /// The outputs of all layers for the tokens `from..to` of all rows.
    fn give(&self, cache: &mut KvCache, from: usize, to: usize) -> Vec<f32> {
        let mut outputs = Vec::new();
        for (layer, qkv) in self.layers.iter().enumerate() {
            let [q, k, v] = qkv.clone().map(|x| x.narrow(2, from, to - from));
            let output = cache.attend(layer, q, k, v, &self.rope).unwrap();
            outputs.extend(output.try_into_vec_as::<f32>().unwrap());
        }
        outputs
    }

    /// Those of these rows.
    fn rows(&self, rows: &[usize]) -> Self {
        let pick = |x: &Tensor<4>| {
            let picked = rows.iter().map(|&row| x.clone().narrow(0, row, 1));
            Tensor::cat(picked.collect(), 0)
        };
        let layers = self.layers.iter().map(|qkv| qkv.each_ref().map(pick)).collect();
        Self { layers, rope: self.rope.clone() }
    }

    /// Tokens `from..to`, one after another, and behind them a prompt of `more` and 4 tokens again.
    fn go_on(&self, cache: &mut KvCache, from: usize, to: usize, more: usize) -> Vec<f32> {
        let mut outputs = Vec::new();
        let step = |cache: &mut KvCache, token| self.give(cache, token, token + 1);
        (from..to).for_each(|token| outputs.extend(step(cache, token)));
        outputs.extend(self.give(cache, to, to + more));
        (to + more..to + more + 4).for_each(|token| outputs.extend(step(cache, token)));
        outputs
    }
}

fn policy(name: &str) -> Policy {
    let policy = named(name, Budget::Tokens(BUDGET));
    if policy.reads_profile() { policy.with_profile(profile(SHAPE)) } else { policy }
}

/// Every method, every store under one that evicts, and decoding that only appends.
fn policies(backend: &Backend) -> Vec<Policy> {
    if !backend.is_quick() {
        let names = ["full", "cake", "adakv", "d2o", "ems", "compresskv-kivi"];
        return names.map(policy).to_vec();
    }
    let mut all: Vec<Policy> = in_one_pass(BUDGET).map(|it| policy(it.name())).collect();
    let of = |name: &str, method: &str| policy(method).with_name(name);
    all.push(of("fp8 and h2o", "h2o").with_store(Fp8 {}));
    let bits = TurboQuant { whole_layers: 1, residual: 8, ..TurboQuant::new(3, 2) };
    all.push(of("turbo-quant", "full").with_store(bits));
    all.push(of("turbo-quant and adakv", "adakv").with_store(bits));
    let channels = KeyChannels { recent: 8, ..KeyChannels::new(0.5) };
    all.push(of("key-channels", "full").with_store(channels));
    all.push(of("key-channels and adakv", "adakv").with_store(channels));
    // With queries since the last compression, and what knows the first prompt from later ones.
    let decodes = of("expected-attention, decoding", "expected-attention");
    all.push(decodes.with_schedule(Schedule::always(16)));
    let first = Schedule::prefill_only().with_prefill(PrefillCompression::FirstPrompt);
    all.push(of("first prompt", "snapkv").with_schedule(first));
    all.push(of("append-only", "tova").with_schedule(Schedule::append_only(6, 3, 8)));
    all
}

/// Everything one can see of a cache.
fn seen(cache: &KvCache) -> (usize, Vec<usize>, String) {
    let layers = (0..SHAPE.layers).map(|layer| {
        (
            cache.kept_positions(layer).unwrap(),
            cache.entries_by_head(layer).unwrap(),
            cache.layer_measure(layer).unwrap(),
            cache.reducer_state(layer).unwrap().map(|x| x.try_into_vec_as::<f32>().unwrap()),
        )
    });
    (cache.bytes_held(), cache.tokens_seen(), format!("{:?}", layers.collect::<Vec<_>>()))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("a.prefix")
    }
}

#[test]
fn every_method_goes_on_bit_for_bit() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(1, 2, 260, device);
        let folder = Folder::new();
        for policy in policies(&backend) {
            let name = policy.name();
            for dtype in backend.dtypes() {
                for decoded in if dtype == DType::F32 { vec![0, 9] } else { vec![9] } {
                    let what = format!("{name}, {dtype:?}, {decoded} decoded, {}", backend.name);
                    let config = CacheConfig::default().with_dtype(dtype).with_model("made up");
                    let new = || {
                        KvCache::with_config(SHAPE, policy.clone(), config.clone(), device).unwrap()
                    };
                    let mut kept = new();
                    kept.begin_prompt(Prompt::new(180).left_padding(vec![0, 41])).unwrap();
                    tokens.give(&mut kept, 0, 100);
                    tokens.give(&mut kept, 100, 180);
                    (180..180 + decoded).for_each(|token| {
                        tokens.give(&mut kept, token, token + 1);
                    });
                    kept.save(folder.path()).unwrap();
                    let mut loaded =
                        KvCache::load(folder.path(), SHAPE, policy.clone(), config.clone(), device)
                            .unwrap();
                    let (found, expected) = (seen(&loaded), seen(&kept));
                    assert_eq!(found.1, expected.1, "{what}");
                    assert_eq!(found.2, expected.2, "{what}");
                    // What a kernel was last told of pages is not saved: an integer for each of
                    // 32 tokens, and two for each head.
                    let of_layer = 2 * SHAPE.kv_heads * ((180 + decoded) / 32 + 2) + 1;
                    let told = SHAPE.layers * of_layer * size_of::<i64>();
                    assert!(
                        found.0 <= expected.0 && found.0 + told >= expected.0,
                        "{what}: {} of {} bytes",
                        found.0,
                        expected.0
                    );
                    let (from, to) = (180 + decoded, 215 + decoded);
                    let expected = tokens.go_on(&mut kept, from, to, 20);
                    let found = tokens.go_on(&mut loaded, from, to, 20);
                    assert!(found == expected, "{what}: it goes on otherwise");
                    assert_eq!(seen(&loaded).2, seen(&kept).2, "{what}");
                }
            }
        }
    }
}

/// The entries that a second pass leaves are kept as they are, and tokens behind them are kept
/// whole.
#[test]
fn a_second_pass_is_not_repeated() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(6, 1, 150, device);
        let folder = Folder::new();
        let new = || KvCache::new(SHAPE, policy("kvzip"), device).unwrap();
        let mut kept = new();
        tokens.give(&mut kept, 0, 100);
        let mut noise = Noise::new(7);
        let mut given =
            || noise.tensor([1, SHAPE.kv_heads, 100, 1], device).abs().squeeze_dim::<3>(3);
        kept.compress_by(&(0..SHAPE.layers).map(|_| given()).collect::<Vec<_>>()).unwrap();
        let entries = kept.entries_by_head(1).unwrap();
        assert!(entries[0].iter().sum::<usize>() < 2 * 100, "{entries:?}");
        kept.save(folder.path()).unwrap();
        let config = CacheConfig::default();
        let mut loaded =
            KvCache::load(folder.path(), SHAPE, policy("kvzip"), config, device).unwrap();
        let mut row = kept.fork_rows(1).unwrap();
        let expected = tokens.go_on(&mut kept, 100, 110, 20);
        for cache in [&mut loaded, &mut row] {
            assert!(tokens.go_on(cache, 100, 110, 20) == expected, "{}", backend.name);
            assert_eq!(seen(cache), seen(&kept), "{}", backend.name);
            for (before, after) in entries[0].iter().zip(&cache.entries_by_head(1).unwrap()[0]) {
                assert_eq!(*after, before + 34, "{}", backend.name);
            }
            assert!(matches!(cache.reconstruction(), Err(Error::Stage { .. })));
        }
    }
}

/// A fork leaves its origin alone, and rows made of one do what a cache of one row does.
#[test]
fn forks_go_on_alone() {
    for backend in backends() {
        let device = &backend.device;
        let prefix = Tokens::new(2, 1, 150, device);
        let questions = Tokens::new(3, 3, 60, device);
        for policy in policies(&backend) {
            let what = format!("{}, {}", policy.name(), backend.name);
            let mut origin = KvCache::new(SHAPE, policy, device).unwrap();
            prefix.give(&mut origin, 0, 140);
            (140..150).for_each(|token| {
                prefix.give(&mut origin, token, token + 1);
            });
            let before = seen(&origin);
            let mut together = origin.fork_rows(3).unwrap();
            assert_eq!(together.tokens_seen(), [150; 3]);
            let expected = questions.go_on(&mut together, 0, 30, 10);
            for row in 0..3 {
                let alone = questions.rows(&[row]);
                let mut fork = origin.fork();
                let found = alone.go_on(&mut fork, 0, 30, 10);
                close(&found, &expected, row, &what);
                for layer in 0..SHAPE.layers {
                    let found = &fork.kept_positions(layer).unwrap()[0];
                    assert_eq!(*found, together.kept_positions(layer).unwrap()[row], "{what}");
                }
                assert_eq!(seen(&origin), before, "{what}: a fork changed its origin");
            }
        }
    }
}

/// Row by row the same numbers, step by step: outputs come as `[3, heads, tokens, channels]` of
/// each call.
fn close(alone: &[f32], together: &[f32], row: usize, what: &str) {
    assert_eq!(3 * alone.len(), together.len(), "{what}");
    let step = |tokens| SHAPE.query_heads * tokens * SHAPE.head_dim;
    let calls = [vec![1; 30], vec![10], vec![1; 4]].concat();
    let mut at = 0;
    for tokens in calls {
        for _ in 0..SHAPE.layers {
            let size = step(tokens);
            let own = &together[3 * at + row * size..][..size];
            for (a, b) in alone[at..at + size].iter().zip(own) {
                assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}, row {row}: {a} and {b}");
            }
            at += size;
        }
    }
}

/// Positions that a layer keeps, `[row][head][entry]`.
type Kept = Vec<Vec<Vec<usize>>>;

/// What has been seen, and the positions that each layer keeps.
fn kept(cache: &KvCache) -> (Vec<usize>, Vec<Kept>) {
    let layers = (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap());
    (cache.tokens_seen(), layers.collect())
}

fn near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// Rows that leave, change places and are repeated do what a batch made of these rows does.
#[test]
fn selected_rows_are_a_batch_of_their_own() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(8, 3, 170, device);
        let padding = [0, 41, 7];
        for policy in policies(&backend) {
            let begun = |rows: &[usize]| {
                let tokens = tokens.rows(rows);
                let padding = rows.iter().map(|&row| padding[row]).collect();
                let mut cache = KvCache::new(SHAPE, policy.clone(), device).unwrap();
                cache.begin_prompt(Prompt::new(100).left_padding(padding)).unwrap();
                tokens.give(&mut cache, 0, 60);
                tokens.give(&mut cache, 60, 100);
                (100..109).for_each(|token| {
                    tokens.give(&mut cache, token, token + 1);
                });
                cache
            };
            let all = begun(&[0, 1, 2]);
            let before = seen(&all);
            for rows in [&[2, 0][..], &[1, 1, 0], &[1]] {
                let what = format!("{}, rows {rows:?}, {}", policy.name(), backend.name);
                let (mut selected, mut expected) = (all.fork(), begun(rows));
                selected.select_rows(rows).unwrap();
                assert_eq!(kept(&selected), kept(&expected), "{what}");
                let tokens = tokens.rows(rows);
                let found = tokens.go_on(&mut selected, 109, 139, 10);
                near(&found, &tokens.go_on(&mut expected, 109, 139, 10), &what);
                assert_eq!(kept(&selected), kept(&expected), "{what}");
                assert_eq!(seen(&all), before, "{what}: a fork changed its origin");
            }
        }
    }
}

/// A row that was prefilled alone and joins a batch goes on as it would alone, and the rows before
/// it as they would without it. The batch is the one that had it from the beginning.
#[test]
fn appended_rows_are_rows_of_the_batch() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(9, 3, 170, device);
        let [two, one] = [&[0, 1][..], &[2]].map(|rows| tokens.rows(rows));
        for policy in policies(&backend) {
            let new = || KvCache::new(SHAPE, policy.clone(), device).unwrap();
            // The second is within its budget at first.
            for (decoded, padding) in [(0, 20), (0, 60), (9, 60)] {
                let what =
                    format!("{}, {decoded} decoded, {padding}, {}", policy.name(), backend.name);
                let (mut batch, mut alone) = (new(), new());
                batch.begin_prompt(Prompt::new(100).left_padding(vec![0, 41])).unwrap();
                two.give(&mut batch, 0, 100);
                (100..100 + decoded).for_each(|token| {
                    two.give(&mut batch, token, token + 1);
                });
                one.give(&mut alone, padding, 100);
                let (mut joined, before) = (batch.fork(), seen(&batch));
                if let Err(error) = joined.append_rows(&alone) {
                    let every = policy.schedule().decode_every;
                    let counts = every.is_some_and(|n| n > 1) || policy.observes().local > 0;
                    let is_meant = matches!(error, Error::RowsDiffer { .. });
                    assert!(is_meant && counts && decoded > 0, "{what}: {error}");
                    assert_eq!(seen(&joined), before, "{what}");
                    continue;
                }
                let mut from_start = (decoded == 0).then(new);
                if let Some(cache) = &mut from_start {
                    let prompt = Prompt::new(100).left_padding(vec![0, 41, padding]);
                    cache.begin_prompt(prompt).unwrap();
                    tokens.give(cache, 0, 100);
                    assert_eq!(kept(&joined), kept(cache), "{what}");
                }
                let start = 100 + decoded;
                let token = |token: usize| (token, token + 1);
                let calls = (start..start + 30).map(token).chain([(start + 30, start + 40)]);
                for (from, to) in calls.chain((start + 40..start + 44).map(token)) {
                    let found = tokens.give(&mut joined, from, to);
                    let own = two.give(&mut batch, from, to);
                    let other = one.give(&mut alone, from, to);
                    near(&found, &side_by_side(&own, &other), &what);
                    if let Some(cache) = &mut from_start {
                        near(&found, &tokens.give(cache, from, to), &what);
                    }
                }
                let mut expected = kept(&batch);
                let (other, layers) = kept(&alone);
                expected.0.extend(other);
                expected.1.iter_mut().zip(layers).for_each(|(own, other)| own.extend(other));
                assert_eq!(kept(&joined), expected, "{what}");
            }
        }
    }
}

/// The outputs of all layers for rows that stand in one batch.
fn side_by_side(own: &[f32], other: &[f32]) -> Vec<f32> {
    let layers = own.chunks(own.len() / SHAPE.layers);
    let others = other.chunks(other.len() / SHAPE.layers);
    layers.zip(others).flat_map(|(own, other)| [own, other].concat()).collect()
}

#[test]
fn rows_that_cannot_change_are_refused() {
    let device = host();
    let tokens = Tokens::new(10, 2, 130, &device);
    let policy = || Policy::snapkv(Budget::Tokens(BUDGET)).with_schedule(Schedule::always(4));
    let filled = |policy: Policy, config: CacheConfig| {
        let mut cache = KvCache::with_config(SHAPE, policy, config, &device).unwrap();
        tokens.give(&mut cache, 0, 100);
        cache
    };
    let config = CacheConfig::default;
    let mut cache = filled(policy(), config());
    let before = seen(&cache);
    let error = cache.select_rows(&[]).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "rows", .. }), "{error}");
    let error = cache.select_rows(&[0, 2]).unwrap_err();
    assert!(matches!(error, Error::RowOutOfRange { row: 2, rows: 2 }), "{error}");

    let empty = KvCache::new(SHAPE, policy(), &device).unwrap();
    let mut apart = cache.fork();
    let [q, k, v] = tokens.layers[0].clone().map(|x| x.narrow(2, 100, 1));
    apart.attend(0, q, k, v, &tokens.rope).unwrap();
    let mut unfinished = cache.fork();
    unfinished.begin_prompt(Prompt::new(20)).unwrap();
    tokens.give(&mut unfinished, 100, 110);
    type Expected = fn(&Error) -> bool;
    let others: [(_, Expected); 3] = [
        (empty, |error| matches!(error, Error::Prefix(PrefixError::Empty))),
        (apart, |error| matches!(error, Error::Prefix(PrefixError::LayersApart { .. }))),
        (unfinished, |error| {
            matches!(error, Error::PromptUnfinished { arrived: 10, declared: 20, .. })
        }),
    ];
    for (mut other, expected) in others {
        let own = seen(&other);
        for error in [
            other.select_rows(&[0]).unwrap_err(),
            other.append_rows(&cache).unwrap_err(),
            cache.append_rows(&other).unwrap_err(),
        ] {
            assert!(expected(&error), "{error}");
        }
        assert_eq!(seen(&other), own);
    }

    let shape = CacheShape { layers: 1, ..SHAPE };
    let mut smaller = KvCache::new(shape, policy(), &device).unwrap();
    let [q, k, v] = tokens.layers[0].clone();
    smaller.attend(0, q, k, v, &tokens.rope).unwrap();
    for (other, named) in [
        (smaller, "shape"),
        (filled(policy().with_window(16), config()), "policy"),
        (filled(policy(), config().with_model("b")), "model"),
        (filled(policy(), config().with_dtype(DType::BF16)), "data type"),
        (filled(policy(), config().with_softmax_scale(0.3)), "softmax scale"),
        (filled(policy(), config().with_softcap(5.0)), "softcap"),
        (filled(policy(), config().with_windows(vec![Some(9); SHAPE.layers])), "windows"),
    ] {
        let error = cache.append_rows(&other).unwrap_err();
        assert!(matches!(&error, Error::RowsDiffer { what, .. } if *what == named), "{error}");
    }
    // Both would be compressed at the same token, and their windows end with it.
    let counted = |policy: Policy| {
        let mut cache = filled(policy, config());
        let mut ahead = cache.fork();
        tokens.give(&mut ahead, 100, 101);
        match cache.append_rows(&ahead).unwrap_err() {
            Error::RowsDiffer { what, found, expected, .. } => (what, found, expected),
            other => panic!("{other}"),
        }
    };
    let [found, expected] = ["1", "0"].map(str::to_owned);
    let what = "number of tokens decoded since a compression";
    assert_eq!(counted(policy()), (what, found.clone(), expected.clone()));
    let what = "number of queries in the local window";
    assert_eq!(counted(Policy::ems(Budget::Tokens(BUDGET))), (what, found, expected));
    assert_eq!(seen(&cache), before);

    // Rows that have changed are as they were after a transaction that fails.
    let mut torn = cache.fork();
    let failed: briquette::Result<()> = torn.transaction(|cache| {
        cache.select_rows(&[1])?;
        let copy = cache.fork();
        cache.append_rows(&copy)?;
        tokens.give(cache, 100, 101);
        cache.select_rows(&[0, 0, 1])?;
        Err(Error::LayerOutOfRange { layer: 9, layers: SHAPE.layers })
    });
    assert!(matches!(failed, Err(Error::LayerOutOfRange { .. })));
    assert_eq!(seen(&torn), before);
    assert!(tokens.go_on(&mut torn, 100, 110, 8) == tokens.go_on(&mut cache, 100, 110, 8));
}

/// A cache of one layer that is full of `tokens`.
fn filled(policy: Policy, tokens: usize, shape: CacheShape, device: &Device) -> KvCache {
    let mut noise = Noise::new(5);
    let mut random = |heads| noise.tensor([1, heads, tokens, shape.head_dim], device);
    let rope = RotaryEmbedding::new(shape.head_dim, 2 * tokens, 10_000.0, device).unwrap();
    let mut cache = KvCache::new(shape, policy, device).unwrap();
    let [q, k, v] = [shape.query_heads, shape.kv_heads, shape.kv_heads].map(&mut random);
    cache.attend(0, q, k, v, &rope).unwrap();
    cache
}

/// Memory this process has resident, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Forks and rows cost nothing until they are written to.
#[cfg(target_os = "linux")]
#[test]
fn forks_share_memory() {
    let device = host();
    let shape = CacheShape { layers: 1, query_heads: 2, kv_heads: 2, head_dim: 128 };
    let cache = filled(Policy::full(), 16 << 10, shape, &device);
    let held = cache.bytes_held();
    assert!(held >= 32 << 20, "{held}");
    let before = resident();
    let forks: Vec<KvCache> = (0..8).map(|_| cache.fork()).collect();
    let rows = cache.fork_rows(8).unwrap();
    let grown = resident().saturating_sub(before);
    // Eight rows of positions, 16 bytes a token of 2 heads, are copied.
    assert!(grown < held / 4, "8 forks and 8 rows of {held} bytes took {grown} more");
    assert_eq!((forks.len(), rows.tokens_seen().len()), (8, 8));
}

#[test]
fn what_does_not_belong_is_refused() {
    let device = host();
    let tokens = Tokens::new(4, 1, 100, &device);
    let folder = Folder::new();
    let config = || CacheConfig::default().with_model("a");
    let snapkv = || Policy::snapkv(Budget::Tokens(BUDGET));
    let new = || KvCache::with_config(SHAPE, snapkv(), config(), &device).unwrap();
    let mut cache = new();
    let save = |cache: &KvCache| cache.save(folder.path());
    let prefix = |result: briquette::Result<()>| match result.unwrap_err() {
        Error::Prefix(error) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(prefix(save(&cache)), PrefixError::Empty));
    let [q, k, v] = tokens.layers[0].clone();
    cache.attend(0, q, k, v, &tokens.rope).unwrap();
    let error = prefix(save(&cache));
    assert!(matches!(error, PrefixError::LayersApart { layer: 1, .. }), "{error}");
    let mut cache = new();
    cache.begin_prompt(Prompt::new(120)).unwrap();
    tokens.give(&mut cache, 0, 100);
    let error = save(&cache).unwrap_err();
    assert!(
        matches!(error, Error::PromptUnfinished { arrived: 100, declared: 120, .. }),
        "{error}"
    );
    let mut cache = new();
    tokens.give(&mut cache, 0, 100);
    save(&cache).unwrap();
    assert!(matches!(
        prefix(cache.save(folder.path().join("no/where"))),
        PrefixError::Write { .. }
    ));

    let load = |shape, policy, config: CacheConfig| {
        prefix(KvCache::load(folder.path(), shape, policy, config, &device).map(drop))
    };
    let other = CacheShape { layers: 2, ..SHAPE };
    let error = load(other, snapkv(), config());
    assert!(matches!(error, PrefixError::OtherShape { .. }), "{error}");
    for given in [CacheConfig::default(), config().with_model("b")] {
        let error = load(SHAPE, snapkv(), given);
        assert!(
            matches!(&error, PrefixError::OtherModel { found: Some(a), .. } if a == "a"),
            "{error}"
        );
    }
    for policy in [Policy::snapkv(Budget::Tokens(49)), snapkv().with_window(16), Policy::full()] {
        let error = load(SHAPE, policy, config());
        assert!(matches!(error, PrefixError::OtherPolicy { .. }), "{error}");
    }
    for given in [
        config().with_dtype(DType::F16),
        config().with_softmax_scale(0.3),
        config().with_softcap(5.0),
        config().with_windows(vec![Some(9); SHAPE.layers]),
    ] {
        let error = load(SHAPE, snapkv(), given);
        assert!(matches!(error, PrefixError::OtherConfig { .. }), "{error}");
    }
    let rows = Tokens::new(4, 2, 100, &device);
    let mut two = new();
    rows.give(&mut two, 0, 100);
    for (cache, held) in [(&new(), 0), (&two, 2)] {
        let error = prefix(cache.fork_rows(2).map(drop));
        assert!(matches!(error, PrefixError::Rows { rows } if rows == held), "{error}");
    }
    assert!(matches!(cache.fork_rows(0), Err(Error::InvalidParameter { parameter: "rows", .. })));
}

/// Whichever byte is changed, and wherever the file ends too early, it is not taken for what was
/// saved.
#[test]
fn damaged_files_are_refused() {
    let device = host();
    let tokens = Tokens::new(5, 1, 100, &device);
    let folder = Folder::new();
    let policy = || Policy::snapkv(Budget::Tokens(40)).with_schedule(Schedule::always(4));
    let mut cache = KvCache::new(SHAPE, policy(), &device).unwrap();
    tokens.give(&mut cache, 0, 90);
    cache.save(folder.path()).unwrap();
    let whole = fs::read(folder.path()).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let read = |bytes: &[u8]| {
        fs::write(folder.path(), bytes).unwrap();
        Prefix::read(folder.path())
    };
    let refused = |bytes: &[u8], what: String| match read(bytes) {
        Err(Error::Prefix(_)) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: it was read"),
    };
    assert!(header > 500 && whole.len() > header + 5000, "{header} of {}", whole.len());
    // Every third byte of the header but the spaces it is padded with, and some of every tensor.
    let places = (0..header).step_by(3).chain((header..whole.len()).step_by(197));
    for place in places.filter(|&place| whole[place] != b' ') {
        let mut bytes = whole.clone();
        bytes[place] ^= 4;
        refused(&bytes, format!("byte {place}, {:?}", whole[place] as char));
    }
    for length in (0..whole.len()).step_by(311).chain([whole.len() - 1]) {
        refused(&whole[..length], format!("{length} of {} bytes", whole.len()));
    }
    refused(&[&whole[..], &[0]].concat(), "a byte more".into());
    let error = read(b"not at all what is expected").unwrap_err();
    assert!(matches!(error, Error::Prefix(PrefixError::Container { .. })), "{error}");
    let text = String::from_utf8_lossy(&whole[8..header])
        .replace("\"briquette-prefix\":\"3\"", "\"briquette-prefix\":\"4\"");
    let newer = [&whole[..8], text.as_bytes(), &whole[header..]].concat();
    let error = read(&newer).unwrap_err();
    assert!(
        matches!(&error, Error::Prefix(PrefixError::Version { found, .. }) if found == "4"),
        "{error}"
    );

    let prefix = read(&whole).unwrap();
    assert_eq!(prefix.policy().unwrap().to_toml().unwrap(), policy().to_toml().unwrap());
    assert_eq!((prefix.shape(), prefix.model(), prefix.budget()), (SHAPE, None, Some("40")));
    assert_eq!((prefix.tokens_seen(), prefix.bytes_held()), (&[90][..], cache.bytes_held()));
    assert_eq!(prefix.tokens_kept(), vec![vec![40]; 3]);
    // What stands beside it is under the checksum, and comes back; without any the file has no word
    // of it.
    assert!(prefix.metadata().is_empty() && !text.contains("metadata\\\""), "{text}");
    let metadata = BTreeMap::from([("question".to_owned(), "\u{1}\n\"?\"".to_owned())]);
    cache.save_with_metadata(folder.path(), metadata.clone()).unwrap();
    let bytes = fs::read(folder.path()).unwrap();
    assert_eq!(*read(&bytes).unwrap().metadata(), metadata);
    let at = bytes.windows(8).position(|word| word == b"question").unwrap();
    let altered = [&bytes[..at], b"Q", &bytes[at + 1..]].concat();
    let error = read(&altered).unwrap_err();
    assert!(matches!(error, Error::Prefix(PrefixError::Altered { .. })), "{error}");
}
