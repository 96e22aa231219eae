//! Tokens that are written where others were evicted, beside a cache that lays entries out anew at
//! every token: the same tokens are kept, and attention is the same.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, LayerView, Policy, Prompt, Result,
    allocate::Pyramid,
    ops::Statistic,
    policy::{PositionMode, Recent},
    position::RotaryEmbedding,
    reduce::{EvictThenMerge, Rotate},
    score::{AttentionRequest, Dependencies, Scorer},
    state::{Replay, StateTensor, StateVisitor},
    store::Ragged,
};
use briquette_tests::{
    backends::{Backend, backends},
    inputs::Noise,
    session::tolerance,
};
use burn::tensor::{DType, Device, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 32 };
const ROWS: usize = 2;
const BUDGET: usize = 24;

/// A scorer that does not say it takes entries in any order.
#[derive(Debug)]
struct InOrder(Policy);

impl Scorer for InOrder {
    fn name(&self) -> &str {
        self.0.scorer().name()
    }

    fn observes(&self) -> AttentionRequest {
        self.0.scorer().observes()
    }

    fn depends_on(&self) -> Dependencies {
        let mut on_order = Dependencies::all();
        on_order.host = false;
        on_order
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        assert!(is_ascending(view)?, "columns are in the order of their positions");
        self.0.scorer().score(view)
    }
}

fn is_ascending(view: &LayerView<'_>) -> Result<bool> {
    let [.., columns] = view.positions().dims();
    let positions = view.positions().clone().try_into_vec_as::<i64>()?;
    Ok(positions.chunks(columns).all(|head| head.is_sorted()))
}

fn policies() -> Vec<Policy> {
    policies_of(Budget::Tokens(BUDGET))
}

fn policies_of(budget: Budget) -> Vec<Policy> {
    let ems = |reduce| Policy::ems(budget).with_window(6).with_reducer(reduce);
    let reduce = EvictThenMerge::default();
    vec![
        Policy::h2o(budget),
        Policy::h2o(budget).with_sinks(3).with_recent(Recent::Tokens(5)).with_name("h2o-sinks"),
        Policy::h2o(budget).with_recent(Recent::Tokens(0)).with_name("h2o-all"),
        Policy::tova(budget),
        Policy::local_window(budget),
        Policy::roco(budget).with_sinks(2).with_recent(Recent::Tokens(3)),
        // Positions that are counted among slots, and keys held before their encoding.
        Policy::streaming_llm(budget),
        Policy::h2o(budget).with_positions(PositionMode::InCache).with_name("h2o-in-cache"),
        Policy::tova(budget).with_positions(PositionMode::InCache).with_name("tova-in-cache"),
        Policy::h2o(budget)
            .with_positions(PositionMode::InCache)
            .with_store(Ragged {})
            .with_name("h2o-ragged-in-cache"),
        Policy::h2o(budget).with_positions(PositionMode::Deferred).with_name("h2o-deferred"),
        Policy::h2o(budget).with_store(Ragged {}).with_name("h2o-ragged"),
        // Values that are added to others'.
        Policy::cam(budget),
        Policy::cam(budget)
            .with_recent(Recent::Tokens(1))
            .with_store(Ragged {})
            .with_name("cam-ragged"),
        // Rows of their own lengths, and merged entries.
        Policy::d2o(budget),
        // Tokens that share entries: more of them at every token, or as many as there may be.
        ems(EvictThenMerge { tau: 0.1, ..reduce }),
        ems(EvictThenMerge { gamma: 1.5, tau: 0.02, ..reduce }),
        ems(EvictThenMerge { gamma: 1.5, tau: 0.02, rotate: Rotate::Center, ..reduce }),
        ems(EvictThenMerge { gamma: 2.0, tau: 0.1, ..reduce })
            .with_sinks(2)
            .with_positions(PositionMode::Written),
        ems(EvictThenMerge { gamma: 1.0, ..reduce }),
        // Layers of their own lengths.
        ems(EvictThenMerge { tau: 0.1, ..reduce })
            .with_allocator(Pyramid { beta: 20.0 })
            .with_name("ems-pyramid"),
        Policy::h2o(budget).with_allocator(Pyramid { beta: 20.0 }).with_name("h2o-pyramid"),
    ]
}

