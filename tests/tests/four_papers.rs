//! EMS, D2O, CompressKV and KVMerger against a reading of the papers alone, in Python.
//!
//! `goldens/four_papers.py` writes the fixture; `four_papers.md` beside it has the places where the
//! texts leave a choice. Where the library chooses otherwise, the reading is there a second time
//! with the library's choices, and each of them has a row in the book's table of readings.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use briquette::{
    Budget, CacheShape, HeadScores, KvCache, Policy, Profile,
    allocate::{ErrorAware, Share, VarianceShare},
    diagnose,
    policy::Recent,
    position::NoPositionEncoding,
    reduce::{EmaMerge, EvictThenMerge, GaussianMerge, Sigma},
    score::{Ems, HeadMean, Pool, RetrievalHeads, WindowAttention},
};
use briquette_tests::backends::backends;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, de::DeserializeOwned};

/// Tolerance of a number, relative where it is above one; the fixture has six decimals.
const TOLERANCE: f64 = 2e-5;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    paper: String,
    name: String,
    seed: u64,
    directions: usize,
    query_scale: f64,
    layers: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    prompt: usize,
    decoded: usize,
    budget: usize,
    params: serde_json::Value,
    profile: Option<Known>,
    statistics: Option<Rates>,
    /// The reading as it stands.
    #[serde(flatten)]
    own: Run,
    /// The reading with the choices of the library's default, if any differ.
    here: Option<Run>,
    /// The reading with the choices of the library where no option takes the reading's side, if
    /// there are any such.
    options: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    #[serde(default)]
    choices: BTreeMap<String, serde_json::Value>,
    margin: f64,
    /// D2O's density of each layer.
    densities: Option<Vec<f64>>,
    /// After the prompt, and after each decoded token.
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    /// Positions of the entries, `[layer][kv_head]`; of those that several tokens share, the
    /// positions of the centres.
    entries: Vec<Vec<Vec<usize>>>,
    /// Positions of the tokens that share entries.
    tokens: Option<Vec<Vec<Vec<usize>>>>,
    /// Every fourth channel, `[layer][query_head]`; nothing after the prompt.
    output: Option<Vec<Vec<Vec<f64>>>>,
}

#[derive(Deserialize)]
struct Known {
    head_scores: Vec<Vec<f64>>,
    layer_errors: Vec<f64>,
}

/// The rates of EMS, Eq. 3 and 4, `[layer][kv_head]`.
#[derive(Deserialize)]
struct Rates {
    zeta: f64,
    sparsity: Vec<Vec<f64>>,
    redundancy: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct EmsCase {
    #[serde(rename = "L_win")]
    window: usize,
    kernel_size: usize,
    gamma: f64,
    tau: f64,
}

#[derive(Deserialize)]
struct D2o {
    rho: f64,
    beta: f64,
    important_to_recent: usize,
    sinks: usize,
}

#[derive(Deserialize)]
struct CompressKv {
    #[serde(rename = "window_size")]
    window: usize,
    kernel_size: usize,
    top_k: usize,
    #[serde(rename = "m")]
    least: usize,
    #[serde(rename = "M_factor")]
    most: f64,
}

#[derive(Deserialize)]
struct KvMerger {
    epsilon: f64,
    recent: f64,
    heavy_hitters: f64,
    sigma_rule: String,
    sigma: Option<f64>,
}

impl Case {
    fn shape(&self) -> CacheShape {
        let Self { layers, query_heads, kv_heads, head_dim, .. } = *self;
        CacheShape { layers, query_heads, kv_heads, head_dim }
    }

    fn params<T: DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.params.clone()).unwrap()
    }

    fn default(&self) -> &Run {
        self.here.as_ref().unwrap_or(&self.own)
    }
}

/// The cases of a paper, of which there must be so many: one that was lost is not one that passed.
fn cases(paper: &str, count: usize) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/four_papers.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let Fixture { mut cases } = serde_json::from_str(&text).unwrap();
    cases.retain(|case| case.paper == paper);
    assert_eq!(cases.len(), count, "the cases of {paper}");
    cases
}

/// The generator of the inputs; `uniform` lies in −1..1.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        2.0 * ((self.next() >> 40) as f64 / f64::from(1 << 24)) - 1.0
    }

    fn uniforms(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.uniform()).collect()
    }
}

