//! ThinK's channels of keys, held to sums in f64 that share no code with them.

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy, Prompt,
    policy::PositionMode,
    position::NoPositionEncoding,
    store::{Dense, KeyChannels},
};
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 20 };

/// `[row][head][token][channel]`
type Heads = Vec<Vec<Vec<Vec<f64>>>>;

fn numbers(x: &Tensor<4>) -> Heads {
    let [_, heads, tokens, channels] = x.dims();
    let all = x.clone().cast(DType::F32).try_into_vec_as::<f32>().unwrap();
    let all: Vec<f64> = all.into_iter().map(f64::from).collect();
    let of_head = |head: &[f64]| head.chunks(channels).map(<[f64]>::to_vec).collect();
    let of_row = |row: &[f64]| row.chunks(tokens * channels).map(of_head).collect();
    all.chunks(heads * tokens * channels).map(of_row).collect()
}

/// Queries, keys and values of two rows; channels differ in size.
struct Inputs([Tensor<4>; 3]);

impl Inputs {
    fn new(seed: u64, tokens: usize, device: &Device) -> Self {
        let mut noise = Noise::new(seed);
        let size = |salt: i64| {
            let sizes = (0..20).map(|channel| 0.3 + 0.1 * ((channel * 7 + salt) % 20) as f32);
            Tensor::<1>::from_floats(&sizes.collect::<Vec<_>>()[..], device).reshape([1, 1, 1, 20])
        };
        let mut random = |heads, salt| noise.tensor([2, heads, tokens, 20], device) * size(salt);
        Self([random(4, 0), random(2, 3), random(2, 5)])
    }

    fn range(&self, from: usize, to: usize) -> [Tensor<4>; 3] {
        self.0.clone().map(|x| x.narrow(2, from, to - from))
    }
}

fn give(cache: &mut KvCache, [q, k, v]: [Tensor<4>; 3]) -> Heads {
    numbers(&cache.attend(0, q, k, v, &NoPositionEncoding).unwrap())
}

/// The channels that a head keeps: those of the highest product of mean squares.
fn best(queries: &[&[Vec<f64>]], keys: &[Vec<f64>], kept: usize) -> Vec<usize> {
    let square = |rows: &[Vec<f64>], channel: usize| {
        rows.iter().map(|row| row[channel].powi(2)).sum::<f64>() / rows.len() as f64
    };
    let score = |channel: usize| {
        let asked = queries.iter().map(|rows| square(rows, channel)).sum::<f64>();
        asked / queries.len() as f64 * square(keys, channel)
    };
    let mut order: Vec<usize> = (0..keys[0].len()).collect();
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    let (last, next) = (score(order[kept - 1]), score(order[kept]));
    assert!(last - next > 1e-4 * last, "too near: {last} and {next}");
    order.truncate(kept);
    order.sort_unstable();
    order
}

fn without(key: &[f64], kept: &[usize]) -> Vec<f64> {
    let stays = |(channel, &x): (usize, &f64)| if kept.contains(&channel) { x } else { 0.0 };
    key.iter().enumerate().map(stays).collect()
}

fn softmax_times(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let logit = |key: &Vec<f64>| key.iter().zip(query).map(|(a, b)| a * b).sum::<f64>() * scale;
    let weights: Vec<f64> = keys.iter().map(|key| logit(key).exp()).collect();
    let all: f64 = weights.iter().sum();
    let of = |channel: usize| {
        weights.iter().zip(values).map(|(w, value)| w * value[channel]).sum::<f64>() / all
    };
    (0..query.len()).map(of).collect()
}

