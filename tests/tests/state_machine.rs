//! Any sequence of calls, failing ones included, beside a plain model of a cache: what has been
//! seen, what may be held, and that a call or a step that fails changes nothing.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, InputCheck, KvCache, Policy, Prompt, Schedule,
    position::NoPositionEncoding,
};
use briquette_tests::{backends::host, in_one_pass, profiles::profile};
use burn::tensor::{DType, Device, Tensor, TensorData};
use proptest::{prelude::*, sample::select};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 32 };
const ROWS: usize = 2;
const BUDGET: usize = 40;

/// A call, or a few that belong together.
#[derive(Clone, Debug)]
enum Call {
    /// A prompt is declared.
    Begin { columns: usize, padding: Option<Vec<usize>> },
    /// New tokens come to all layers: a whole prompt, a chunk of one, or a decoded token.
    Attend { columns: usize },
    /// A call that no cache takes.
    Bad(Bad),
    /// The prompt that is arriving is taken back.
    Abandon,
    /// The cache is replaced by a copy; the one it was made of goes on by itself.
    Copy,
    /// Rows change places or are repeated; some of these lists no cache takes.
    Select { rows: Vec<usize> },
    /// A copy of all rows joins them, and one of its rows takes the place of its origin.
    Join,
    /// Everything is forgotten.
    Reset,
}

#[derive(Clone, Copy, Debug)]
enum Bad {
    Heads,
    Rows,
    Channels,
    Type,
    NaN,
    Layer,
    NoColumns,
    EmptyPrompt,
    PaddingRows,
    OnlyPadding,
}

/// A model of a cache's state, in the plainest way.
#[derive(Clone, Debug, Default)]
struct Plain {
    seen: Option<[usize; ROWS]>,
    /// Columns declared, padding of the rows, columns that have arrived.
    prompt: Option<(usize, [usize; ROWS], usize)>,
    /// What had been seen before it.
    before_prompt: Option<[usize; ROWS]>,
}

impl Plain {
    fn begin(&mut self, columns: usize, padding: [usize; ROWS]) -> bool {
        let is_free = self.prompt.is_none_or(|(_, _, arrived)| arrived == 0);
        let fits = is_free && columns > 0 && padding.iter().all(|&p| p < columns);
        if fits {
            self.prompt = Some((columns, padding, 0));
            self.before_prompt = self.seen;
        }
        fits
    }

    /// Whether the next column is padding in all rows.
    fn next_is_padding(&self) -> bool {
        self.prompt.is_some_and(|(_, padding, arrived)| padding.iter().all(|&p| arrived < p))
    }

    /// Whether these columns can come; if they can, they have.
    fn attend(&mut self, columns: usize) -> bool {
        let first = self.seen.is_none_or(|seen| seen == [0; ROWS]);
        let prompt = self.prompt.or((columns > 1 || first).then_some((columns, [0; ROWS], 0)));
        let mut seen = self.seen.unwrap_or_default();
        match prompt {
            None => seen.iter_mut().for_each(|seen| *seen += columns),
            Some((declared, _, arrived)) if arrived + columns > declared => return false,
            Some((declared, padding, arrived)) => {
                for (seen, padding) in seen.iter_mut().zip(padding) {
                    *seen += (arrived..arrived + columns).filter(|&at| at >= padding).count();
                }
                let arrived = arrived + columns;
                self.prompt = (arrived < declared).then_some((declared, padding, arrived));
            }
        }
        self.seen = Some(seen);
        true
    }
}

impl Plain {
    /// Whether these rows can be selected; if they can, they have been.
    fn select(&mut self, rows: &[usize]) -> bool {
        let is_whole = self.prompt.is_none_or(|(_, _, arrived)| arrived == 0);
        let Some(seen) = self.seen.filter(|_| is_whole) else { return false };
        let &[first, second] = rows else { return false };
        if first >= ROWS || second >= ROWS {
            return false;
        }
        (self.seen, self.prompt) = (Some([seen[first], seen[second]]), None);
        true
    }
}

/// Tensors that depend on a counter only.
struct Numbers {
    device: Device,
    next: u64,
}