/// Queries, keys and values of a layer, `[token][head][channel]` one after another.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Inputs {
    fn of(case: &Case) -> Vec<Self> {
        let mut random = SplitMix64(case.seed);
        let dim = case.head_dim;
        let layer = |_| {
            let mut directions = || random.uniforms(case.kv_heads * case.directions * dim);
            let (of_keys, of_values) = (directions(), directions());
            let mut inputs = Self { q: Vec::new(), k: Vec::new(), v: Vec::new() };
            for _ in 0..case.prompt + case.decoded {
                let queries = random.uniforms(case.query_heads * dim);
                inputs.q.extend(queries.iter().map(|x| (case.query_scale * x) as f32));
                for head in 0..case.kv_heads {
                    let direction = (random.next() % case.directions as u64) as usize;
                    let first = (head * case.directions + direction) * dim;
                    let mut around = |directions: &[f64]| -> Vec<f32> {
                        let directions = directions[first..first + dim].iter();
                        directions.map(|x| (x + 0.4 * random.uniform()) as f32).collect()
                    };
                    inputs.k.extend(around(&of_keys));
                    inputs.v.extend(around(&of_values));
                }
            }
            inputs
        };
        (0..case.layers).map(layer).collect()
    }

    /// Queries, keys and values of some tokens, `[1, heads, tokens, head_dim]`.
    fn tokens(&self, case: &Case, from: usize, to: usize, device: &Device) -> [Tensor<4>; 3] {
        let of = |numbers: &[f32], heads: usize| {
            let token = heads * case.head_dim;
            let numbers = numbers[from * token..to * token].to_vec();
            let shape = [1, to - from, heads, case.head_dim];
            Tensor::<4>::from_data(TensorData::new(numbers, shape), device).swap_dims(1, 2)
        };
        [of(&self.q, case.query_heads), of(&self.k, case.kv_heads), of(&self.v, case.kv_heads)]
    }
}

fn assert_close(found: f64, expected: f64, place: &str) {
    let off = (found - expected).abs();
    assert!(off <= TOLERANCE * expected.abs().max(1.0), "{found}, expected {expected}, {place}");
}

/// Plays a case under a policy and compares it with a run of the reading, on every backend.
fn compare(case: &Case, policy: &Policy, run: &Run) {
    let inputs = Inputs::of(case);
    for backend in backends() {
        let Run { choices, margin, .. } = run;
        let place = format!(
            "{}, {}, {choices:?}, smallest margin there {margin:e}, on {}",
            case.paper, case.name, backend.name
        );
        let mut cache = KvCache::new(case.shape(), policy.clone(), &backend.device).unwrap();
        for (number, call) in run.calls.iter().enumerate() {
            let place = format!("call {number}, {place}");
            let (from, to) = match number {
                0 => (0, case.prompt),
                _ => (case.prompt + number - 1, case.prompt + number),
            };
            for (layer, inputs) in inputs.iter().enumerate() {
                let [q, k, v] = inputs.tokens(case, from, to, &backend.device);
                let output = cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap();
                if let Some(expected) = &call.output {
                    let output = output.try_into_vec_as::<f32>().unwrap();
                    assert_outputs(&output, &expected[layer], &format!("layer {layer}, {place}"));
                }
            }
            for layer in 0..case.layers {
                assert_held(&cache, layer, call, &format!("layer {layer}, {place}"));
            }
        }
        assert_eq!(run.calls.len(), 1 + case.decoded, "{place}");
        for (layer, &density) in run.densities.iter().flatten().enumerate() {
            let found = cache.layer_measure(layer).unwrap().unwrap()[0];
            assert_close(found, density, &format!("the density of layer {layer}, {place}"));
        }
    }
}

/// `output` is `[query_head][channel]`; of the channels every fourth is known.
fn assert_outputs(output: &[f32], expected: &[Vec<f64>], place: &str) {
    let dim = output.len() / expected.len();
    for (head, (output, expected)) in output.chunks(dim).zip(expected).enumerate() {
        assert_eq!(expected.len(), dim.div_ceil(4), "{place}");
        for (found, expected) in output.iter().step_by(4).zip(expected) {
            assert_close(f64::from(*found), *expected, &format!("query head {head}, {place}"));
        }
    }
}

fn assert_held(cache: &KvCache, layer: usize, call: &Call, place: &str) {
    let entries = &call.entries[layer];
    let counts: Vec<usize> = entries.iter().map(Vec::len).collect();
    assert_eq!(cache.entries_by_head(layer).unwrap(), [counts], "{place}");
    let positions = call.tokens.as_ref().map_or(entries, |tokens| &tokens[layer]);
    assert_eq!(&cache.kept_positions(layer).unwrap()[0], positions, "{place}");
}

