//! Duties of every named method, read off the table of methods: a new row is tested by being there.
//! On every device of the build.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, PrefillCompression, Prompt, Schedule,
    position::{PositionEncoding, RotaryEmbedding, Rotated},
    reduce::{EmaMerge, Evict, EvictThenMerge, GaussianMerge, Sigma},
};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

const SHAPE: CacheShape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 48;

fn policy(name: &str, budget: Budget, shape: CacheShape) -> Policy {
    let policy = named(name, budget);
    if policy.reads_profile() { policy.with_profile(profile(shape)) } else { policy }
}

/// All methods of one pass, by name.
fn names() -> Vec<String> {
    in_one_pass(BUDGET).map(|policy| policy.name().to_owned()).collect()
}

/// Those that keep no more than a budget, by name.
fn compressing() -> Vec<String> {
    let all = in_one_pass(BUDGET).filter(Policy::holds_budget);
    all.map(|policy| policy.name().to_owned()).collect()
}

type Qkv = (Tensor<4>, Tensor<4>, Tensor<4>);

/// Tokens of all layers: the same for the same seed on every device.
struct Tokens {
    layers: Vec<Qkv>,
    encoding: Box<dyn PositionEncoding>,
}

impl Tokens {
    fn new(seed: u64, shape: CacheShape, rows: usize, tokens: usize, device: &Device) -> Self {
        let mut noise = Noise::new(seed);
        let mut random = |heads| noise.tensor([rows, heads, tokens, shape.head_dim], device);
        let layers = (0..shape.layers)
            .map(|_| (random(shape.query_heads), random(shape.kv_heads), random(shape.kv_heads)))
            .collect();
        let rope = RotaryEmbedding::new(shape.head_dim, 1024, 10_000.0, device).unwrap();
        Self { layers, encoding: Box::new(rope) }
    }

    /// The same, rotated by the model: so many columns of each row are padding, and the token
    /// behind them stands at 0.
    fn rotated(&self, padding: &[usize]) -> Self {
        let [rows, _, tokens, _] = self.layers[0].0.dims();
        let of_row = |padding: &usize| {
            let padding = *padding as i64;
            (0..tokens as i64).map(move |column| (column - padding).max(-1))
        };
        let positions: Vec<i64> = padding.iter().flat_map(of_row).collect();
        let positions = TensorData::new(positions, [rows, 1, tokens]);
        let positions = Tensor::<3, Int>::from_data(positions, &self.layers[0].0.device());
        let turn = |x: &Tensor<4>| self.encoding.encode(x.clone(), positions.clone());
        let layers = self.layers.iter().map(|(q, k, v)| (turn(q), turn(k), v.clone())).collect();
        Self { layers, encoding: Box::new(Rotated) }
    }

    /// Gives the cache the tokens `from..to` of some rows. Returns the output of every layer.
    fn give(
        &self,
        cache: &mut KvCache,
        rows: std::ops::Range<usize>,
        from: usize,
        to: usize,
    ) -> Vec<Tensor<4>> {
        let cut =
            |x: &Tensor<4>| x.clone().narrow(0, rows.start, rows.len()).narrow(2, from, to - from);
        self.layers
            .iter()
            .enumerate()
            .map(|(layer, (q, k, v))| {
                cache.attend(layer, cut(q), cut(k), cut(v), &*self.encoding).unwrap_or_else(
                    |error| {
                        panic!(
                            "{}, layer {layer}, tokens {from}..{to}: {error}",
                            cache.policy().name()
                        )
                    },
                )
            })
            .collect()
    }
}