impl Numbers {
    fn tensor(&mut self, dims: [usize; 4]) -> Tensor<4> {
        let mut draw = || {
            // Numerical Recipes' generator is random enough here.
            self.next = self
                .next
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.next >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let numbers: Vec<f32> = (0..dims.iter().product()).map(|_| draw()).collect();
        Tensor::from_data(TensorData::new(numbers, dims), &self.device)
    }

    fn qkv(&mut self, columns: usize) -> [Tensor<4>; 3] {
        let CacheShape { query_heads, kv_heads, head_dim, .. } = SHAPE;
        [query_heads, kv_heads, kv_heads].map(|heads| self.tensor([ROWS, heads, columns, head_dim]))
    }
}

/// A cache that checks every token for NaN.
fn checked(shape: CacheShape, policy: Policy, device: &Device) -> KvCache {
    let config = CacheConfig::default().with_input_check(InputCheck::Always);
    KvCache::with_config(shape, policy, config, device).unwrap()
}

fn attend(
    cache: &mut KvCache,
    layer: usize,
    [q, k, v]: [Tensor<4>; 3],
) -> Result<Tensor<4>, Error> {
    cache.attend(layer, q, k, v, &NoPositionEncoding)
}

fn bad(cache: &mut KvCache, layer: usize, numbers: &mut Numbers, bad: Bad) -> Result<(), Error> {
    let [q, k, v] = numbers.qkv(1);
    let qkv = match bad {
        Bad::Heads => [q, k.clone().slice([0..ROWS, 0..1]), v],
        Bad::Rows => [q, k, v].map(|x| x.narrow(0, 0, 1)),
        Bad::Channels => [q, k, v.slice([0..ROWS, 0..SHAPE.kv_heads, 0..1, 0..8])],
        Bad::Type => [q.cast(DType::F64), k, v],
        Bad::NaN => [q, k.mul_scalar(f32::NAN), v],
        Bad::Layer => return attend(cache, SHAPE.layers, [q, k, v]).map(drop),
        Bad::NoColumns => numbers.qkv(0),
        Bad::EmptyPrompt => return cache.begin_prompt(Prompt::new(0)),
        Bad::PaddingRows => {
            return cache.begin_prompt(Prompt::new(9).left_padding(vec![0; ROWS + 1]));
        }
        Bad::OnlyPadding => return cache.begin_prompt(Prompt::new(9).left_padding(vec![0, 9])),
    };
    attend(cache, layer, qkv).map(drop)
}

/// A cache's own account of its state.
#[derive(Debug, PartialEq)]
struct State {
    seen: Vec<usize>,
    bytes: [usize; 2],
    /// `[layer][row][head][entry]`
    kept: Vec<Vec<Vec<Vec<usize>>>>,
}

/// That of this cache.
fn state(cache: &KvCache) -> State {
    let layers = cache.shape().layers;
    State {
        seen: cache.tokens_seen(),
        bytes: [cache.bytes_held(), cache.bytes_full()],
        kept: (0..layers).map(|layer| cache.kept_positions(layer).unwrap()).collect(),
    }
}

/// Checks the rules that hold between any two steps.
fn check(cache: &KvCache, plain: &Plain) {
    let name = cache.policy().name().to_owned();
    let Some(seen) = plain.seen else {
        assert!(cache.tokens_seen().iter().all(|&seen| seen == 0), "{name}");
        return;
    };
    assert_eq!(cache.tokens_seen(), seen, "{name}");
    let bytes = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * 4;
    assert_eq!(cache.bytes_full(), bytes * seen.iter().sum::<usize>(), "{name}");
    if seen == [0; ROWS] {
        // Columns of padding alone: nothing is held, and rows are not told apart yet.
        for layer in 0..SHAPE.layers {
            let kept = cache.kept_positions(layer).unwrap();
            assert!(kept.iter().flatten().all(Vec::is_empty), "{name}: {kept:?}");
        }
        return;
    }
    let protect = cache.policy().protect();
    let recent = protect.recent_tokens(BUDGET);
    let even = cache.policy().allocator().name() == "uniform";
    for (row, &seen) in seen.iter().enumerate() {
        let mut held = 0;
        for layer in 0..SHAPE.layers {
            let heads = &cache.kept_positions(layer).unwrap()[row];
            let counts = &cache.kept_by_head(layer).unwrap()[row];
            for (kept, &count) in heads.iter().zip(counts) {
                let place = format!("{name}, layer {layer}, row {row}: {kept:?} of {seen}");
                assert_eq!(kept.len(), count, "{place}");
                assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "{place}");
                assert!(kept.iter().all(|&position| position < seen), "{place}");
                let ends = (0..protect.sinks.min(seen)).chain(seen.saturating_sub(recent)..seen);
                // A share of the budget is one of the layer's own where layers have their own.
                for position in ends.filter(|_| even) {
                    assert!(kept.contains(&position), "{position} is gone: {place}");
                }
                if seen <= BUDGET && !cache.policy().reducer().makes_ragged_heads() {
                    // Nothing had to go, save for layers and heads that have less than the others.
                    assert!(!even || kept.len() == seen, "{place}");
                }
                held += count;
            }
        }
        let compresses = cache.policy().budget().is_some() && plain.prompt.is_none();
        let decodes = cache.policy().schedule().decode_every == Some(1);
        if compresses && decodes && !cache.policy().reducer().makes_clusters() {
            // Shares are whole numbers: a head may have one more, which another has not.
            let all = BUDGET * SHAPE.layers * SHAPE.kv_heads;
            assert!(held <= all, "{name}, row {row}: {held} held, {all} budgeted");
        }
    }
    match name.as_str() {
        "full" => {
            let all = |row: usize| vec![(0..seen[row]).collect::<Vec<_>>(); SHAPE.kv_heads];
            let expected: Vec<_> = (0..ROWS).map(all).collect();
            assert_eq!(cache.kept_positions(1).unwrap(), expected);
        }
        "local-window" if plain.prompt.is_none() => {
            let last = |row: usize| {
                let from = seen[row].saturating_sub(BUDGET);
                vec![(from..seen[row]).collect::<Vec<_>>(); SHAPE.kv_heads]
            };
            let expected: Vec<_> = (0..ROWS).map(last).collect();
            assert_eq!(cache.kept_positions(0).unwrap(), expected);
        }
        _ => {}
    }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let padding = || prop::option::of(prop::collection::vec(0_usize..20, ROWS));
    use Bad::{
        Channels, EmptyPrompt, Heads, Layer, NaN, NoColumns, OnlyPadding, PaddingRows, Rows, Type,
    };
    let bads = [Heads, Rows, Channels, Type, NaN, Layer, NoColumns];
    let bads = [&bads[..], &[EmptyPrompt, PaddingRows, OnlyPadding]].concat();
    let lists = vec![vec![1, 0], vec![0, 0], vec![1, 1], vec![], vec![0, ROWS]];
    let call = prop_oneof![
        2 => (1_usize..70, padding()).prop_map(|(columns, padding)| Call::Begin { columns, padding }),
        4 => (1_usize..50).prop_map(|columns| Call::Attend { columns }),
        4 => Just(Call::Attend { columns: 1 }),
        3 => select(bads).prop_map(Call::Bad),
        1 => Just(Call::Abandon),
        1 => Just(Call::Copy),
        2 => select(lists).prop_map(|rows| Call::Select { rows }),
        1 => Just(Call::Join),
        1 => Just(Call::Reset),
    ];
    prop::collection::vec(call, 1..14)
}