/// EMS as a case has it, with what its scores are pooled over.
fn ems(case: &Case, pool_window: bool) -> Policy {
    let EmsCase { window, kernel_size, gamma, tau } = case.params();
    let pool = Some(Pool::avg(kernel_size));
    Policy::ems(Budget::Tokens(case.budget))
        .with_scorer(Ems { window, pool, pool_window, ..Ems::default() })
        .with_recent(Recent::Tokens(window))
        .with_reducer(EvictThenMerge { gamma, tau, ..EvictThenMerge::default() })
}

fn d2o(case: &Case, normalize: bool) -> Policy {
    let D2o { rho, beta, important_to_recent, sinks } = case.params();
    assert_close(rho * case.prompt as f64, case.budget as f64, "the budget of a case");
    Policy::d2o(Budget::Tokens(case.budget))
        .with_sinks(sinks)
        .with_recent(Recent::HeavyToRecent(important_to_recent, 1))
        .with_allocator(VarianceShare { share: Share::Softmax, normalize })
        .with_reducer(EmaMerge { beta, ..EmaMerge::default() })
}

fn compresskv(case: &Case) -> Policy {
    let CompressKv { window, kernel_size, top_k, least, most } = case.params();
    let Known { head_scores, layer_errors } = case.profile.as_ref().unwrap();
    let none = || vec![vec![0.0; case.query_heads]; case.layers];
    let scores = HeadScores { semantic: head_scores.clone(), copy_paste: none(), headkv: none() };
    let profile = Profile::new(case.shape(), scores, layer_errors.clone());
    let heads = HeadMean::Retrieval(RetrievalHeads::top(top_k));
    Policy::compresskv(Budget::Tokens(case.budget))
        .with_scorer(WindowAttention { window, pool: Some(Pool::avg(kernel_size)), heads })
        .with_recent(Recent::Tokens(window))
        .with_allocator(ErrorAware { least, most })
        .with_profile(Arc::new(profile))
}

/// KVMerger of a case's scenario, with parts of the budget protected and merged until it is met.
fn kvmerger(case: &Case) -> Policy {
    let KvMerger { recent, sigma_rule, sigma, .. } = case.params();
    let budget = Budget::Tokens(case.budget);
    let (policy, protect) = match recent {
        0.17 => (Policy::kvmerger(budget), 0.24),
        0.08 => (Policy::kvmerger_35(budget), 2.0 / 35.0),
        _ => panic!("no scenario of the paper protects {recent} of the context"),
    };
    policy.with_reducer(GaussianMerge {
        protect,
        sigma: sigma_of(&sigma_rule, sigma),
        ..GaussianMerge::default()
    })
}

/// KVMerger with a fixed ε, parts of the prompt protected and the factor |S|.
fn kvmerger_as_printed(case: &Case) -> Policy {
    let KvMerger { epsilon, recent, heavy_hitters, sigma_rule, sigma } = case.params();
    let of_prompt = |share: f64| (share * case.prompt as f64).round();
    // Half a token above, so that rounding down gives that number of the budget.
    let protect = (of_prompt(heavy_hitters) + 0.5) / case.budget as f64;
    Policy::kvmerger(Budget::Tokens(case.budget))
        .with_recent(Recent::Tokens(of_prompt(recent) as usize))
        .with_reducer(GaussianMerge {
            protect,
            threshold: Some(epsilon),
            sigma: sigma_of(&sigma_rule, sigma),
            scale_values: true,
            ..GaussianMerge::default()
        })
}

fn sigma_of(rule: &str, fixed: Option<f64>) -> Sigma {
    match rule {
        "fixed" => Sigma::Fixed(fixed.unwrap()),
        "self_consistent" => Sigma::FixedPoint,
        "mean_distance" => Sigma::Adaptive,
        _ => panic!("no rule for σ is called {rule}"),
    }
}

#[test]
fn ems_agrees_with_the_reading_but_for_its_choices() {
    for case in cases("ems", 5) {
        compare(&case, &ems(&case, false), case.default());
    }
}

#[test]
fn ems_pools_over_the_window_when_told_to() {
    for case in cases("ems", 5) {
        compare(&case, &ems(&case, true), case.options.as_ref().unwrap());
    }
}

