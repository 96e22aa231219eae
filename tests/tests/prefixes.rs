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
                let alone = Tokens {
                    layers: questions
                        .layers
                        .iter()
                        .map(|qkv| qkv.clone().map(|x| x.narrow(0, row, 1)))
                        .collect(),
                    rope: questions.rope.clone(),
                };
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
    for given in [config().with_dtype(DType::F16), config().with_softmax_scale(0.3)] {
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
        .replace("\"briquette-prefix\":\"2\"", "\"briquette-prefix\":\"3\"");
    let newer = [&whole[..8], text.as_bytes(), &whole[header..]].concat();
    let error = read(&newer).unwrap_err();
    assert!(
        matches!(&error, Error::Prefix(PrefixError::Version { found, .. }) if found == "3"),
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