/// Every method, compressing at each decoded token where its paper does, and where it does not.
fn policies(shape: CacheShape) -> Vec<Policy> {
    let all = in_one_pass(BUDGET).map(move |policy| policy.with_profile(profile(shape)));
    let more = ["snapkv", "adakv", "cake", "compresskv"].map(|name| {
        let policy = Policy::named(name, Budget::Tokens(BUDGET)).unwrap();
        policy.with_schedule(Schedule::always(1)).with_profile(profile(shape))
    });
    all.chain(more).collect()
}

fn play(policy: Policy, calls: &[Call]) {
    let device = host();
    let mut numbers = Numbers { device: device.clone(), next: calls.len() as u64 };
    let mut cache = checked(SHAPE, policy, &device);
    let mut plain = Plain::default();
    for call in calls {
        let before = state(&cache);
        let mut after = plain.clone();
        let (taken, found) = match call {
            Call::Begin { columns, padding } => {
                let mut prompt = Prompt::new(*columns);
                let mut of_rows = [0; ROWS];
                if let Some(padding) = padding {
                    of_rows.copy_from_slice(padding);
                    prompt = prompt.left_padding(padding.clone());
                }
                (after.begin(*columns, of_rows), cache.begin_prompt(prompt))
            }
            Call::Attend { columns } => {
                let taken = after.attend(*columns);
                let found = (0..SHAPE.layers).try_for_each(|layer| -> Result<(), Error> {
                    // A step that the first layer takes is taken by all.
                    let output = attend(&mut cache, layer, numbers.qkv(*columns))
                        .inspect_err(|error| assert_eq!(layer, 0, "{error}"))?;
                    let expected = [ROWS, SHAPE.query_heads, *columns, SHAPE.head_dim];
                    assert_eq!(output.dims(), expected);
                    let sum = output.abs().sum().try_into_vec_as::<f32>().unwrap()[0];
                    assert!(sum.is_finite(), "{sum}");
                    Ok(())
                });
                (taken, found)
            }
            // NaN in padding is nothing to any cache.
            Call::Bad(Bad::NaN) if plain.next_is_padding() => continue,
            Call::Bad(kind) => {
                let found = bad(&mut cache, 0, &mut numbers, *kind);
                // Before the first token any number of rows will do.
                let any_rows = plain.seen.is_none();
                let of_rows = matches!(kind, Bad::Rows | Bad::PaddingRows);
                if of_rows && any_rows {
                    cache.reset();
                    plain = Plain::default();
                    continue;
                }
                (false, found)
            }
            Call::Abandon => {
                let found = cache.abandon_prompt();
                let fixed = matches!(found, Err(Error::PromptNotReversible { .. }));
                if let (Some((.., arrived)), false) = (after.prompt.take(), fixed) {
                    // A first prompt can always be taken back.
                    after.seen = if arrived > 0 { after.before_prompt } else { after.seen };
                }
                (!fixed || after.before_prompt.is_none(), found)
            }
            Call::Copy => {
                let mut other = cache.clone();
                std::mem::swap(&mut cache, &mut other);
                for layer in 0..SHAPE.layers {
                    let _ = attend(&mut other, layer, numbers.qkv(1));
                }
                other.reset();
                (true, Ok(()))
            }
            Call::Select { rows } => (after.select(rows), cache.select_rows(rows)),
            Call::Join => {
                let copy = cache.fork();
                let joined = cache.append_rows(&copy);
                (after.select(&[0, 1]), joined.and_then(|()| cache.select_rows(&[ROWS, 1])))
            }
            Call::Reset => {
                cache.reset();
                after = Plain::default();
                (true, Ok(()))
            }
        };
        match found {
            Ok(()) => assert!(taken, "{call:?} was taken, {plain:?}"),
            Err(error) => {
                assert!(!taken, "{call:?} was refused, {plain:?}: {error}");
                assert_eq!(state(&cache), before, "{call:?} changed the cache: {error}");
                continue;
            }
        }
        plain = after;
        check(&cache, &plain);
    }
}