/// The numbers of a cache's state.
#[derive(Default)]
struct Numbers(Vec<usize>);

impl StateVisitor for Numbers {
    fn tensor(&mut self, _: StateTensor<'_>) {}

    fn number(&mut self, number: usize) {
        self.0.push(number);
    }
}

fn numbers(cache: &mut KvCache) -> Vec<usize> {
    let mut numbers = Numbers::default();
    cache.visit_state(&mut numbers).unwrap();
    numbers.0
}

/// A cache that decodes in place, and one that does not.
struct Pair {
    in_place: KvCache,
    in_order: KvCache,
    encoding: RotaryEmbedding,
    noise: Noise,
    device: Device,
    dtype: DType,
    /// Whether one may have room that the other has not.
    has_room: bool,
}

impl Pair {
    fn new(policy: &Policy, backend: &Backend, dtype: DType) -> Self {
        let device = backend.device.clone();
        let laid_out = policy.clone().with_scorer(InOrder(policy.clone()));
        let cache = |policy| {
            let config = CacheConfig::default().with_dtype(dtype);
            KvCache::with_config(SHAPE, policy, config, &device).unwrap()
        };
        Self {
            in_place: cache(policy.clone()),
            in_order: cache(laid_out),
            encoding: RotaryEmbedding::new(SHAPE.head_dim, 512, 10_000.0, &device).unwrap(),
            noise: Noise::new(7),
            device,
            dtype,
            has_room: false,
        }
    }

    /// Lets rows of the next prompt begin with padding.
    fn pad(&mut self, columns: usize, padding: [usize; ROWS]) {
        for cache in [&mut self.in_place, &mut self.in_order] {
            let prompt = Prompt::new(columns).left_padding(padding.to_vec());
            cache.begin_prompt(prompt).unwrap();
        }
    }

    /// Gives both the same tokens in every layer.
    fn attend(&mut self, columns: usize) {
        for layer in 0..SHAPE.layers {
            let qkv = self.qkv(columns);
            let output = |cache: &mut KvCache| {
                let [q, k, v] = qkv.clone();
                let output = cache.attend(layer, q, k, v, &self.encoding).unwrap();
                output.cast(DType::F32).try_into_vec_as::<f32>().unwrap()
            };
            let (found, expected) = (output(&mut self.in_place), output(&mut self.in_order));
            for (found, expected) in found.iter().zip(&expected) {
                let off = (found - expected).abs();
                assert!(
                    f64::from(off) <= tolerance(self.dtype),
                    "{} tokens, {:?}: {found}, expected {expected}",
                    self.in_place.tokens_seen()[0],
                    self.in_place.policy()
                );
            }
        }
        for layer in 0..SHAPE.layers {
            let kept = |cache: &KvCache| cache.kept_positions(layer).unwrap();
            assert_eq!(
                kept(&self.in_place),
                kept(&self.in_order),
                "{layer}, {:?}",
                self.in_place.policy()
            );
        }
        let [in_place, in_order] = [&self.in_place, &self.in_order].map(KvCache::bytes_held);
        assert!(in_place == in_order || self.has_room, "{in_place}, {in_order}");
    }

    /// That the state of one says of each layer that entries lie in no order, and that of the other
    /// does not.
    fn check_order(&mut self) {
        let (found, other) = (numbers(&mut self.in_place), numbers(&mut self.in_order));
        let differ: Vec<(usize, usize)> =
            found.into_iter().zip(other).filter(|(found, other)| found != other).collect();
        if self.in_place.policy().reducer().makes_clusters() {
            // And that there are as many tokens as there is room for, which the other counts.
            assert!(differ.iter().all(|&(found, other)| found > other), "{differ:?}");
            assert_eq!(differ.iter().filter(|&&pair| pair == (1, 0)).count(), SHAPE.layers);
            return;
        }
        assert_eq!(differ, [(1, 0); SHAPE.layers]);
    }

