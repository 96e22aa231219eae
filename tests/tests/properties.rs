//! Properties that hold whatever the numbers. On the host device; `methods.rs` holds the others to
//! the reference.

use briquette::{Budget, CacheConfig, KvCache, Policy, Schedule};
use briquette_tests::{
    backends::host,
    inputs::{Noise, Tokens, draw_profile},
    reference::{
        self, Allocate, Encoding, ErrorAware, HeadScore, Heads, Kind, Method, Pick, Pool,
        Positions, Prefill, Recent, Reduce, Rotate, Score, Settings, Store, Window,
    },
    session::{Observed, Session, Trace, Turn, chunked, compare, prompt},
};
use burn::tensor::{DType, Tensor};
use proptest::{prelude::*, sample::select};

fn cases(cases: u32) -> ProptestConfig {
    // No file of past failures: a failing case prints its session, seed included.
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Methods that know nothing of heads and layers but what these hold: every layer and head keeps
/// its budget.
fn uniform_methods() -> Vec<Method> {
    let max_pool = Window { window: 4, pool: Some(Pool::Max(3)), heads: Heads::Group };
    let few_sinks = |method| Method { sinks: 2, ..method };
    vec![
        Method::local_window(),
        Method { sinks: 3, ..Method::streaming_llm() },
        Method { positions: Positions::Written, ..Method::streaming_llm() },
        Method { positions: Positions::Deferred, ..Method::h2o() },
        Method::h2o(),
        Method {
            score: Score::Accumulated { mean: true },
            recent: Recent::Tokens(0),
            ..Method::h2o()
        },
        Method::tova(),
        Method::snapkv().with_window(5),
        Method { score: Score::Window(max_pool), ..Method::snapkv().with_window(4) },
        Method { recent: Recent::Tokens(2), ..few_sinks(Method::roco()) },
        Method { allocate: Allocate::Uniform, ..Method::cake().with_window(4) },
        Method { allocate: Allocate::Uniform, ..few_sinks(Method::d2o()) },
    ]
}

/// Methods that treat all heads alike, but need not give them the same.
fn fair_methods() -> Vec<Method> {
    let ems = |gamma, tau, rotate| {
        let reduce = Reduce::ems(gamma, tau, rotate);
        Method { reduce, ..Method::ems().with_window(4) }
    };
    let mut methods = uniform_methods();
    methods.extend([
        Method { allocate: Allocate::Pyramid { beta: 4.0 }, ..Method::pyramidkv().with_window(4) },
        Method::cake().with_window(4),
        Method::adakv().with_window(4),
        Method { sinks: 2, ..Method::d2o() },
        Method::kvmerger(),
        ems(2.0, 0.6, Rotate::Own),
        ems(4.0, 0.4, Rotate::Center),
        Method { positions: Positions::Written, ..ems(1.5, 0.5, Rotate::Own) },
    ]);
    methods
}

fn all_methods() -> Vec<Method> {
    let pool = Some(Pool::Average(5));
    let heads = Heads::Retrieval { scores: HeadScore::Semantic, pick: Pick::Top(2) };
    let window = Window { window: 4, pool, heads };
    let compresskv = Method {
        score: Score::Window(window),
        recent: Recent::Tokens(4),
        allocate: Allocate::ErrorAware(ErrorAware { least: 5, most: 3.0 }),
        ..Method::compresskv()
    };
    let by = Some(Window { heads: Heads::Group, ..window });
    let layers = Some(ErrorAware { least: 5, most: 3.0 });
    let mut methods = fair_methods();
    methods.extend([
        Method::headkv().with_window(4),
        compresskv,
        Method { allocate: Allocate::HeadAdaptive { floor: 0.6, by, layers }, ..compresskv },
        Method { allocate: Method::headkv().allocate, ..compresskv },
        Method::cam(),
    ]);
    methods
}

/// Methods that keep their tokens in 8 bits: rounding adds a little to the tolerance.
fn quantized_methods() -> Vec<Method> {
    let store = Store::Quantized { bits: 8, group: 4, residual: 5 };
    [Method::full(), Method::h2o(), Method::snapkv().with_window(4)]
        .map(|method| Method { store, ..method })
        .to_vec()
}

fn settings(methods: Vec<Method>) -> impl Strategy<Value = Settings> {
    let heads = select(vec![(2, 2), (4, 2), (4, 1), (6, 3), (8, 2)]);
    let head_dim = select(vec![4, 8, 16]);
    let encoding = select(vec![
        Encoding::Rotary { theta: 10_000.0 },
        Encoding::Rotary { theta: 100.0 },
        Encoding::None,
    ]);
    let prefill = select(vec![Prefill::AtEnd, Prefill::AtEnd, Prefill::EveryChunk, Prefill::Never]);
    let decode_every = select(vec![None, Some(1), Some(2), Some(5)]);
    (heads, head_dim, encoding, select(methods), 6..20_usize, prefill, decode_every, 1..3_usize)
        .prop_map(|(heads, head_dim, encoding, method, budget, prefill, decode_every, layers)| {
            Settings {
                layers,
                query_heads: heads.0,
                kv_heads: heads.1,
                head_dim,
                scale: 1.0 / (head_dim as f64).sqrt(),
                kind: Kind::default(),
                encoding,
                method,
                profile: draw_profile(budget as u64, layers, heads.0),
                budget: reference::Budget::Tokens(budget),
                prefill,
                decode_every,
            }
        })
}

fn lengths(rows: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..40_usize, rows)
}