/// So many sequences, or as many as this variable says.
const CASES: &str = "BRIQUETTE_CASES";

fn cases() -> ProptestConfig {
    let named = std::env::var(CASES).ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: named.unwrap_or(12),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A step of some columns, of which this layer's call fails if one is named.
#[derive(Clone, Debug)]
struct Torn {
    columns: usize,
    padding: Option<Vec<usize>>,
    fails_at: Option<(usize, Bad)>,
}

const LAYERS: usize = 3;
const DEEP: CacheShape = CacheShape { layers: LAYERS, ..SHAPE };

fn steps() -> impl Strategy<Value = Vec<Torn>> {
    let columns = prop_oneof![3 => Just(1_usize), 2 => 2_usize..60];
    let padding = prop::option::weighted(0.3, prop::collection::vec(0_usize..8, ROWS));
    let bad = select(vec![Bad::Heads, Bad::Channels, Bad::NaN, Bad::NoColumns]);
    let fails_at = prop::option::of((0..LAYERS, bad));
    let step = (columns, padding, fails_at).prop_map(|(columns, padding, fails_at)| Torn {
        columns,
        padding,
        fails_at,
    });
    prop::collection::vec(step, 2..16)
}

/// All layers of a step, in order; the numbers of the step are the same each time.
fn go(cache: &mut KvCache, step: &Torn, numbers: &mut Numbers) -> Result<Vec<f32>, Error> {
    let Torn { columns, padding, fails_at } = step;
    // NaN in padding is nothing to any cache.
    let padded = columns > &1 && !matches!(fails_at, Some((_, Bad::NaN)));
    if let Some(padding) = padding.as_ref().filter(|all| padded && all.iter().all(|p| p < columns))
    {
        cache.begin_prompt(Prompt::new(*columns).left_padding(padding.clone()))?;
    }
    let mut outputs = Vec::new();
    for layer in 0..LAYERS {
        match fails_at {
            Some((at, kind)) if *at == layer => bad(cache, layer, numbers, *kind)?,
            _ => {
                let output = attend(cache, layer, numbers.qkv(*columns))?;
                outputs.extend(output.try_into_vec_as::<f32>().unwrap());
            }
        }
    }
    Ok(outputs)
}

/// Steps on a cache, some of which fail in the middle and are taken back, and on one that never
/// sees those.
fn tear(policy: Policy, steps: &[Torn]) {
    let device = host();
    let name = policy.name().to_owned();
    let mut cache = checked(DEEP, policy.clone(), &device);
    let mut other = checked(DEEP, policy, &device);
    for (number, step) in steps.iter().enumerate() {
        let numbers = || Numbers { device: device.clone(), next: 77 + number as u64 };
        let place = format!("{name}, step {number}: {step:?}");
        let kept = |cache: &KvCache| {
            let kept = (0..LAYERS).map(|layer| cache.kept_positions(layer).unwrap());
            let measures = (0..LAYERS).map(|layer| cache.layer_measure(layer).unwrap());
            (cache.tokens_seen(), kept.collect::<Vec<_>>(), measures.collect::<Vec<_>>())
        };
        let before = kept(&cache);
        let result = cache.transaction(|cache| {
            // A step in a step is part of it.
            cache.transaction(|cache| go(cache, step, &mut numbers()))
        });
        if step.fails_at.is_some() {
            assert!(result.is_err(), "{place}");
            assert_eq!(kept(&cache), before, "{place}");
        } else {
            let expected = go(&mut other, step, &mut numbers()).unwrap();
            assert_eq!(result.unwrap(), expected, "{place}");
        }
        assert_eq!(kept(&cache), kept(&other), "{place}");
    }
    // An outer step takes back what went well inside it.
    let before = state(&other);
    let failed: Result<(), Error> = cache.transaction(|cache| {
        for number in 0..3 {
            let step = Torn { columns: 1 + number, padding: None, fails_at: None };
            let mut numbers = Numbers { device: device.clone(), next: number as u64 };
            cache.transaction(|cache| go(cache, &step, &mut numbers))?;
        }
        cache.reset();
        Err(Error::LayerOutOfRange { layer: 9, layers: LAYERS })
    });
    assert!(failed.is_err());
    let step = Torn { columns: 1, padding: None, fails_at: None };
    assert_eq!(state(&cache).kept, before.kept, "{name}");
    let mut outputs = [&mut cache, &mut other]
        .map(|cache| go(cache, &step, &mut Numbers { device: device.clone(), next: 5 }).unwrap());
    let [found, expected] = &mut outputs;
    assert_eq!(found, expected, "{name}");
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_step_that_fails_is_as_if_it_never_was(steps in steps()) {
        for policy in policies(DEEP) {
            tear(policy, &steps);
        }
    }

    #[test]
    fn a_cache_does_what_a_plain_one_does(calls in calls()) {
        for policy in policies(SHAPE) {
            play(policy, &calls);
        }
    }
}