/// Two rows, one padded; a prompt, decoded tokens, and a second prompt, against the rule written
/// out.
#[test]
fn a_prompt_drops_what_its_last_queries_look_at_least() {
    const WINDOW: usize = 8;
    const RECENT: usize = 5;
    for backend in backends() {
        let inputs = Inputs::new(21, 300, &backend.device);
        let [q, k, v] = inputs.0.each_ref().map(numbers);
        let store = KeyChannels { drop: 0.35, window: WINDOW, recent: RECENT };
        let policy = Policy::full().with_store(store);
        let mut cache = KvCache::new(SHAPE, policy, &backend.device).unwrap();
        let padding = [0, 37];
        // In two chunks, of which the first is almost padding in one row.
        cache.begin_prompt(Prompt::new(140).left_padding(padding.to_vec())).unwrap();
        give(&mut cache, inputs.range(0, 40));
        let whole = give(&mut cache, inputs.range(40, 140));
        // The prompt's own attention sees every channel.
        for (row, &first) in padding.iter().enumerate() {
            for head in 0..4 {
                let (keys, values) = (&k[row][head / 2][first..140], &v[row][head / 2][first..140]);
                let expected = softmax_times(&q[row][head][139], keys, values);
                near(&whole[row][head][99], &expected, "the prompt", &backend.name);
            }
        }
        // The keys that each head is expected to hold, of all columns.
        let mut held: Heads = k.clone();
        let mut packed = [0; 2];
        let mut chosen = [[const { Vec::new() }; 2], [const { Vec::new() }; 2]];
        let mut pages = 0;
        for (from, to) in [(0, 140), (140, 172), (172, 220), (220, 260)] {
            if from == 140 {
                for token in from..to {
                    let output = give(&mut cache, inputs.range(token, token + 1));
                    for (row, &first) in padding.iter().enumerate() {
                        for head in 0..4 {
                            let keys = &held[row][head / 2][first..=token];
                            let values = &v[row][head / 2][first..=token];
                            let expected = softmax_times(&q[row][head][token], keys, values);
                            near(&output[row][head][0], &expected, "decoding", &backend.name);
                        }
                        if token + 1 - first - packed[row] == RECENT + 32 {
                            let page = first + packed[row]..first + packed[row] + 32;
                            for (head, kept) in chosen[row].iter().enumerate() {
                                for key in &mut held[row][head][page.clone()] {
                                    *key = without(key, kept);
                                }
                            }
                            packed[row] += 32;
                            pages += 1;
                        }
                    }
                }
                continue;
            }
            if from > 0 {
                give(&mut cache, inputs.range(from, to));
            }
            for (row, &first) in padding.iter().enumerate() {
                let count = to - first;
                // Whole pages, behind those packed before.
                let whole = RECENT + (count - packed[row] - RECENT) % 32;
                for head in 0..2 {
                    let window = |of: usize| &q[row][of][to - WINDOW..to];
                    let queries = [window(2 * head), window(2 * head + 1)];
                    // What was dropped before is zero when it is judged again.
                    let kept = best(&queries, &held[row][head][first..to], 13);
                    for key in &mut held[row][head][first + packed[row]..to - whole] {
                        *key = without(key, &kept);
                    }
                    chosen[row][head] = kept;
                }
                packed[row] = count - whole;
            }
            let entries = cache.entries(0).unwrap().unwrap();
            let (keys, values) = (numbers(&entries.keys), numbers(&entries.values));
            for (what, found, expected) in [("keys", &keys, &held), ("values", &values, &v)] {
                for (row, &first) in padding.iter().enumerate() {
                    for (found, expected) in found[row].iter().zip(&expected[row]) {
                        let found = &found[found.len() - (to - first)..];
                        let expected = &expected[first..to];
                        near(&found.concat(), &expected.concat(), what, &backend.name);
                    }
                }
            }
        }
        assert!(pages > 0, "no page was packed in decoding");
    }
}

fn near(found: &[f64], expected: &[f64], what: &str, backend: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 2e-5, "{what}: {found}, expected {expected}, {backend}");
    }
}