/// Cuts the longest row into chunks of at most `size` columns.
fn in_chunks(lengths: &[usize], size: usize) -> Turn {
    let mut left = *lengths.iter().max().expect("at least one row");
    let mut chunks = Vec::new();
    while left > 0 {
        chunks.push(left.min(size));
        left -= left.min(size);
    }
    chunked(lengths, &chunks)
}

prop_compose! {
    /// A prompt in chunks, decoding, a second prompt, decoding.
    fn session(methods: Vec<Method>)(rows in 1..4_usize)(
        settings in settings(methods.clone()),
        first in lengths(rows),
        second in lengths(rows),
        sizes in (1..40_usize, 1..40_usize),
        decoded in (0..8_usize, 0..4_usize),
        two_prompts in any::<bool>(),
        seed in any::<u64>(),
    ) -> Session {
        // Every compression rounds all that is quantized anew. After some forty no inputs are left
        // of which nothing comes close to where rounding turns.
        let rounds = matches!(settings.method.store, Store::Quantized { .. });
        let least = if rounds { 8 } else { 1 };
        let sizes = (sizes.0.max(least), sizes.1.max(least));
        let mut turns = vec![in_chunks(&first, sizes.0), Turn::Decode(decoded.0)];
        if two_prompts {
            turns.extend([in_chunks(&second, sizes.1), Turn::Decode(decoded.1)]);
        }
        Session { settings, turns, dtype: DType::F32, seed }
    }
}

/// All that a batch row did, call by call, `outputs` of all its tokens joined and `kept` after the
/// last call.
fn row_of(observed: &[Observed], row: usize) -> (Vec<Vec<Vec<f64>>>, Vec<Vec<usize>>) {
    let mut outputs = vec![Vec::new(); observed[0].outputs[row][0].len()];
    for call in observed {
        for (all, new) in outputs.iter_mut().zip(&call.outputs[row][0]) {
            all.extend_from_slice(new);
        }
    }
    (outputs, observed[observed.len() - 1].kept[row][0].clone())
}