    fn qkv(&mut self, columns: usize) -> [Tensor<4>; 3] {
        let CacheShape { query_heads, kv_heads, head_dim, .. } = SHAPE;
        [query_heads, kv_heads, kv_heads].map(|heads| {
            let x = self.noise.tensor([ROWS, heads, columns, head_dim], &self.device);
            x.mul_scalar(2.0).cast(self.dtype)
        })
    }
}

/// Entries with their statistics, as numbers.
fn entries(cache: &KvCache) -> Vec<Vec<f32>> {
    let floats = |x: Tensor<4>| x.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
    let of_layer = |layer| {
        let entries = cache.entries(layer).unwrap().unwrap();
        let statistics = entries.statistics.stacked().cloned();
        let statistics =
            statistics.map_or_else(Vec::new, |statistics| statistics.try_into_vec_as().unwrap());
        [floats(entries.keys), floats(entries.values), statistics].concat()
    };
    (0..SHAPE.layers).map(of_layer).collect()
}

#[test]
fn the_same_tokens_are_kept() {
    for backend in backends() {
        for dtype in backend.dtypes() {
            // Rows that are laid out anew are rounded anew.
            let same = |policy: &Policy| dtype == DType::F32 || !policy.reducer().makes_clusters();
            for policy in policies().into_iter().filter(same) {
                let mut pair = Pair::new(&policy, &backend, dtype);
                pair.attend(40);
                (0..30).for_each(|_| pair.attend(1));
                pair.check_order();
                // Laid out again for a prompt, and then in slots again.
                pair.attend(9);
                (0..8).for_each(|_| pair.attend(1));
                pair.check_order();
            }
        }
    }
}

#[test]
fn budgets_that_are_reached_in_decoding_are_held() {
    for backend in backends() {
        let mut pair = Pair::new(&Policy::h2o(Budget::Tokens(BUDGET)), &backend, DType::F32);
        pair.attend(10);
        (0..BUDGET).for_each(|_| pair.attend(1));
        pair.check_order();
    }
}

/// Policies whose heads may hold more than a prompt brings.
fn growing(budget: Budget) -> impl Iterator<Item = Policy> {
    // A pyramid's layers may keep more, the more tokens have come.
    let is_one = |policy: &Policy| policy.allocator().name() != "pyramid";
    let policies = policies_of(budget).into_iter().filter(is_one);
    policies.filter(|policy| !policy.reducer().makes_clusters())
}

#[test]
fn budgets_that_are_a_share_grow_in_place() {
    for backend in backends() {
        let (dtypes, ratios) = match backend.is_quick() {
            true => (backend.dtypes(), vec![0.4, 0.75]),
            false => (vec![DType::F32], vec![0.4]),
        };
        for dtype in dtypes {
            // Rows that are laid out anew are rounded anew.
            let same = |policy: &Policy| dtype == DType::F32 || !policy.reducer().makes_clusters();
            let all = ratios.iter().flat_map(|&ratio| policies_of(Budget::Ratio(ratio)));
            // Where a pyramid's first layer keeps all, it has no clusters, and the part of the last
            // falls at every fourth token.
            let fits = |policy: &Policy| {
                policy.allocator().name() != "pyramid"
                    || policy.budget() != Some(Budget::Ratio(0.75))
            };
            for policy in all.filter(same).filter(fits) {
                let mut pair = Pair::new(&policy, &backend, dtype);
                pair.has_room = true;
                // Rows whose budgets grow at different tokens.
                pair.pad(40, [0, 1]);
                pair.attend(40);
                assert_eq!(pair.in_place.open_columns(), None, "no token has been decoded");
                pair.attend(1);
                let (mut made, mut laid_out) = (0, 0);
                let mut state = None;
                for _ in 0..30 {
                    if pair.in_place.open_columns() == Some(0) {
                        pair.in_place.begin_device_indexing(5).unwrap();
                        made += 1;
                        state = None;
                    }
                    let is_known = pair.in_place.open_columns().is_some_and(|open| open > 0);
                    let before = pair.in_place.bytes_held();
                    pair.attend(1);
                    laid_out += usize::from(pair.in_place.bytes_held() != before);
                    if is_known {
                        // All steps are alike.
                        let after = numbers(&mut pair.in_place);
                        assert_eq!(*state.get_or_insert_with(|| after.clone()), after);
                    }
                }
                assert!((2..12).contains(&made), "{made}, {policy:?}");
                // A layer's part of a budget that grows may fall by one, so that two tokens go.
                let shares_out = policy.allocator().name() != "uniform";
                let most = if shares_out { 3 } else { 0 };
                assert!(laid_out <= most, "{laid_out}, {policy:?}");
                // Free slots are room for tokens to come.
                let used = |cache: &KvCache| (cache.bytes_held() - cache.bytes_spare()) as f64;
                let (found, expected) = (used(&pair.in_place), used(&pair.in_order));
                assert!((found / expected - 1.0).abs() < 0.01, "{found}, {expected}, {policy:?}");
                // What a second prompt measures adds up in another order, and may be rounded to
                // another part.
                if policy.allocator().measures() {
                    continue;
                }
                // A prompt is laid out, and tokens behind it go in place again.
                pair.attend(6);
                pair.attend(1);
                pair.in_place.begin_device_indexing(20).unwrap();
                (0..9).for_each(|_| pair.attend(1));
                assert!(pair.in_place.open_columns().is_some_and(|open| open > 0), "{policy:?}");
            }
        }
    }
}

#[test]
fn heads_below_their_share_take_free_slots() {
    for backend in backends() {
        for dtype in backend.dtypes() {
            for policy in growing(Budget::Tokens(BUDGET)) {
                let mut pair = Pair::new(&policy, &backend, dtype);
                pair.has_room = true;
                pair.pad(10, [0, 3]);
                pair.attend(10);
                assert_eq!(pair.in_place.open_columns(), None, "no token has been decoded");
                pair.attend(1);
                assert_eq!(pair.in_place.open_columns(), Some(0), "{policy:?}");
                let (mut made, mut decoded) = (0, 0);
                while pair.in_place.open_columns().is_some() {
                    pair.in_place.begin_device_indexing(5).unwrap();
                    made += 1;
                    let open = pair.in_place.open_columns().unwrap_or(0);
                    let mut state = None;
                    for step in 0..open {
                        assert_eq!(pair.in_place.open_columns(), Some(open - step), "{policy:?}");
                        pair.attend(1);
                        // All steps are alike.
                        let after = numbers(&mut pair.in_place);
                        assert_eq!(*state.get_or_insert_with(|| after.clone()), after);
                    }
                    decoded += open;
                }
                assert!(made > 2 && decoded > 12, "{made}, {decoded}, {policy:?}");
                // At their share they go on as ever, and are laid out for a prompt.
                pair.has_room = false;
                (0..5).for_each(|_| pair.attend(1));
                pair.check_order();
                pair.attend(3);
            }
        }
    }
}

#[test]
fn free_slots_are_given_up() {
    for backend in backends() {
        for policy in growing(Budget::Tokens(BUDGET)) {
            let mut pair = Pair::new(&policy, &backend, DType::F32);
            pair.pad(10, [2, 0]);
            pair.attend(10);
            (0..2).for_each(|_| pair.attend(1));
            pair.in_place.begin_device_indexing(7).unwrap();
            pair.has_room = true;
            (0..3).for_each(|_| pair.attend(1));

            // A copy and a file go on where the cache was, a step that fails leaves it there.
            let (fork, in_order) = (pair.in_place.fork(), pair.in_order.fork());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("prefix");
            pair.in_place.save(&path).unwrap();
            let [q, k, v] = pair.qkv(1);
            let Pair { in_place, encoding, .. } = &mut pair;
            let failed = in_place.transaction(|cache| -> Result<()> {
                cache.attend(0, q.clone(), k.clone(), v.clone(), encoding)?;
                cache.attend(9, q, k, v, encoding).map(drop)
            });
            assert!(matches!(failed, Err(Error::LayerOutOfRange { .. })), "{failed:?}");
            // More tokens than there are slots for, and a prompt.
            (0..6).for_each(|_| pair.attend(1));
            pair.attend(3);
            (0..BUDGET).for_each(|_| pair.attend(1));

            (pair.in_place, pair.in_order) = (fork, in_order.fork());
            pair.attend(2);
            let (policy, config) = (pair.in_place.policy().clone(), CacheConfig::default());
            let config = config.with_dtype(DType::F32);
            pair.in_place = KvCache::load(&path, SHAPE, policy, config, &pair.device).unwrap();
            pair.in_order = in_order;
            (0..BUDGET).for_each(|_| pair.attend(1));
        }
    }
}

#[test]
fn forks_and_files_go_on_as_the_cache_does() {
    let backends = backends();
    let all = |backend| policies().into_iter().map(move |policy| (backend, policy));
    for (backend, policy) in backends.iter().flat_map(all) {
        let mut pair = Pair::new(&policy, backend, DType::F32);
        pair.attend(40);
        (0..11).for_each(|_| pair.attend(1));

        // Two that go on with other tokens leave each other alone.
        let before = entries(&pair.in_place);
        let fork = pair.in_place.fork();
        let in_order = pair.in_order.fork();
        (0..5).for_each(|_| pair.attend(1));
        assert_eq!(entries(&fork), before);
        let went_on = entries(&pair.in_place);
        let of_first = std::mem::replace(&mut pair.in_place, fork);
        pair.in_order = in_order;
        (0..5).for_each(|_| pair.attend(1));
        assert_eq!(entries(&of_first), went_on);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prefix");
        pair.in_place.save(&path).unwrap();
        let (policy, config) = (pair.in_place.policy().clone(), pair.in_place.config().clone());
        pair.in_place = KvCache::load(&path, SHAPE, policy, config, &pair.device).unwrap();
        (0..7).for_each(|_| pair.attend(1));
        pair.check_order();
    }
}

#[test]
fn a_step_that_fails_changes_nothing() {
    let backends = backends();
    let all = |backend| policies().into_iter().map(move |policy| (backend, policy));
    for (backend, policy) in backends.iter().flat_map(all) {
        let mut pair = Pair::new(&policy, backend, DType::F32);
        pair.attend(40);
        for decoded in [0, 1, 6] {
            (0..decoded).for_each(|_| pair.attend(1));
            let before = entries(&pair.in_place);
            let [q, k, v] = pair.qkv(1);
            let Pair { in_place, encoding, .. } = &mut pair;
            let failed = in_place.transaction(|cache| -> Result<()> {
                for layer in (0..3).flat_map(|_| 0..SHAPE.layers).chain([0]) {
                    cache.attend(layer, q.clone(), k.clone(), v.clone(), encoding)?;
                }
                cache.attend(9, q.clone(), k.clone(), v.clone(), encoding).map(drop)
            });
            assert!(matches!(failed, Err(Error::LayerOutOfRange { .. })), "{failed:?}");
            assert_eq!(entries(&pair.in_place), before);
        }
        (0..4).for_each(|_| pair.attend(1));
    }
}

/// A scorer that fails once a token has been inserted.
#[derive(Debug)]
struct FailsAt(Arc<AtomicBool>);

impl Scorer for FailsAt {
    fn name(&self) -> &str {
        "fails"
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::column_sums()
    }

