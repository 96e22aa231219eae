//! Every method, on every device of the build, against the f64 reference: kept positions exactly,
//! outputs to 1e-4 (f32) and 2e-2 (f16, bf16).

use briquette::methods;
use briquette_tests::{
    backends::{backends, host},
    inputs::{draw_profile, with_queries},
    named,
    policy::policy,
    reference::{
        Allocate, Budget, Compare, Encoding, ErrorAware, From, HeadScore, Heads, Inner, Kind,
        Method, Pick, Pivot, Pool, Positions, Prefill, Recent, Reduce, Redundancy, Rotate, Score,
        Settings, Sigma, Store, Window, allocate::Share, attention,
    },
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

impl Script {
    /// With a budget of 16 tokens.
    fn new(turns: Vec<Turn>, decode_every: Option<usize>) -> Self {
        Self { turns, budget: Budget::Tokens(16), prefill: Prefill::AtEnd, decode_every }
    }
}

/// The sessions of a method that compresses in decoding every `usual` tokens. Slow devices play the
/// first with all heads, the next two with the first ones, and no others; where few are asked for,
/// the first with the first.
fn scripts(usual: Option<usize>) -> Vec<Script> {
    let script = |turns| Script::new(turns, usual);
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
        // A row that gets nothing but padding while the other is compressed.
        Script {
            prefill: Prefill::EveryChunk,
            ..script(vec![chunked(&[1, 24], &[1; 24]), Turn::Decode(2)])
        },
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

/// In f32.
fn session(
    (query_heads, kv_heads): (usize, usize),
    head_dim: usize,
    method: Method,
    script: &Script,
    seed: u64,
) -> Session {
    let settings = Settings {
        layers: 2,
        query_heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f64).sqrt(),
        kind: Kind::default(),
        encoding: Encoding::Rotary { theta: 10_000.0 },
        method,
        profile: with_queries(draw_profile(5, 2, query_heads), [query_heads, kv_heads, head_dim]),
        budget: script.budget,
        prefill: script.prefill,
        decode_every: script.decode_every,
    };
    Session { settings, turns: script.turns.clone(), dtype: DType::F32, seed }
}

const ALL: &[DType] = &[DType::F32, DType::F16, DType::BF16];
const F32: &[DType] = &[DType::F32];
const NOT_BF16: &[DType] = &[DType::F32, DType::F16];

fn check(dtypes: &[DType], method: Method, usual: Option<usize>) {
    for backend in backends() {
        for dtype in backend.dtypes().into_iter().filter(|dtype| dtypes.contains(dtype)) {
            for (head_index, heads) in HEADS.into_iter().enumerate() {
                for (index, script) in scripts(usual).iter().enumerate() {
                    let first = index == 0 && head_index == 0;
                    let usual = index == 0 || head_index == 0 && index <= 2;
                    if !(first || backend.is_quick() || usual && !backend.runs_few()) {
                        continue;
                    }
                    let seed = 100 * head_index as u64 + index as u64;
                    let mut session = Session { dtype, ..session(heads, 16, method, script, seed) };
                    if method.store != Store::Plain && dtype != DType::F32 {
                        // Turned keys are rounded to the type of the cache, some of them to the
                        // other side of the border between two steps.
                        session.settings.encoding = Encoding::None;
                    }
                    println!("{}, {dtype:?}, {heads:?} heads, script {index}", backend.name);
                    session.check(&backend.device);
                }
            }
        }
    }
}

// Budgets of the scripts are far below those of the papers, and so are windows and what is
// protected here.

fn few_sinks(method: Method) -> Method {
    Method { sinks: 2, ..method }
}

fn scored(score: Score, method: Method) -> Method {
    Method { score, ..method }
}

/// Tests by their names: types, a method, and after how many decoded tokens it compresses.
macro_rules! checks {
    ($($(#[$doc:meta])* $name:ident: $(($dtypes:expr, $method:expr, $every:expr)),+;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $(check($dtypes, $method, $every);)+
        }
    )+};
}

checks! {
    full: (ALL, Method::full(), None);
    local_window: (ALL, Method::local_window(), Some(1));
    streaming_llm: (ALL, Method::streaming_llm(), Some(1));
    sinks_and_window_at_written_positions:
        (ALL, Method { positions: Positions::Written, ..Method::streaming_llm() }, Some(1));
    /// The same as held encoded.
    deferred_positions:
        (ALL, Method { positions: Positions::Deferred, ..Method::h2o() }, Some(1)),
        (F32, Method { positions: Positions::Deferred, ..Method::snapkv().with_window(8) }, None);
    h2o: (ALL, Method::h2o(), Some(1));
    tova: (ALL, Method::tova(), Some(1));
    snapkv: (ALL, Method::snapkv().with_window(8), None);
    roco: (ALL, Method { recent: Recent::Tokens(3), ..few_sinks(Method::roco()) }, Some(1));
    pyramidkv: (ALL, Method::pyramidkv().with_window(5), None);
    cake: (ALL, Method::cake().with_window(5), None);
    adakv: (ALL, Method::adakv().with_window(5), None);
    headkv: (ALL, Method::headkv().with_window(5), None);
    compresskv: (ALL, compresskv_of(HeadScore::Semantic, Pick::Top(2)), None);
    cam: (ALL, Method::cam(), Some(1));
    kvmerger: (ALL, Method::kvmerger(), Some(3));
    d2o: (ALL, few_sinks(Method::d2o()), Some(1));
    d2o_uniform: (ALL, Method { allocate: Allocate::Uniform, ..few_sinks(Method::d2o()) }, Some(1));
    ems: (ALL, ems_of(2.0, 0.6, Rotate::Own), Some(1));
    ems_at_the_centers_positions: (ALL, ems_of(4.0, 0.5, Rotate::Center), Some(1));
    fp8: (ALL, Method::fp8(), None);
    snapkv_kivi: (ALL, quantized(Method::snapkv().with_window(8), 2), None);
    compresskv_kivi: (ALL, quantized(compresskv_of(HeadScore::Semantic, Pick::Top(2)), 4), None);
    /// Kept tokens are quantized anew whenever something is dropped.
    h2o_kivi: (ALL, quantized(Method::h2o(), 4), Some(1));
    random:
        (ALL, Method::random(), None),
        (F32, Method { score: Score::Random { seed: 9 }, ..Method::random() }, Some(1));
    knorm:
        (ALL, Method::knorm(), None),
        (F32, Method::knorm(), Some(2));
    keydiff:
        (ALL, Method::keydiff(), None),
        (F32, few_sinks(Method::keydiff()), Some(3));
    keydiff_adakv: (F32, Method::keydiff_adakv(), None);
    finch:
        (ALL, Method::finch().with_window(4), None),
        (F32, Method::finch().with_window(3), Some(3));
    ems_with_positions:
        (ALL, Method { positions: Positions::Written, ..ems_of(2.0, 0.6, Rotate::Own) }, Some(1));
    /// Ranks in a partition hang on all of its scores: half precision would swap some.
    lagkv:
        (F32, scored(Score::LagRelative { lag: 5 }, few_sinks(Method::lagkv())), Some(2)),
        (F32, scored(Score::LagRelative { lag: 5 }, few_sinks(Method::lagkv())), None);
    cur:
        (ALL, scored(Score::Cur { window: 6 }, few_sinks(Method::cur())), None),
        (F32, scored(Score::Cur { window: 6 }, few_sinks(Method::cur())), Some(2));
    leverage:
        (F32, compactor_of(Score::Leverage { ridge: 0.01 }), None),
        (F32, compactor_of(Score::Leverage { ridge: 0.01 }), Some(2));
    q_filter:
        (NOT_BF16, Method::q_filter(), None),
        (F32, few_sinks(Method::q_filter()), Some(3)),
        (F32, Method { positions: Positions::Deferred, ..Method::q_filter() }, None);
}

#[test]
fn h2o_mean() {
    let score = Score::Accumulated { mean: true };
    check(ALL, Method { score, recent: Recent::Tokens(0), ..Method::h2o() }, Some(1));
}

#[test]
fn snapkv_max_pool() {
    let window = Window { window: 5, pool: Some(Pool::Max(7)), heads: Heads::Group };
    check(ALL, Method { score: Score::Window(window), ..Method::snapkv().with_window(5) }, None);
}

/// Where fewer entries are there than the first layer could have.
#[test]
fn pyramidkv_flat() {
    let allocate = Allocate::Pyramid { beta: 2.5 };
    check(F32, Method { allocate, ..Method::pyramidkv().with_window(3) }, Some(1));
}

#[test]
fn cake_temperatures() {
    let allocate = Allocate::Preference { window: 5, tau1: 2.0, tau2: 0.7 };
    check(F32, Method { allocate, ..Method::cake().with_window(5) }, Some(2));
}

/// With a share of the budget that every head is sure of, in decoding too.
#[test]
fn adakv_floor() {
    let allocate = Allocate::HeadAdaptive { floor: 0.5, by: None, layers: None };
    check(ALL, Method { allocate, ..Method::adakv().with_window(5) }, None);
    check(F32, Method { allocate, ..Method::adakv().with_window(5) }, Some(2));
}

#[test]
fn adakv_of_accumulated_attention() {
    let allocate = Method::adakv().allocate;
    check(ALL, Method { allocate, recent: Recent::Tokens(4), ..few_sinks(Method::h2o()) }, Some(1));
}

#[test]
fn headkv_by_another_score() {
    let allocate = Allocate::HeadProfile { beta: 1.01, scores: HeadScore::CopyPaste };
    check(F32, Method { allocate, ..Method::headkv().with_window(4) }, Some(2));
}

/// CompressKV of few heads, windows and tokens.
fn compresskv_of(scores: HeadScore, pick: Pick) -> Method {
    let pool = Some(Pool::Average(5));
    let window = Window { window: 4, pool, heads: Heads::Retrieval { scores, pick } };
    let allocate = Allocate::ErrorAware(ErrorAware { least: 8, most: 3.0 });
    let score = Score::Window(window);
    Method { score, allocate, recent: Recent::Tokens(4), ..Method::compresskv() }
}

#[test]
fn compresskv_adaptive() {
    let pick = Pick::Adaptive { threshold: 0.3, least: 1 };
    check(ALL, compresskv_of(HeadScore::CopyPaste, pick), None);
    let pick = Pick::Adaptive { threshold: 0.99, least: 3 };
    let method = compresskv_of(HeadScore::HeadKv, pick);
    let allocate = Allocate::ErrorAware(ErrorAware { least: 6, most: 1.25 });
    check(F32, Method { allocate, ..method }, Some(2));
}

#[test]
fn compresskv_adakv() {
    let by = Window { window: 4, pool: Some(Pool::Average(5)), heads: Heads::Group };
    for layers in [None, Some(ErrorAware { least: 8, most: 3.0 })] {
        let allocate = Allocate::HeadAdaptive { floor: 0.5, by: Some(by), layers };
        check(ALL, Method { allocate, ..compresskv_of(HeadScore::Semantic, Pick::Top(2)) }, None);
    }
}

#[test]
fn compresskv_headkv() {
    let allocate = Method::headkv().allocate;
    check(ALL, Method { allocate, ..compresskv_of(HeadScore::Semantic, Pick::Top(2)) }, None);
}

#[test]
fn cam_of_few_tokens() {
    for prompts in [false, true] {
        let reduce = Reduce::ValueMerge { window: 4, seed: 5, prompts };
        check(ALL, Method { reduce, ..Method::cam() }, Some(1));
    }
}

#[test]
fn kvmerger_options() {
    let merge = |threshold, sigma, scale_values| {
        let reduce = Reduce::GaussianMerge {
            protect: 0.057,
            threshold,
            sigma,
            scale_values,
            pivot: Pivot::Score,
        };
        Method { reduce, recent: Recent::Share(0.229), ..Method::kvmerger() }
    };
    check(ALL, merge(None, Sigma::Adaptive, false), Some(1));
    check(ALL, merge(Some(0.2), Sigma::Fixed(2.0), true), Some(3));
    check(F32, few_sinks(merge(Some(0.1), Sigma::Adaptive, true)), Some(1));
}

/// The width of Eq. 6, equal weights (Figure 3c), and other pivots (Table 4).
#[test]
fn kvmerger_ablations() {
    for (sigma, pivot) in [
        (Sigma::FixedPoint, Pivot::Score),
        (Sigma::Average, Pivot::Last),
        (Sigma::Fixed(5.0), Pivot::Random(7)),
    ] {
        let scale_values = false;
        let reduce =
            Reduce::GaussianMerge { protect: 0.1, threshold: None, sigma, scale_values, pivot };
        check(F32, Method { reduce, ..Method::kvmerger() }, Some(3));
    }
}

#[test]
fn d2o_shares() {
    for (share, normalize) in [
        (Share::Softmax, false),
        (Share::Inverse, false),
        (Share::Inverse, true),
        (Share::ExponentialDecay, true),
    ] {
        let allocate = Allocate::VarianceShare { share, normalize };
        check(F32, Method { allocate, ..few_sinks(Method::d2o()) }, Some(2));
    }
}

/// Without the moving average (Table 6), by values or by each (Table 7), equal weights (Table 8).
#[test]
fn d2o_ablations() {
    for (all, compare, average) in [
        (true, Compare::Keys, false),
        (false, Compare::Values, true),
        (false, Compare::Each, false),
        (true, Compare::Each, true),
    ] {
        let reduce = Reduce::EmaMerge { beta: 0.7, all, compare, average };
        check(F32, Method { reduce, ..few_sinks(Method::d2o()) }, Some(1));
    }
}

/// EMS with a small window.
fn ems_of(gamma: f64, tau: f64, rotate: Rotate) -> Method {
    let reduce = Reduce::ems(gamma, tau, rotate);
    Method { reduce, ..Method::ems().with_window(5) }
}

/// The attention that counts (Table 4), the similarity that makes tokens redundant (Table 8), no
/// eviction before merging (Table 7), and choices that the paper leaves open.
#[test]
fn ems_ablations() {
    let ems = ems_of(2.0, 0.6, Rotate::Own);
    let score = |from, pool_window| {
        let pool = Some(Pool::Average(7));
        let score = Score::GlobalLocal { window: 5, pool, from, pool_window };
        Method { score, ..ems }
    };
    let reduce = |gamma, redundancy, by_attention| {
        let (tau, rotate) = (0.6, Rotate::Own);
        let reduce = Reduce::EvictThenMerge { gamma, tau, rotate, redundancy, by_attention };
        Method { reduce, ..ems }
    };
    for method in [
        score(From::All, false),
        score(From::Window, false),
        score(From::Both, true),
        reduce(2.0, Redundancy::Keys, false),
        reduce(2.0, Redundancy::Values, false),
        reduce(f64::INFINITY, Redundancy::Both, false),
        reduce(2.0, Redundancy::Both, true),
    ] {
        check(F32, method, Some(1));
    }
}

/// Members are dropped, or nothing is merged at all.
#[test]
fn ems_of_few_members() {
    for (gamma, tau) in [(1.25, 0.3), (1.0, 0.6), (2.0, 1.0)] {
        check(F32, ems_of(gamma, tau, Rotate::Own), Some(1));
    }
}

#[test]
fn ems_pyramidkv() {
    let allocate = Allocate::Pyramid { beta: 4.0 };
    check(NOT_BF16, Method { allocate, ..ems_of(2.0, 0.6, Rotate::Own) }, Some(1));
}

#[test]
fn ems_cake() {
    let allocate = Allocate::Preference { window: 5, tau1: 1.0, tau2: 1.0 };
    check(F32, Method { allocate, ..ems_of(2.0, 0.6, Rotate::Own) }, Some(3));
}

/// Quantized in groups of 32 bits, the last 6 tokens as they are.
fn quantized(method: Method, bits: u32) -> Method {
    let group = 32 / bits as usize;
    Method { store: Store::Quantized { bits, group, residual: 6 }, ..method }
}

#[test]
fn kivi() {
    for bits in [1, 2, 4, 8] {
        check(ALL, quantized(Method::full(), bits), None);
    }
}

/// Groups of more numbers than a head has channels.
#[test]
fn kivi_wide_groups() {
    let store = Store::Quantized { bits: 4, group: 24, residual: 3 };
    check(F32, Method { store, ..Method::full() }, None);
}

/// Compactor's stages with few sinks, in chunks of 7.
fn compactor_of(score: Score) -> Method {
    Method { score, recent: Recent::Tokens(2), ..few_sinks(Method::compactor()) }
}

#[test]
fn non_causal() {
    let score = Score::Chunk { chunk: 7, pool: Some(Pool::Average(3)) };
    check(NOT_BF16, compactor_of(score), None);
    for positions in [Positions::Written, Positions::InCache] {
        check(F32, Method { positions, ..compactor_of(score) }, Some(3));
    }
}

#[test]
fn compactor() {
    let pool = Some(Pool::Average(3));
    for (blend, every) in [(None, None), (Some(0.35), Some(4))] {
        let score = Score::Compactor { ridge: 0.01, chunk: 7, pool, blend };
        check(F32, compactor_of(score), every);
    }
}

#[test]
fn expected_attention() {
    let score = |epsilon| Score::Expected { future: 20, epsilon };
    let method = Method { score: score(0.0), ..few_sinks(Method::expected_attention()) };
    check(NOT_BF16, method, None);
    let method = Method { score: score(0.01), ..few_sinks(Method::expected_attention()) };
    check(F32, method, Some(3));
    check(F32, Method { positions: Positions::InCache, ..method }, Some(2));
    check(F32, Method { positions: Positions::Deferred, ..method }, None);
}

#[test]
fn expected_attention_adakv() {
    let score = Score::Expected { future: 20, epsilon: 0.01 };
    let method = Method { score, ..few_sinks(Method::expected_attention_adakv()) };
    check(F32, method, None);
    check(F32, method, Some(3));
}

#[test]
fn capkv() {
    let score = Score::Capacity { future: 20, tau: 5.0 };
    check(NOT_BF16, Method { score, ..few_sinks(Method::capkv()) }, None);
    check(F32, Method { score, ..few_sinks(Method::capkv()) }, Some(3));
}

#[test]
fn rkv() {
    let window = Window { window: 4, pool: Some(Pool::Max(3)), heads: Heads::Group };
    for lambda in [0.07, 0.5] {
        let score = Score::Redundancy { window, lambda };
        let method = Method { score, recent: Recent::Tokens(4), ..Method::rkv() };
        check(F32, method, Some(5));
        check(F32, method, None);
    }
}

#[test]
fn chunkkv() {
    let window = Window { window: 4, pool: Some(Pool::Average(3)), heads: Heads::Group };
    let chunks = |length, inner| Score::Chunks { length, inner };
    let score = chunks(3, Inner::Window(window));
    check(F32, Method { score, recent: Recent::Tokens(4), ..Method::chunkkv() }, None);
    let score = chunks(4, Inner::KeyDifference);
    check(F32, Method { score, ..few_sinks(Method::keydiff()) }, Some(3));
    let score = chunks(3, Inner::KeyNorm);
    check(F32, Method { score, ..few_sinks(Method::keydiff_adakv()) }, None);
}

#[test]
fn entropy_gated() {
    let window = Window { window: 4, pool: Some(Pool::Average(3)), heads: Heads::Group };
    let gated = |length, few, inner| Score::Gated { length, few, inner };
    let score = gated(4, 2, Inner::Window(window));
    check(F32, Method { score, recent: Recent::Tokens(4), ..Method::chunkkv() }, None);
    let score = gated(5, 1, Inner::KeyDifference);
    check(F32, Method { score, ..few_sinks(Method::keydiff()) }, Some(3));
    // Places in an order say nothing about heads: these are compared by what the window attends to.
    let score = gated(3, 2, Inner::KeyNorm);
    let allocate = Allocate::HeadAdaptive { floor: 0.2, by: Some(window), layers: None };
    let method = Method { score, allocate, recent: Recent::Tokens(4), ..Method::adakv() };
    check(F32, method, None);
}

#[test]
fn criticalkv() {
    let window = Window { window: 4, pool: Some(Pool::Average(3)), heads: Heads::Group };
    let critical = |inner, first| Score::Critical { inner, first, epsilon: 1e-4 };
    let score = critical(Inner::Window(window), 0.5);
    check(F32, Method { score, recent: Recent::Tokens(4), ..Method::snapkv() }, None);
    let score = critical(Inner::KeyDifference, 0.7);
    check(F32, Method { score, ..few_sinks(Method::keydiff()) }, Some(3));
}

#[test]
fn dropkv() {
    for pool in [None, Some(Pool::Average(3))] {
        let score = Score::Drop { window: 4, pool };
        let method = Method { score, recent: Recent::Tokens(4), ..Method::dropkv() };
        check(F32, method, None);
        check(F32, method, Some(3));
    }
}

#[test]
fn triattention() {
    let score = Score::Trigonometric { future: 60 };
    let method = Method { score, recent: Recent::Tokens(2), ..Method::triattention() };
    check(F32, method, None);
    check(F32, method, Some(3));
    check(F32, Method { positions: Positions::Deferred, ..method }, None);
}

#[test]
fn layer_ratios() {
    let allocate = Allocate::LayerRatios([0.3, 0.75]);
    for method in [Method::keydiff(), Method::h2o()] {
        check(F32, Method { allocate, recent: Recent::Tokens(2), ..few_sinks(method) }, Some(3));
    }
}

#[test]
fn above_a_threshold() {
    let method = Method { recent: Recent::Tokens(3), ..few_sinks(Method::knorm()) };
    for threshold in [-4.0, -3.0, 0.0] {
        let allocate = Allocate::AboveThreshold(threshold);
        check(F32, Method { allocate, ..method }, None);
        check(F32, Method { allocate, ..method }, Some(3));
    }
}

#[test]
fn block_wise() {
    for inner in [Inner::KeyDifference, Inner::KeyNorm] {
        let score = Score::Blocks { length: 5, inner };
        check(F32, Method { score, ..few_sinks(Method::keydiff()) }, None);
        check(F32, Method { score, ..Method::keydiff() }, Some(3));
    }
}

/// Layers of either kind, in rows of either length.
#[test]
fn simlayerkv() {
    for (threshold, window) in [(0.45, 1), (0.55, 3), (0.0, 2)] {
        let allocate = Allocate::LazyLayers { threshold, window };
        check(F32, Method { allocate, ..few_sinks(Method::simlayerkv()) }, None);
    }
}

#[test]
fn duoattention() {
    for tokens in [4, 9, 20] {
        let allocate = Allocate::StreamingHeads { tokens };
        check(NOT_BF16, Method { allocate, ..few_sinks(Method::duoattention()) }, None);
    }
}

/// A text that is compressed once and asked twice.
#[test]
fn the_first_prompt_only() {
    let score = Score::Expected { future: 20, epsilon: 0.01 };
    let expected = Method { score, ..few_sinks(Method::expected_attention()) };
    for method in [Method::snapkv().with_window(5), expected, Method::cake().with_window(5)] {
        for decode_every in [None, Some(3)] {
            let turns = vec![
                chunked(&[40, 23], &[16, 24]),
                prompt(&[7, 9]),
                Turn::Decode(4),
                chunked(&[12, 3], &[8, 4]),
                Turn::Decode(4),
            ];
            let script =
                Script { prefill: Prefill::FirstPrompt, ..Script::new(turns, decode_every) };
            session((4, 2), 16, method, &script, 12).check(&host());
        }
    }
}

/// One token that is declared is a prompt as any other: alone, beside a longer row, and as the last
/// of its prompt.
#[test]
fn a_second_prompt_of_one_token() {
    for backend in backends() {
        for (method, decode_every) in
            [(Method::snapkv().with_window(8), None), (Method::h2o(), Some(3))]
        {
            for (rows, second) in [
                (1, prompt(&[1])),
                (2, prompt(&[1, 1])),
                (2, prompt(&[1, 6])),
                (1, chunked(&[6], &[5, 1])),
            ] {
                let first = prompt(&vec![30; rows]);
                let turns = vec![first, Turn::Decode(2), second, Turn::Decode(2)];
                println!("{}, {turns:?}", backend.name);
                let script = Script::new(turns, decode_every);
                session((4, 2), 16, method, &script, 15).check(&backend.device);
            }
        }
    }
}

/// Every named method as its paper has it, and when it compresses.
fn papers() -> Vec<(Method, Prefill, Option<usize>)> {
    vec![
        (Method::full(), Prefill::Never, None),
        (Method::local_window(), Prefill::AtEnd, Some(1)),
        (Method::streaming_llm(), Prefill::EveryChunk, Some(1)),
        (Method::h2o(), Prefill::AtEnd, Some(1)),
        (Method::tova(), Prefill::AtEnd, Some(1)),
        (Method::snapkv(), Prefill::AtEnd, None),
        (Method::roco(), Prefill::AtEnd, Some(1)),
        (Method::pyramidkv(), Prefill::AtEnd, None),
        (Method::cake(), Prefill::AtEnd, None),
        (Method::adakv(), Prefill::AtEnd, None),
        (Method::headkv(), Prefill::AtEnd, None),
        (Method::compresskv(), Prefill::AtEnd, None),
        (Method::compresskv_adakv(), Prefill::AtEnd, None),
        (Method::compresskv_headkv(), Prefill::AtEnd, None),
        (Method::compresskv_kivi(), Prefill::AtEnd, None),
        (Method::cam(), Prefill::AtEnd, Some(1)),
        (Method::kvmerger(), Prefill::AtEnd, Some(64)),
        (Method::d2o(), Prefill::AtEnd, Some(1)),
        (Method::ems(), Prefill::AtEnd, Some(1)),
        (Method::ems_pyramidkv(), Prefill::AtEnd, Some(1)),
        (Method::kivi(2), Prefill::Never, None),
        (Method::fp8(), Prefill::Never, None),
        (Method::random(), Prefill::AtEnd, None),
        (Method::knorm(), Prefill::AtEnd, None),
        (Method::keydiff(), Prefill::AtEnd, Some(128)),
        (Method::keydiff_adakv(), Prefill::AtEnd, Some(128)),
        (Method::lagkv(), Prefill::AtEnd, Some(128)),
        (Method::cur(), Prefill::AtEnd, None),
        (Method::leverage(), Prefill::AtEnd, None),
        (Method::non_causal(), Prefill::AtEnd, None),
        (Method::compactor(), Prefill::AtEnd, None),
        (Method::expected_attention(), Prefill::AtEnd, None),
        (Method::expected_attention_adakv(), Prefill::AtEnd, None),
        (Method::capkv(), Prefill::AtEnd, None),
        (Method::chunkkv(), Prefill::AtEnd, None),
        (Method::rkv(), Prefill::AtEnd, Some(128)),
        (Method::kvzip(false), Prefill::FirstPrompt, None),
        (Method::kvzip(true), Prefill::FirstPrompt, None),
        (Method::kvcompose(), Prefill::FirstPrompt, None),
        (Method::finch(), Prefill::AtEnd, None),
        (Method::dropkv(), Prefill::AtEnd, None),
        (Method::q_filter(), Prefill::AtEnd, None),
        (Method::triattention(), Prefill::AtEnd, Some(128)),
        (Method::simlayerkv(), Prefill::AtEnd, None),
        (Method::duoattention(), Prefill::AtEnd, None),
        (Method { name: "kvmerger-50", ..Method::kvmerger() }, Prefill::AtEnd, Some(64)),
        (Method::kvmerger_35(), Prefill::AtEnd, Some(64)),
        (Method { name: "ems-needle", ..Method::ems().with_window(16) }, Prefill::AtEnd, Some(1)),
    ]
}

/// A name stands for the same parameters in the library and in the reference.
#[test]
fn names_and_parameters() {
    let names: Vec<String> = methods().into_iter().map(|method| method.name).collect();
    for name in &names {
        assert!(papers().iter().any(|(method, ..)| method.name == name), "`{name}` is not tested");
    }
    let tokens = 256;
    for (method, prefill, decode_every) in papers() {
        let named = named(method.name, briquette::Budget::Tokens(tokens));
        let composed = policy(&method, Budget::Tokens(tokens), prefill, decode_every);
        assert_eq!(named.to_toml().unwrap(), composed.to_toml().unwrap());
    }
}

/// The parameters of the papers, at a size where they matter.
#[test]
fn default_parameters() {
    for backend in backends().into_iter().filter(|backend| backend.is_quick()) {
        for (method, prefill, decode_every) in papers() {
            let turns = match method.store {
                // Tokens are decoded behind the second pass, which has a suite of its own.
                _ if matches!(method.score, Score::Repeat { .. } | Score::Reread { .. }) => {
                    vec![prompt(&[120, 80])]
                }
                Store::Plain => vec![prompt(&[120, 80]), Turn::Decode(3)],
                // Decoding fills a group up.
                Store::Quantized { .. } => vec![prompt(&[196, 150]), Turn::Decode(30)],
                Store::Fp8 => vec![prompt(&[40, 18]), Turn::Decode(30)],
            };
            let script = Script { turns, budget: Budget::Tokens(48), prefill, decode_every };
            println!("{}, {}", backend.name, method.name);
            session((4, 2), 32, method, &script, 7).check(&backend.device);
        }
    }
}

/// Another softmax scale, another RoPE base, and no positions at all.
#[test]
fn scale_and_encoding() {
    for encoding in [Encoding::None, Encoding::Rotary { theta: 100.0 }] {
        for method in [
            Method::tova(),
            few_sinks(Method::streaming_llm()),
            few_sinks(Method::d2o()),
            ems_of(2.0, 0.6, Rotate::Own),
        ] {
            let mut session = session((4, 2), 8, method, &scripts(Some(1))[0], 11);
            (session.settings.scale, session.settings.encoding) = (0.6, encoding);
            session.check(&host());
        }
    }
}

/// More layers than two, of which some keep all they have and others share what is left.
#[test]
fn many_layers() {
    for method in [
        Method::pyramidkv().with_window(5),
        Method::cake().with_window(5),
        Method::headkv().with_window(5),
        compresskv_of(HeadScore::Semantic, Pick::Top(2)),
        few_sinks(Method::d2o()),
        Method {
            allocate: Method::cake().with_window(5).allocate,
            ..ems_of(2.0, 0.6, Rotate::Own)
        },
    ] {
        for (index, script) in scripts(Some(1)).iter().enumerate() {
            let mut session = session((4, 2), 16, method, script, 50 + index as u64);
            session.settings.layers = 5;
            session.settings.profile = draw_profile(6, 5, 4);
            println!("{}, script {index}", method.name);
            session.check(&host());
        }
    }
}

/// The reference's own cache against attention without any cache.
#[test]
fn full_cache_is_dense_attention() {
    let script =
        Script { prefill: Prefill::Never, ..Script::new(vec![chunked(&[20, 13], &[9, 11])], None) };
    let session = session((4, 2), 8, Method::full(), &script, 3);
    for (row, padding) in session.traces().iter().zip([0, 7]) {
        let padded = |number: f64, heads| vec![vec![vec![number; 8]; padding]; heads];
        let [mut q, mut k, mut v] = [4, 2, 2].map(|heads| padded(9.0, heads));
        let mut outputs = padded(0.0, 4);
        for call in &row[0].calls {
            let append = |to: &mut Vec<Vec<Vec<f64>>>, from: &[Vec<Vec<f64>>]| {
                to.iter_mut().zip(from).for_each(|(to, from)| to.extend_from_slice(from));
            };
            append(&mut q, &call.tokens.q);
            append(&mut k, &call.tokens.k);
            append(&mut v, &call.tokens.v);
            append(&mut outputs, &call.outputs);
        }
        let Settings { encoding, scale, .. } = session.settings;
        let dense = attention::dense(&q, &k, &v, padding, encoding, scale);
        compare(&outputs, &dense, 1e-12, "the reference against itself");
    }
    assert_eq!(tolerance(DType::F32), 1e-4);
}