fn numbers(outputs: Vec<Tensor<4>>) -> Vec<f32> {
    let read = |x: Tensor<4>| x.try_into_vec_as::<f32>().unwrap();
    outputs.into_iter().flat_map(read).collect()
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// Names of methods that a device runs in these tests: all on the host, a few of each kind
/// elsewhere.
fn names_for(backend: &Backend) -> Vec<String> {
    if backend.is_quick() {
        return compressing();
    }
    ["cake", "adakv", "kvmerger", "d2o", "ems", "compresskv-kivi"].map(str::to_owned).to_vec()
}

fn schedules(policy: &Policy) -> Vec<Schedule> {
    let chunks = Schedule::always(7).with_prefill(PrefillCompression::EveryChunk);
    vec![
        policy.schedule(),
        Schedule::always(1),
        Schedule::always(5),
        Schedule::decode_only(3),
        chunks,
    ]
}

/// After a compression no layer holds more than its budget, all layers together no more than equal
/// ones would, and the bytes are those of the budget.
#[test]
fn memory_stays_within_the_budget() {
    for backend in backends() {
        let tokens = Tokens::new(1, SHAPE, 2, 190, &backend.device);
        for name in names_for(&backend) {
            let all = schedules(&policy(&name, Budget::Tokens(BUDGET), SHAPE));
            let few = if backend.is_quick() { all.len() } else { 1 };
            for schedule in all.into_iter().take(few) {
                let policy = policy(&name, Budget::Tokens(BUDGET), SHAPE).with_schedule(schedule);
                let what = format!("{name}, {schedule:?}, {}", backend.name);
                let mut cache = KvCache::new(SHAPE, policy, &backend.device).unwrap();
                cache.begin_prompt(Prompt::new(150).left_padding(vec![0, 41])).unwrap();
                for (from, to) in [(0, 60), (60, 100), (100, 150)] {
                    tokens.give(&mut cache, 0..2, from, to);
                }
                let prefill = schedule.prefill != PrefillCompression::Never;
                let mut dense = 0;
                for decoded in 0..40 {
                    let over = match schedule.decode_every {
                        _ if decoded == 0 && !prefill => {
                            continue_with(&mut cache, &tokens, decoded)
                        }
                        Some(every) if decoded >= every || prefill => decoded % every,
                        _ if prefill => decoded,
                        _ => continue_with(&mut cache, &tokens, decoded),
                    };
                    if over != usize::MAX {
                        for row in 0..2 {
                            let entries = |layer| -> usize {
                                cache.entries_by_head(layer).unwrap()[row].iter().sum()
                            };
                            let total: usize = (0..SHAPE.layers).map(entries).sum();
                            let most = SHAPE.layers * SHAPE.kv_heads * (BUDGET + over);
                            assert!(total <= most, "{what}, {decoded} decoded: {total} of {most}");
                        }
                        tokens.give(&mut cache, 0..2, 150 + decoded, 151 + decoded);
                    }
                    dense = cache.bytes_full();
                }
                // Tokens that are to come before the next compression have their room already.
                let CacheShape { layers, kv_heads, head_dim, .. } = SHAPE;
                let of_token = 2 * 2 * layers * kv_heads * head_dim * size_of::<f32>();
                let room = schedule.decode_every.map_or(0, |every| every.saturating_sub(40));
                let dense = dense + room * of_token;
                assert!(
                    cache.bytes_held() < dense || name.contains("kivi"),
                    "{what}: {} of {dense} bytes",
                    cache.bytes_held()
                );
            }
        }
    }
}

/// Goes on where nothing has been compressed yet.
fn continue_with(cache: &mut KvCache, tokens: &Tokens, decoded: usize) -> usize {
    tokens.give(cache, 0..2, 150 + decoded, 151 + decoded);
    usize::MAX
}

/// A budget in bytes is one on the device, whatever the method keeps beside keys and values.
#[test]
fn a_budget_in_bytes_is_kept() {
    let device = host();
    let tokens = Tokens::new(2, SHAPE, 2, 230, &device);
    for name in compressing() {
        for bytes in [300_000, 420_000] {
            let policy = policy(&name, Budget::Bytes(bytes), SHAPE);
            let layers_differ = ["pyramidkv", "cake", "d2o", "compresskv", "headkv", "adakv"]
                .iter()
                .any(|method| name.contains(method));
            let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
            tokens.give(&mut cache, 0..2, 0, 200);
            for token in 200..230 {
                let decodes = cache.policy().schedule().decode_every.is_some();
                if token == 200 || decodes {
                    let held = cache.bytes_held();
                    assert!(held as u64 <= bytes, "{name}: {held} bytes of {bytes}");
                    assert!(
                        layers_differ || held as u64 > bytes / 5,
                        "{name}: {held} bytes of {bytes} are not made use of"
                    );
                }
                tokens.give(&mut cache, 0..2, token, token + 1);
            }
        }
    }
}

/// Layer and head budgets add up to the total, exactly.
#[test]
fn budgets_add_up() {
    let device = host();
    for budget in [48, 61] {
        let tokens = Tokens::new(3, SHAPE, 1, 200, &device);
        for name in compressing() {
            let policy = policy(&name, Budget::Tokens(budget), SHAPE);
            let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
            tokens.give(&mut cache, 0..1, 0, 200);
            let entries = |layer| cache.entries_by_head(layer).unwrap()[0].iter().sum::<usize>();
            let total: usize = (0..SHAPE.layers).map(entries).sum();
            assert_eq!(total, SHAPE.layers * SHAPE.kv_heads * budget, "{name}");
        }
    }
}

/// Where nothing has to go, every method is the full cache, bit for bit.
#[test]
fn a_budget_that_holds_everything_is_the_full_cache() {
    for backend in backends() {
        let tokens = Tokens::new(4, SHAPE, 2, 80, &backend.device);
        let play = |policy: Policy| {
            let mut cache = KvCache::new(SHAPE, policy, &backend.device).unwrap();
            let mut outputs = numbers(tokens.give(&mut cache, 0..2, 0, 60));
            for token in 60..80 {
                outputs.extend(numbers(tokens.give(&mut cache, 0..2, token, token + 1)));
            }
            outputs
        };
        let full = play(Policy::full());
        for name in names_for(&backend) {
            // RoPE in the call rounds as RoPE before it; StreamingLLM then counts as the full cache
            // does.
            let policy = policy(&name, Budget::Tokens(300), SHAPE);
            assert!(play(policy) == full, "{name} on {}", backend.name);
        }
    }
}

/// A row does in a batch what it does alone, and a prompt in chunks what it does whole.
#[test]
fn batches_and_chunks_change_nothing() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(5, SHAPE, 3, 150, device);
        let padding = [0, 33, 70];
        for name in names_for(&backend) {
            let new = || {
                KvCache::new(SHAPE, policy(&name, Budget::Tokens(BUDGET), SHAPE), device).unwrap()
            };
            let mut together = new();
            together.begin_prompt(Prompt::new(130).left_padding(padding.to_vec())).unwrap();
            for (from, to) in [(0, 30), (30, 31), (31, 90), (90, 130)] {
                tokens.give(&mut together, 0..3, from, to);
            }
            let mut outputs = Vec::new();
            for token in 130..150 {
                outputs.push(tokens.give(&mut together, 0..3, token, token + 1));
            }
            for (row, padding) in padding.into_iter().enumerate() {
                let what = format!("{name}, row {row}, {}", backend.name);
                let mut alone = new();
                tokens.give(&mut alone, row..row + 1, padding, 130);
                for (index, token) in (130..150).enumerate() {
                    let found = tokens.give(&mut alone, row..row + 1, token, token + 1);
                    let expected =
                        outputs[index].iter().map(|x| x.clone().narrow(0, row, 1)).collect();
                    assert_close(&numbers(found), &numbers(expected), 1e-4, &what);
                }
                for layer in 0..SHAPE.layers {
                    let found = &alone.kept_positions(layer).unwrap()[0];
                    assert_eq!(*found, together.kept_positions(layer).unwrap()[row], "{what}");
                }
            }
        }
    }
}