proptest! {
    #![proptest_config(cases(256))]

    /// Chunks, padding, schedules, second prompts: everything at once. Among other things the next
    /// position does not depend on how many entries are left, or the outputs of decoded tokens
    /// would differ.
    #[test]
    fn any_session_equals_the_reference(
        session in session([all_methods(), quantized_methods()].concat()),
    ) {
        session.check(&host());
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_budget_that_holds_everything_is_the_full_cache(mut session in session(all_methods())) {
        session.settings.budget = reference::Budget::Tokens(200);
        let traces = session.traces();
        let device = host();
        let compressed = session.play(&traces, &device);
        session.settings.method = Method::full();
        let full = session.play(&traces, &device);
        // A store of rows of their own lengths lays them out with more padding columns than the
        // full cache has, and sums over more columns come in another order.
        let even = session.turns.iter().all(|turn| match turn {
            Turn::Prompt { lengths, .. } => lengths.iter().all(|length| *length == lengths[0]),
            Turn::Decode(_) => true,
        });
        for (compressed, full) in compressed.iter().zip(&full) {
            prop_assert_eq!(&compressed.kept, &full.kept);
            if even {
                // Bit for bit.
                prop_assert_eq!(&compressed.outputs, &full.outputs);
                continue;
            }
            let layers = |outputs: &[Vec<Vec<Vec<Vec<f64>>>>]| outputs.concat();
            for (found, expected) in layers(&compressed.outputs).iter().zip(&layers(&full.outputs)) {
                compare(found, expected, 1e-6, "a budget that holds everything");
            }
        }
    }

    #[test]
    fn chunked_prefill_is_whole_prefill(
        settings in settings([all_methods(), quantized_methods()].concat()),
        length in 10..60_usize, size in 1..20_usize, seed in any::<u64>(),
    ) {
        let prefill = if settings.prefill == Prefill::Never { Prefill::Never } else { Prefill::AtEnd };
        let settings = Settings { prefill, ..settings };
        let mut session = Session {
            settings,
            turns: vec![prompt(&[length]), Turn::Decode(3)],
            dtype: DType::F32,
            seed,
        };
        let device = host();
        let whole = row_of(&session.play(&session.traces(), &device), 0);
        session.turns[0] = in_chunks(&[length], size);
        let chunked = row_of(&session.play(&session.traces(), &device), 0);
        prop_assert_eq!(&chunked.1, &whole.1);
        compare(&chunked.0, &whole.0, 1e-5, "chunked against whole");
    }

    #[test]
    fn left_padding_changes_nothing(
        session in session([all_methods(), quantized_methods()].concat()),
    ) {
        let traces = session.traces();
        let device = host();
        let together = session.play(&traces, &device);
        for (row, trace) in traces.iter().enumerate() {
            let alone = Session { turns: without_padding(&session.turns, row), ..session.clone() };
            let alone = alone.play(&[trace.iter().map(without_padded_calls).collect()], &device);
            let (together, alone) = (row_of(&together, row), row_of(&alone, 0));
            prop_assert_eq!(&together.1, &alone.1);
            compare(&together.0, &alone.0, 1e-5, "in a batch against alone");
        }
    }

    #[test]
    fn permuting_heads_permutes_results(
        mut session in session([fair_methods(), quantized_methods()].concat()),
        shift in 1..3_usize,
    ) {
        let traces = session.traces();
        let device = host();
        let straight = session.play(&traces, &device);
        let Settings { query_heads, kv_heads, .. } = session.settings;
        let group = query_heads / kv_heads;
        // Head `h` moves to `h + shift`, the queries of its group with it.
        session.seed = 0;
        let rotated: Vec<Vec<Trace>> = traces
            .iter()
            .map(|row| row.iter().map(|trace| rotate(trace, shift % kv_heads, group)).collect())
            .collect();
        let permuted = session.play(&rotated, &device);
        for (straight, permuted) in straight.iter().zip(&permuted) {
            for row in 0..session.rows() {
                let mut kept = straight.kept[row][0].clone();
                kept.rotate_right(shift % kv_heads);
                prop_assert_eq!(&permuted.kept[row][0], &kept);
                let mut outputs = straight.outputs[row][0].clone();
                outputs.rotate_right(shift % kv_heads * group);
                compare(&permuted.outputs[row][0], &outputs, 1e-5, "permuted against straight");
            }
        }
    }
}

/// The turns of one row, its chunks cut to what they hold of it.
fn without_padding(turns: &[Turn], row: usize) -> Vec<Turn> {
    let of_row = |turn: &Turn| match turn {
        Turn::Decode(tokens) => Turn::Decode(*tokens),
        Turn::Prompt { lengths, chunks } => {
            let mut padding = chunks.iter().sum::<usize>() - lengths[row];
            let mut own = Vec::new();
            for columns in chunks {
                let skipped = padding.min(*columns);
                padding -= skipped;
                if skipped < *columns {
                    own.push(columns - skipped);
                }
            }
            chunked(&[lengths[row]], &own)
        }
    };
    turns.iter().map(of_row).collect()
}

fn without_padded_calls(trace: &Trace) -> Trace {
    let mut trace = trace.clone();
    trace.calls.retain(|call| !call.tokens.q[0].is_empty());
    for call in &mut trace.calls {
        call.padding = 0;
    }
    trace
}

fn rotate(trace: &Trace, shift: usize, group: usize) -> Trace {
    let mut trace = trace.clone();
    for call in &mut trace.calls {
        let Tokens { q, k, v } = &mut call.tokens;
        q.rotate_right(shift * group);
        k.rotate_right(shift);
        v.rotate_right(shift);
    }
    trace
}

/// Plays the same random tokens every time: a prompt of `prompt` tokens in each of 2 rows, then
/// `decoded` single ones. Calls `after` after each of these, once all layers have it.
fn stream(mut cache: KvCache, prompt: usize, decoded: usize, mut after: impl FnMut(&KvCache)) {
    let (shape, device) = (cache.shape(), cache.device().clone());
    let positions =
        briquette::position::RotaryEmbedding::new(shape.head_dim, 512, 10_000.0, &device).unwrap();
    let mut noise = Noise::new(1);
    for call in 0..=decoded {
        let new = if call == 0 { prompt } else { 1 };
        for layer in 0..shape.layers {
            let mut random = |heads| noise.tensor([2, heads, new, shape.head_dim], &device);
            let (q, k, v) =
                (random(shape.query_heads), random(shape.kv_heads), random(shape.kv_heads));
            cache.attend(layer, q, k, v, &positions).unwrap();
        }
        after(&cache);
    }
}

const SHAPE: briquette::CacheShape =
    briquette::CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn kept_counts_never_exceed_the_budget(
        method in select(uniform_methods()), budget in 6..30_usize, every in 1..6_usize, length in 1..60_usize,
        ratio in any::<bool>(),
    ) {
        let settings = Settings {
            layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, kind: Kind::default(), method,
            encoding: Encoding::None,
            profile: draw_profile(0, 2, 4),
            budget: if ratio {
                reference::Budget::Ratio(budget as f64 / 40.0)
            } else {
                reference::Budget::Tokens(budget)
            },
            prefill: Prefill::AtEnd,
            decode_every: Some(every),
        };
        let budget = settings.budget;
        let session = Session { settings, turns: vec![], dtype: DType::F32, seed: 0 };
        let mut decoded = 0;
        stream(session.cache(&host()), length, 60, |cache| {
            let most = match budget {
                reference::Budget::Tokens(tokens) => tokens,
                reference::Budget::Ratio(ratio) => {
                    ((ratio * (length + decoded) as f64) as usize).max(method.least_budget())
                }
            };
            for layer in 0..2 {
                // Between two compressions, the tokens decoded since.
                let most = most + decoded % every;
                let counts = cache.tokens_kept(layer).unwrap();
                assert!(counts.iter().all(|kept| *kept <= most), "{counts:?} kept, at most {most} allowed");
                let positions = cache.kept_positions(layer).unwrap();
                for (row, count) in positions.iter().zip(counts) {
                    assert_eq!(row.iter().map(Vec::len).max(), Some(count));
                }
            }
            assert_eq!(cache.tokens_seen(), [length + decoded; 2]);
            decoded += 1;
        });
    }

    #[test]
    fn bytes_never_exceed_what_the_budget_implies(
        method in select(vec!["local-window", "streaming-llm", "h2o", "tova", "snapkv"]),
        tokens in 40..60_usize, every in 1..6_usize, half in any::<bool>(),
    ) {
        let dtype = if half { DType::BF16 } else { DType::F32 };
        let config = || CacheConfig::default().with_dtype(dtype);
        let schedule = Schedule::always(every);
        let device = host();

        // A budget in tokens: keys and values of the budget and of the tokens between two
        // compressions, and beside them no more than a few words for each head.
        let policy = Policy::named(method, Budget::Tokens(tokens)).unwrap().with_schedule(schedule);
        let word = if half { 2 } else { 4 };
        let window = if method == "snapkv" { 32 } else { 1 };
        let column = 2 * (2 * 2 * 16 * word + 2 * 8 + 4 * 4 * (1 + window));
        let most = 2 * (tokens + every) * column;
        stream(KvCache::with_config(SHAPE, policy, config(), &device).unwrap(), 100, 40, |cache| {
            assert!(cache.bytes_held() <= most, "{} bytes held, at most {most} allowed", cache.bytes_held());
        });

        // A budget in bytes holds as it is written.
        let policy = Policy::named(method, Budget::Bytes(most as u64)).unwrap().with_schedule(schedule);
        stream(KvCache::with_config(SHAPE, policy, config(), &device).unwrap(), 150, 40, |cache| {
            assert!(cache.bytes_held() <= most, "{} bytes held, budget {most}", cache.bytes_held());
            assert!(cache.tokens_kept(0).unwrap()[0] > 20, "the bytes are made use of");
        });
    }
}