/// EMS, Eq. 3 and 4, of a prompt that nothing was taken from.
#[test]
fn the_rates_of_ems_agree_with_the_reading() {
    let mut compared = 0;
    for case in cases("ems", 5) {
        let Some(rates) = &case.statistics else { continue };
        let EmsCase { tau, .. } = case.params();
        let policy = Policy::ems(Budget::Tokens(case.prompt));
        let inputs = Inputs::of(&case);
        for backend in backends() {
            let mut cache = KvCache::new(case.shape(), policy.clone(), &backend.device).unwrap();
            for (layer, inputs) in inputs.iter().enumerate() {
                let [q, k, v] = inputs.tokens(&case, 0, case.prompt, &backend.device);
                cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap();
                let entries = cache.entries(layer).unwrap().unwrap();
                let sparsity = diagnose::sparsity(&entries, rates.zeta).unwrap().unwrap();
                let redundancy = diagnose::redundancy(&entries, tau).unwrap();
                for (found, expected) in
                    [(sparsity, &rates.sparsity), (redundancy, &rates.redundancy)]
                {
                    for (found, expected) in found[0].iter().zip(&expected[layer]) {
                        assert_close(*found, *expected, &format!("{}, layer {layer}", case.name));
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 0, "no case has rates");
}

#[test]
fn d2o_agrees_with_the_reading_but_for_its_choices() {
    for case in cases("d2o", 4) {
        compare(&case, &d2o(&case, true), case.default());
    }
}

#[test]
fn d2o_takes_variances_as_they_are_when_told_to() {
    for case in cases("d2o", 4) {
        compare(&case, &d2o(&case, false), case.options.as_ref().unwrap());
    }
}

#[test]
fn compresskv_agrees_with_the_reading_as_it_stands() {
    for case in cases("compresskv", 4) {
        assert!(case.here.is_none() && case.options.is_none());
        compare(&case, &compresskv(&case), &case.own);
    }
}

#[test]
fn kvmerger_agrees_with_the_reading_but_for_its_choices() {
    for case in cases("kvmerger", 5) {
        compare(&case, &kvmerger(&case), case.default());
    }
}

#[test]
fn kvmerger_merges_as_printed_when_told_to() {
    for case in cases("kvmerger", 5) {
        let run = case.options.as_ref().unwrap_or(&case.own);
        compare(&case, &kvmerger_as_printed(&case), run);
    }
}

/// A choice of the library and the row of the book's table of readings that has its reason: method
/// and question.
const ROWS: [(&str, &str, &str); 13] = [
    ("pool_over", "EMS", "the window in the pooled scores"),
    ("pool_in_decoding", "EMS", "pooling in decoding"),
    ("merge_weight", "EMS", "weights of a merge"),
    ("decode_weight", "EMS", "weight of an entry merged again"),
    ("renormalize", "EMS", "length of a merged direction"),
    ("density_of", "D2O", "heads in F"),
    ("scale_density", "D2O", "F"),
    ("rounding", "D2O", "total"),
    ("threshold_of", "D2O", "heads of the threshold"),
    ("shares_of", "KVMerger", "protected parts"),
    ("merge_until", "KVMerger", "budget"),
    ("scale_values", "KVMerger", "\\|S\\| before the merged value"),
    ("distance_over", "KVMerger", "the mean distance of `adaptive`"),
];

#[test]
fn every_choice_has_its_row_in_the_book() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/readings.md");
    let book = std::fs::read_to_string(book).unwrap();
    for (choice, method, question) in ROWS {
        let row = format!("\n| {method} | {question} | ");
        assert!(book.contains(&row), "`{choice}` has no row `{}`", row.trim());
    }
    let mut rows: Vec<&str> = ROWS.iter().map(|(choice, ..)| *choice).collect();
    let all = [("ems", 5), ("d2o", 4), ("compresskv", 4), ("kvmerger", 5)];
    let made: Vec<Case> = all.into_iter().flat_map(|(paper, count)| cases(paper, count)).collect();
    let runs = made.iter().flat_map(|case| [&case.here, &case.options]).flatten();
    let mut made: Vec<&str> = runs.flat_map(|run| run.choices.keys().map(String::as_str)).collect();
    made.sort_unstable();
    made.dedup();
    rows.sort_unstable();
    assert_eq!(made, rows, "the choices of the fixture and their rows");
}