/// Methods that need queries or keys before they are rotated.
const NEED_UNROTATED: [&str; 11] = [
    "streaming-llm",
    "finch",
    "leverage",
    "compactor",
    "ems",
    "ems-pyramidkv",
    "expected-attention",
    "expected-attention-adakv",
    "capkv",
    "ems-needle",
    "triattention",
];

/// A model that rotates queries and keys itself keeps the tokens and has the outputs of one that
/// leaves it to the cache, or is told that the method needs them before.
#[test]
fn queries_and_keys_may_come_rotated() {
    let padding = [0, 33];
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(9, SHAPE, 2, 150, device);
        let rotated = tokens.rotated(&padding);
        let all = if backend.is_quick() { names() } else { names_for(&backend) };
        for name in all {
            let what = format!("{name}, {}", backend.name);
            let policy = || policy(&name, Budget::Tokens(BUDGET), SHAPE);
            let new = || {
                let mut cache = KvCache::new(SHAPE, policy(), device).unwrap();
                cache.begin_prompt(Prompt::new(120).left_padding(padding.to_vec())).unwrap();
                cache
            };
            if NEED_UNROTATED.contains(&name.as_str()) {
                let (mut cache, (q, k, v)) = (new(), rotated.layers[0].clone());
                let needs = policy().needs_unrotated().unwrap();
                let error = cache.attend(0, q, k, v, &Rotated).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::RotatedKeys { .. }), "{what}: {error:?}");
                assert!(text.contains(&name) && text.contains(needs), "{what}: {text}");
                assert!(cache.tokens_seen().iter().all(|&seen| seen == 0), "{what}");
                continue;
            }
            let play = |tokens: &Tokens| {
                let mut cache = new();
                let mut outputs = numbers(tokens.give(&mut cache, 0..2, 0, 50));
                outputs.extend(numbers(tokens.give(&mut cache, 0..2, 50, 120)));
                for token in 120..150 {
                    outputs.extend(numbers(tokens.give(&mut cache, 0..2, token, token + 1)));
                }
                let kept = |layer| cache.kept_positions(layer).unwrap();
                (outputs, (0..SHAPE.layers).map(kept).collect::<Vec<_>>())
            };
            let [(expected, kept), (found, kept_rotated)] = [&tokens, &rotated].map(play);
            assert_eq!(kept_rotated, kept, "{what}");
            if backend.name == "flex" {
                assert!(found == expected, "{what}");
            }
            assert_close(&found, &expected, 1e-5, &what);
        }
    }
    let all = briquette::methods().into_iter().map(|method| method.name);
    let need =
        all.filter(|name| policy(name, Budget::Tokens(BUDGET), SHAPE).needs_unrotated().is_some());
    let (mut need, mut expected) = (need.collect::<Vec<_>>(), NEED_UNROTATED.to_vec());
    need.sort_unstable();
    expected.sort_unstable();
    assert_eq!(need, expected);
}