/// The capacity only says how much room is made at once.
#[test]
fn capacity_changes_nothing() {
    let device = host();
    let policy = || Policy::tova(Budget::Tokens(12));
    let mut kept = Vec::new();
    for capacity in [None, Some(1), Some(13), Some(300)] {
        let config = CacheConfig::default();
        let config = capacity.map_or(config.clone(), |columns| config.with_capacity(columns));
        let mut last = Vec::new();
        stream(KvCache::with_config(SHAPE, policy(), config, &device).unwrap(), 30, 20, |cache| {
            last = vec![cache.kept_positions(0).unwrap(), cache.kept_positions(1).unwrap()];
        });
        kept.push(last);
    }
    assert!(kept.iter().all(|other| *other == kept[0]));
}

/// Once the budget is reached, decoding takes no more memory; nor does a full cache whose end is
/// known.
#[test]
fn decoding_makes_no_new_room() {
    let device = host();
    let tokens = Budget::Tokens(40);
    let compressing = ["local-window", "streaming-llm", "h2o", "tova"]
        .map(|name| Policy::named(name, tokens).unwrap());
    let every = [1, 7].map(|every| Policy::snapkv(tokens).with_schedule(Schedule::always(every)));
    for policy in compressing.into_iter().chain(every).chain([Policy::full()]) {
        let config = CacheConfig::default().with_capacity(300);
        let cache = KvCache::with_config(SHAPE, policy.clone(), config, &device).unwrap();
        let mut held = Vec::new();
        stream(cache, 60, 200, |cache| held.push(cache.bytes_held()));
        let steady = held[1];
        assert!(held[1..].iter().all(|held| *held == steady), "{}: {held:?}", policy.name());
    }
}