    fn depends_on(&self) -> Dependencies {
        Dependencies::none()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        if self.0.load(Ordering::Relaxed) {
            let (name, reason) = ("fails".to_owned(), "as it was told to".to_owned());
            return Err(Error::Stage { stage: "scorer", name, reason });
        }
        view.statistic(Statistic::Sums, "fails")
    }
}

#[test]
fn a_scorer_that_fails_leaves_the_token_out() {
    for backend in backends() {
        let fails = Arc::new(AtomicBool::new(false));
        let policy = Policy::h2o(Budget::Tokens(BUDGET)).with_scorer(FailsAt(fails.clone()));
        let mut pair = Pair::new(&Policy::h2o(Budget::Tokens(BUDGET)), &backend, DType::F32);
        pair.in_place = KvCache::new(SHAPE, policy, &pair.device).unwrap();
        pair.attend(40);
        for decoded in [0, 1, 6] {
            (0..decoded).for_each(|_| pair.attend(1));
            let before = entries(&pair.in_place);
            let [q, k, v] = pair.qkv(1);
            fails.store(true, Ordering::Relaxed);
            let failed = pair.in_place.attend(1, q, k, v, &pair.encoding);
            fails.store(false, Ordering::Relaxed);
            assert!(matches!(failed, Err(Error::Stage { .. })), "{failed:?}");
            assert_eq!(entries(&pair.in_place), before);
        }
        (0..4).for_each(|_| pair.attend(1));
    }
}