/// Multi-query and multi-head attention, and a second prompt on what is left of the first.
#[test]
fn other_heads_and_a_second_prompt() {
    let device = host();
    for (query_heads, kv_heads) in [(2, 2), (4, 1), (8, 2)] {
        let shape = CacheShape { layers: 2, query_heads, kv_heads, head_dim: 8 };
        let tokens = Tokens::new(6, shape, 2, 260, &device);
        for name in names() {
            for dtype in [DType::F32, DType::BF16] {
                let policy = policy(&name, Budget::Tokens(BUDGET), shape);
                let config = CacheConfig::default().with_dtype(dtype);
                let mut cache = KvCache::with_config(shape, policy, config, &device).unwrap();
                tokens.give(&mut cache, 0..2, 0, 100);
                for token in 100..105 {
                    tokens.give(&mut cache, 0..2, token, token + 1);
                }
                cache.begin_prompt(Prompt::new(100).left_padding(vec![60, 0])).unwrap();
                tokens.give(&mut cache, 0..2, 105, 155);
                tokens.give(&mut cache, 0..2, 155, 205);
                for token in 205..210 {
                    let output = numbers(tokens.give(&mut cache, 0..2, token, token + 1));
                    assert!(output.iter().all(|x| x.is_finite() && x.abs() < 10.0), "{name}");
                }
                assert_eq!(cache.tokens_seen(), [150, 210], "{name}");
            }
        }
    }
}