/// The room for tokens to come is told apart from what is held: a decoded token takes of it what it
/// needs, also behind heads that lie in lists.
#[test]
fn a_token_takes_its_bytes_of_the_spare_room() {
    let device = host();
    let integer = DType::from(device.settings().int_dtype).size();
    let (rows, pairs) = (2, 2 * 2);
    let token = rows * pairs * (2 * 16 * 4 + integer);
    for policy in [Policy::full(), Policy::adakv(Budget::Tokens(40))] {
        let config = CacheConfig::default().with_capacity(150);
        let cache = KvCache::with_config(SHAPE, policy.clone(), config, &device).unwrap();
        let mut bytes = Vec::new();
        stream(cache, 60, 12, |cache| {
            if policy.budget().is_none() {
                let seen = 60 + bytes.len();
                assert_eq!(cache.bytes_held() - cache.bytes_spare(), seen * token);
            }
            bytes.push((cache.bytes_held(), cache.bytes_spare()));
        });
        let steps = bytes.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].1 - pair[1].1));
        assert!(steps.clone().all(|step| step == (0, token)), "{}: {bytes:?}", policy.name());
    }
}

/// Behind a compressed prompt an eighth of what is kept is free at most, or 16 columns; behind a
/// whole one too.
#[test]
fn spare_room_is_an_eighth_of_what_is_kept() {
    let device = host();
    let integer = DType::from(device.settings().int_dtype).size();
    let column = 2 * 2 * (2 * 16 * 4 + integer);
    let snapkv = [40, 100, 300].map(|tokens| Policy::snapkv(Budget::Tokens(tokens)));
    let others = [Policy::adakv(Budget::Tokens(40)), Policy::full()];
    for policy in snapkv.into_iter().chain(others) {
        let cache = KvCache::new(SHAPE, policy.clone(), &device).unwrap();
        stream(cache, 400, 0, |cache| {
            let columns = |layer| {
                let kept = cache.tokens_kept(layer).unwrap().into_iter().max().unwrap();
                (kept / 8).max(16)
            };
            let most = (0..2).map(columns).sum::<usize>() * column;
            let spare = cache.bytes_spare();
            assert!(spare > 0 && spare <= most, "{}: {spare} of {most} bytes", policy.name());
        });
    }
}