/// The memory of the channels that went is free.
#[test]
fn memory_is_that_of_the_channels_that_stay() {
    let device = host();
    let shape = CacheShape { layers: 1, query_heads: 2, kv_heads: 2, head_dim: 64 };
    let tokens = 1024;
    let mut noise = Noise::new(22);
    let mut random = || noise.tensor([1, 2, tokens, 64], &device);
    let [q, k, v] = [random(), random(), random()];
    let integer = DType::from(device.settings().int_dtype).size();
    for (drop, kept) in [(0.5, 32), (0.75, 16), (0.0, 64)] {
        let store = KeyChannels { recent: 0, ..KeyChannels::new(drop) };
        let config = CacheConfig::default().with_dtype(DType::F16);
        let policy = Policy::full().with_store(store);
        let mut cache = KvCache::with_config(shape, policy, config, &device).unwrap();
        let [q, k, v] = [q.clone(), k.clone(), v.clone()];
        cache.attend(0, q, k, v, &NoPositionEncoding).unwrap();
        // Two pages of room as they are, and which channels the next page keeps.
        let room = 2 * 64 * (2 * 2 * 64 + integer) + 2 * kept * integer;
        let page = 32 * (2 * (kept + 64) + integer) + kept;
        assert_eq!(cache.bytes_held(), 2 * (tokens / 32) * page + room, "{drop}");
        assert_eq!(cache.bytes_spare(), 2 * 64 * (2 * 2 * 64 + integer), "{drop}");
    }
}

/// Under methods that evict it is the same tokens that stay, decoding too; a row is what it is
/// alone.
#[test]
fn it_goes_with_methods_that_evict() {
    for backend in backends() {
        let inputs = Inputs::new(23, 260, &backend.device);
        let play = |policy: &Policy, row: Option<usize>| {
            let mut cache = KvCache::new(SHAPE, policy.clone(), &backend.device).unwrap();
            let mut outputs = Vec::new();
            let mut kept = Vec::new();
            for (from, to) in [(0, 180), (180, 181), (181, 182), (182, 240), (240, 241)] {
                let qkv = inputs.range(from, to);
                let qkv = match row {
                    None => qkv,
                    Some(row) => qkv.map(|x| x.narrow(0, row, 1)),
                };
                outputs.push(give(&mut cache, qkv));
                if from == 0 {
                    kept = cache.kept_positions(0).unwrap();
                }
            }
            (outputs, kept)
        };
        for method in ["snapkv", "adakv", "lagkv", "tova"] {
            let policy = Policy::named(method, Budget::Tokens(96)).unwrap();
            let store = KeyChannels { recent: 0, ..KeyChannels::new(0.5) };
            let thin = policy.clone().with_store(store);
            let what = format!("{method}, {}", &backend.name);
            let (outputs, kept) = play(&thin, None);
            for row in 0..2 {
                let (alone, of_row) = play(&thin, Some(row));
                assert_eq!(of_row[0], kept[row], "{what}");
                for (found, expected) in outputs.iter().zip(&alone) {
                    let [found, expected] =
                        [&found[row], &expected[0]].map(|x| x.concat().concat());
                    near(&found, &expected, &what, &backend.name);
                }
            }
            // Only what is asked after the prompt sees fewer channels.
            let (full, same) = play(&policy, None);
            assert_eq!((&full[0], same), (&outputs[0], kept), "{what}");
            assert_ne!(full[1], outputs[1], "{what}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for drop in [-0.1, 1.0, f64::NAN] {
        let error = Policy::full().with_store(KeyChannels::new(drop)).check().unwrap_err();
        assert!(error.to_string().contains("store.drop"), "{error}");
    }
    let none = KeyChannels { window: 0, ..KeyChannels::new(0.5) };
    let error = Policy::full().with_store(none).check().unwrap_err().to_string();
    assert!(error.contains("store.window"), "{error}");
    for mode in [PositionMode::InCache, PositionMode::Deferred] {
        let policy = Policy::full().with_positions(mode);
        policy.clone().with_store(Dense {}).check().unwrap();
        let error = policy.with_store(KeyChannels::new(0.5)).check().unwrap_err().to_string();
        assert!(error.contains("positions") && error.contains("key-channels"), "{error}");
    }
    let shape = CacheShape { head_dim: 512, ..SHAPE };
    let policy = Policy::full().with_store(KeyChannels::new(0.5));
    let error = KvCache::new(shape, policy.clone(), &host()).unwrap_err().to_string();
    assert!(error.contains("512") && error.contains("256"), "{error}");
    let text = policy.to_toml().unwrap();
    assert!(text.contains("kind = \"key-channels\"") && text.contains("drop = 0.5"), "{text}");
    assert_eq!(Policy::from_toml(&text).unwrap().to_toml().unwrap(), text);
}