/// EMS with τ = 1 (Table 6) or γ = 1 (Table 7) is eviction by the same score.
#[test]
fn ems_that_merges_nothing_is_eviction() {
    let device = host();
    let tokens = Tokens::new(7, SHAPE, 2, 140, &device);
    let play = |policy: Policy| {
        let mut cache = KvCache::new(SHAPE, policy, &device).unwrap();
        let mut outputs = numbers(tokens.give(&mut cache, 0..2, 0, 100));
        for token in 100..140 {
            outputs.extend(numbers(tokens.give(&mut cache, 0..2, token, token + 1)));
        }
        let kept: Vec<_> =
            (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect();
        (outputs, kept)
    };
    let ems = || Policy::ems(Budget::Tokens(BUDGET));
    let (expected, kept) = play(ems().with_reducer(Evict {}));
    for (gamma, tau) in [(1.0, 0.0), (1.0, 0.6), (4.0, 1.0)] {
        let merge = EvictThenMerge { gamma, tau, ..Default::default() };
        let (found, kept_by_ems) = play(ems().with_reducer(merge));
        assert_eq!(kept_by_ems, kept, "γ {gamma}, τ {tau}");
        assert_close(&found, &expected, 1e-5, "outputs");
    }
    let merge = EvictThenMerge { tau: 0.0, ..Default::default() };
    assert_ne!(play(ems().with_reducer(merge)).1, kept, "τ = 0 merges");
}

/// Merging tokens that are equal leaves what they were.
#[test]
fn merging_equal_tokens_changes_nothing() {
    for backend in backends() {
        let device = &backend.device;
        let mut noise = Noise::new(8);
        let (key, value) =
            (noise.tensor([1, 2, 1, 16], device), noise.tensor([1, 2, 1, 16], device));
        let gaussian = |sigma, threshold| GaussianMerge {
            protect: 0.2,
            threshold,
            sigma,
            scale_values: false,
            ..Default::default()
        };
        let no_positions = briquette::position::NoPositionEncoding;
        let budget = Budget::Tokens(BUDGET);
        let policies = [
            Policy::ems(budget).with_reducer(EvictThenMerge { tau: 0.5, ..Default::default() }),
            Policy::d2o(budget),
            Policy::d2o(budget).with_reducer(EmaMerge { beta: 0.0, ..Default::default() }),
            Policy::kvmerger(budget),
            Policy::kvmerger(budget).with_reducer(gaussian(Sigma::Adaptive, None)),
            Policy::kvmerger(budget).with_reducer(gaussian(Sigma::Fixed(0.1), Some(0.9))),
        ];
        for policy in policies {
            let name = policy.name().to_owned();
            let mut cache = KvCache::new(SHAPE, policy, device).unwrap();
            for call in 0..4 {
                let new = if call == 0 { 100 } else { 1 };
                for layer in 0..SHAPE.layers {
                    let queries = noise.tensor([1, 4, new, 16], device);
                    let all = |x: &Tensor<4>| x.clone().expand([1, 2, new, 16]);
                    cache.attend(layer, queries, all(&key), all(&value), &no_positions).unwrap();
                }
            }
            let entries = cache.entries(1).unwrap().unwrap();
            let columns = entries.columns();
            let padding = entries.positions.clone().lower_scalar(0).unsqueeze_dim::<4>(3);
            for (found, one) in [(entries.keys, &key), (entries.values, &value)] {
                let one = one.clone().expand([1, 2, columns, 16]);
                let found =
                    found.mask_where(padding.clone().expand([1, 2, columns, 16]), one.clone());
                assert_close(&numbers(vec![found]), &numbers(vec![one]), 1e-5, &name);
            }
        }
    }
}