/// A policy that compresses every so many decoded tokens has buffers for all of them after the
/// first, and keeps them.
#[test]
fn buffers_that_have_grown_for_decoding_stay() {
    let device = host();
    let tokens = Budget::Tokens(40);
    for policy in [Policy::snapkv(tokens), Policy::adakv(tokens)] {
        let policy = policy.with_schedule(Schedule::always(50));
        let cache = KvCache::new(SHAPE, policy.clone(), &device).unwrap();
        let mut spare = Vec::new();
        stream(cache, 60, 160, |cache| spare.push(cache.bytes_spare()));
        // Room that grew anew would stand out: behind each compression all of it is free again.
        assert!(spare[50] > spare[0], "{}: {spare:?}", policy.name());
        assert_eq!([spare[100], spare[150]], [spare[50]; 2], "{}", policy.name());
        assert!(spare[51..=99].is_sorted_by(|a, b| a > b), "{}: {spare:?}", policy.name());
        assert!(spare[101..=149].is_sorted_by(|a, b| a > b), "{}: {spare:?}", policy.name());
    }
}

/// A reset cache is a new one, for another batch too.
#[test]
fn reset_forgets() {
    let device = host();
    let mut cache = KvCache::new(SHAPE, Policy::h2o(Budget::Tokens(12)), &device).unwrap();
    let mut noise = Noise::new(2);
    let mut random =
        |rows: usize, heads: usize, tokens: usize| noise.tensor([rows, heads, tokens, 16], &device);
    let positions = briquette::position::NoPositionEncoding;
    for layer in 0..2 {
        cache
            .attend(layer, random(2, 4, 30), random(2, 2, 30), random(2, 2, 30), &positions)
            .unwrap();
    }
    assert!(cache.bytes_held() > 0 && cache.bytes_full() > cache.bytes_held());
    cache.reset();
    assert_eq!((cache.bytes_held(), cache.bytes_full()), (0, 0));
    assert!(cache.tokens_seen().iter().all(|seen| *seen == 0));

    let mut fresh = KvCache::new(SHAPE, Policy::h2o(Budget::Tokens(12)), &device).unwrap();
    let (q, k, v) = (random(3, 4, 20), random(3, 2, 20), random(3, 2, 20));
    let again = cache.attend(0, q.clone(), k.clone(), v.clone(), &positions).unwrap();
    let new = fresh.attend(0, q, k, v, &positions).unwrap();
    assert_eq!(again.into_data(), new.into_data());
    assert_eq!(cache.kept_positions(0).unwrap(), fresh.kept_positions(0).unwrap());
}

/// Of two equal scores the older entry is kept.
#[test]
fn the_older_of_two_equals_is_kept() {
    for backend in briquette_tests::backends::backends() {
        let device = &backend.device;
        let mut cache = KvCache::new(SHAPE, Policy::tova(Budget::Tokens(6)), device).unwrap();
        let zeros =
            |heads: usize, tokens: usize| Tensor::<4>::zeros([1, heads, tokens, 16], device);
        let positions = briquette::position::NoPositionEncoding;
        cache.attend(0, zeros(4, 20), zeros(2, 20), zeros(2, 20), &positions).unwrap();
        assert_eq!(
            cache.kept_positions(0).unwrap(),
            [vec![vec![0, 1, 2, 3, 4, 19]; 2]],
            "{}",
            backend.name
        );
    }
}
