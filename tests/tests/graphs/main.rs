//! Steps that are recorded and replayed give what launched ones give, bit for bit.

mod dropped;
mod generations;
mod lives;
mod rows;
mod scoring;
mod second_prompts;
mod threads;

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy, Prompt, Schedule,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding, Rotated},
    state::{Replay, StateTensor, StateVisitor},
    store::{Fp8, Ragged},
};
use briquette_graph::{Error, StepGraph, may_record, room_of};
use briquette_models::prefill;
use briquette_tests::{
    backends::{Backend, backends, host, records_steps},
    in_one_pass,
    inputs::Noise,
    profiles::profile,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 40;
const ROWS: usize = 2;
const PADDING: [usize; ROWS] = [0, 13];
const WORDS: usize = 64;
/// More than the tokens that EMS remembers.
const COLUMNS: usize = 340;

/// A model of attention alone: rows of tables for tokens, and a head.
struct Model {
    queries: Vec<Tensor<2>>,
    keys: Vec<Tensor<2>>,
    values: Vec<Tensor<2>>,
    head: Tensor<2>,
    rope: RotaryEmbedding,
    config: CacheConfig,
}

impl Model {
    /// Of so many positions.
    fn new(positions: usize, device: &Device) -> Self {
        let mut noise = Noise::new(11);
        let mut table = |heads: usize| {
            let numbers = noise.tensor([1, heads, WORDS, SHAPE.head_dim], device);
            numbers.swap_dims(1, 2).reshape([WORDS, heads * SHAPE.head_dim])
        };
        let mut tables = |heads| (0..SHAPE.layers).map(|_| table(heads)).collect();
        let (queries, keys, values) =
            (tables(SHAPE.query_heads), tables(SHAPE.kv_heads), tables(SHAPE.kv_heads));
        let head = table(SHAPE.query_heads).transpose();
        let rope = RotaryEmbedding::new(SHAPE.head_dim, positions, 10_000.0, device).unwrap();
        let config = CacheConfig::default().with_input_check(briquette::InputCheck::Prompt);
        Self { queries, keys, values, head, rope, config }
    }

    /// `[rows, tokens]` -> `[rows, WORDS]`
    fn forward(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> briquette::Result<Tensor<2>> {
        self.forward_through(tokens, |layer, [q, k, v]| cache.attend(layer, q, k, v, &self.rope))
    }

    /// As [`forward`](Self::forward), with attention by whatever takes a layer's queries, keys and
    /// values.
    fn forward_through(
        &self,
        tokens: Tensor<2, Int>,
        mut attend: impl FnMut(usize, [Tensor<4>; 3]) -> briquette::Result<Tensor<4>>,
    ) -> briquette::Result<Tensor<2>> {
        let [rows, columns] = tokens.dims();
        let of = |table: &Tensor<2>, heads: usize| {
            let picked = table.clone().select(0, tokens.clone().reshape([rows * columns]));
            picked.reshape([rows, columns, heads, SHAPE.head_dim]).swap_dims(1, 2)
        };
        let mut sum = Tensor::<2>::zeros([rows, WORDS], &tokens.device());
        for layer in 0..SHAPE.layers {
            let qkv = [
                of(&self.queries[layer], SHAPE.query_heads),
                of(&self.keys[layer], SHAPE.kv_heads),
                of(&self.values[layer], SHAPE.kv_heads),
            ];
            let output = attend(layer, qkv)?;
            let last = output
                .narrow(2, columns - 1, 1)
                .reshape([rows, SHAPE.query_heads * SHAPE.head_dim]);
            // No product: some devices round its operands, and small differences become large.
            let terms = last.unsqueeze_dim::<3>(2) * self.head.clone().unsqueeze_dim::<3>(0);
            sum = sum + terms.sum_dim(1).squeeze_dim::<2>(1);
        }
        Ok(sum)
    }

    fn cache(&self, policy: &Policy) -> KvCache {
        let (policy, config) = (policy.clone(), self.config.clone());
        KvCache::with_config(SHAPE, policy, config, &self.head.device()).unwrap()
    }

    /// A cache that has seen a prompt, and the first token.
    fn begin(&self, policy: &Policy) -> (KvCache, Tensor<2, Int>) {
        let mut cache = self.cache(policy);
        cache.begin_prompt(prompt()).unwrap();
        let logits = self.forward(self.words(COLUMNS, 37), &mut cache).unwrap();
        (cache, logits.argmax(1))
    }

    /// Words of a prompt, `[ROWS, columns]`.
    fn words(&self, columns: usize, step: usize) -> Tensor<2, Int> {
        let words: Vec<i64> =
            (0..ROWS * columns).map(|number| (number * step % WORDS) as i64).collect();
        Tensor::from_data(TensorData::new(words, [ROWS, columns]), &self.head.device())
    }
}

fn prompt() -> Prompt {
    Prompt::new(COLUMNS).left_padding(PADDING.to_vec())
}

/// Results of a step.
#[derive(Debug, PartialEq)]
struct Given {
    tokens: Vec<i64>,
    logits: Vec<f32>,
    positions: Vec<Vec<Vec<Vec<usize>>>>,
    bytes: usize,
}

fn given(tokens: Tensor<2, Int>, logits: Tensor<2>, cache: &KvCache) -> Given {
    Given {
        tokens: tokens.try_into_vec_as().unwrap(),
        logits: logits.cast(DType::F32).try_into_vec_as().unwrap(),
        positions: (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect(),
        bytes: cache.bytes_held(),
    }
}

/// Every method on the host; elsewhere those that compress at every token, one of each other kind,
/// and one that decides on the host.
fn policies(backend: &Backend) -> Vec<Policy> {
    let few = ["full", "snapkv", "adakv", "kivi", "simlayerkv", "keydiff", "compactor"];
    let all = in_one_pass(BUDGET).filter(|policy| {
        backend.is_quick()
            || few.contains(&policy.name())
            || policy.schedule().decode_every == Some(1)
    });
    let host = Policy::adakv(Budget::Tokens(BUDGET)).with_schedule(Schedule::always(1));
    all.chain([host]).map(|policy| policy.with_profile(profile(SHAPE))).collect()
}

/// The same bits; where a cache grows, attention also runs over the room it has, and adds up in
/// another order.
fn compare(found: &Given, launched: &Given, grows: bool, what: &str) {
    if !grows {
        return assert_eq!(found, launched, "{what}");
    }
    assert_eq!(found.positions, launched.positions, "{what}");
    assert_eq!(found.tokens, launched.tokens, "{what}");
    for (found, launched) in found.logits.iter().zip(&launched.logits) {
        assert!(
            (found - launched).abs() <= 1e-5 * (1.0 + launched.abs()),
            "{what}: {found}, {launched}"
        );
    }
}

/// Makes room as a recorded step does, where its budget is a share of the tokens seen: entries that
/// are laid out anew would be rounded anew.
fn make_room(cache: &mut KvCache) {
    let is_share = matches!(cache.policy().budget(), Some(Budget::Ratio(_)));
    if is_share && may_record(cache.device()) && cache.open_columns() == Some(0) {
        let kept = cache.tokens_kept(0).unwrap().into_iter().max().unwrap();
        cache.begin_device_indexing(room_of(kept, None)).unwrap();
    }
}

/// Results of a launched step.
fn step(model: &Model, cache: &mut KvCache, tokens: Tensor<2, Int>) -> Given {
    let logits = model.forward(tokens, cache).unwrap();
    given(logits.clone().argmax(1), logits, cache)
}

/// Results of so many steps behind a token, all launched.
fn launch(
    model: &Model,
    cache: &mut KvCache,
    mut next: Tensor<2, Int>,
    steps: usize,
) -> Vec<Given> {
    let mut launched = Vec::new();
    for _ in 0..steps {
        // Merging hands a difference in rounding on, larger at each step: none may begin.
        make_room(cache);
        let logits = model.forward(next, cache).unwrap();
        next = logits.clone().argmax(1);
        launched.push(given(next.clone(), logits, cache));
    }
    launched
}

#[derive(Debug)]
struct Played {
    replayed: usize,
    dropped: usize,
    why: Option<String>,
}

/// Plays steps by recordings and compares them with launched ones.
fn replay(
    cache: &mut KvCache,
    first: Tensor<2, Int>,
    run: impl FnMut(Tensor<2, Int>, &mut KvCache) -> Result<Tensor<2>, Error> + Send,
    launched: &[Given],
    grows: bool,
    what: &str,
) -> Played {
    let mut graph = StepGraph::new(cache, first, run);
    for (number, launched) in launched.iter().enumerate() {
        let what = format!("{what}, step {number}");
        graph.step().unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = given(graph.tokens(), graph.logits().unwrap(), graph.cache());
        compare(&found, launched, grows, &what);
    }
    let why = graph.fallback_reason().map(str::to_owned);
    Played { replayed: graph.replayed(), dropped: graph.dropped(), why }
}

/// Plays so many steps launched and by recordings, and compares them.
fn play(policy: &Policy, steps: usize, device: &Device, what: &str) -> Played {
    play_of(&Model::new(1024, device), policy, steps, what)
}

fn play_of(model: &Model, policy: &Policy, steps: usize, what: &str) -> Played {
    let (mut plain, first) = model.begin(policy);
    let launched = launch(model, &mut plain, first, steps);
    let (mut cache, first) = model.begin(policy);
    let run =
        |tokens, cache: &mut KvCache| -> Result<_, Error> { Ok(model.forward(tokens, cache)?) };
    let below = matches!(policy.budget(), Some(Budget::Tokens(tokens)) if tokens > COLUMNS);
    let grows = below
        || policy.schedule().decode_every != Some(1)
        || model
            .config
            .windows
            .as_ref()
            .is_some_and(|all| all.iter().flatten().any(|it| it.size() > COLUMNS));
    let found = replay(&mut cache, first, run, &launched, grows, what);
    // The host counts again, from where the device has come to.
    let last = TensorData::new(launched[steps - 1].tokens.clone(), [ROWS, 1]);
    let last = Tensor::<2, Int>::from_data(last, cache.device());
    let next = step(model, &mut cache, last.clone());
    compare(&next, &step(model, &mut plain, last), grows, what);
    found
}

#[test]
fn replayed_steps_are_launched_ones() {
    const STEPS: usize = 14;
    for backend in backends() {
        for policy in policies(&backend) {
            let what = format!("{}, {}", policy.name(), backend.name);
            let Played { replayed, dropped, why } = play(&policy, STEPS, &backend.device, &what);
            assert_eq!(dropped, 0, "{what}: {why:?}");
            let alike = match policy.schedule().decode_every {
                Some(1) => policy.is_capturable(),
                Some(_) => policy.name() == "keydiff",
                None => ["dense", "ragged", "quantized", "fp8"].contains(&policy.store().name()),
            };
            if !records_steps(&backend.name) || !alike {
                assert_eq!(replayed, 0, "{what}");
                assert!(why.is_some(), "{what}");
            } else {
                assert!(replayed >= STEPS / 2, "{what}: {replayed}, {why:?}");
            }
        }
    }
}

#[test]
fn steps_between_compressions_are_replayed() {
    for backend in backends() {
        let what = format!("keydiff, {}", backend.name);
        let policy = Policy::keydiff(Budget::Tokens(BUDGET)).with_schedule(Schedule::always(12));
        let played = play(&policy, 40, &backend.device, &what);
        assert_eq!(played.dropped, 0, "{what}: {:?}", played.why);
        // Of each twelve one compresses, and three are launched before they are recorded.
        assert!(played.replayed >= 20 || !records_steps(&backend.name), "{what}: {played:?}");
    }
}

/// Attention is counted for the next prompt, and where its columns are the host knows.
#[test]
fn steps_that_count_attention_and_do_not_compress_are_launched() {
    for backend in backends() {
        for policy in [Policy::h2o(Budget::Tokens(BUDGET)), Policy::d2o(Budget::Tokens(BUDGET))] {
            let what = format!("{}, {}", policy.name(), backend.name);
            let policy = policy.with_schedule(Schedule::prefill_only());
            let Played { replayed, dropped, why } = play(&policy, 8, &backend.device, &what);
            assert_eq!((replayed, dropped), (0, 0), "{what}: {why:?}");
        }
    }
}

/// A cache that may hold more than its prompt has free slots, so that its steps are alike.
#[test]
fn steps_before_a_budget_is_reached_are_replayed() {
    // The rows of the prompt, one of which is shorter, leave room.
    let budget = Budget::Tokens(COLUMNS + 40);
    // Of words that come again and again some keys are as similar as others, and rounding decides
    // which are merged: this one does not come to its budget.
    let merging = Policy::d2o(Budget::Tokens(COLUMNS + 90));
    for backend in backends() {
        let h2o = Policy::h2o(budget);
        let ragged = h2o.clone().with_store(Ragged {});
        for policy in [h2o, ragged, Policy::tova(budget), merging.clone()] {
            let what = format!("{}, {policy:?}", backend.name);
            let played = play(&policy, 80, &backend.device, &what);
            assert_eq!(played.dropped, 0, "{what}: {:?}", played.why);
            assert!(played.replayed >= 64 || !records_steps(&backend.name), "{what}: {played:?}");
        }
    }
}

/// A budget that is a share of the tokens seen grows with some of them, in each row at others.
#[test]
fn steps_of_a_budget_that_grows_are_replayed() {
    let budget = Budget::Ratio(0.3);
    for backend in backends() {
        let h2o = Policy::h2o(budget);
        let ragged = h2o.clone().with_store(Ragged {});
        let (tova, streaming) = (Policy::tova(budget), Policy::streaming_llm(budget));
        let (cam, local) = (Policy::cam(budget), Policy::local_window(budget));
        // Every so many steps a local window ends, and those are of another kind.
        let ems = Policy::ems(budget).with_window(20);
        for policy in [h2o, ragged, tova, streaming, cam, local, ems] {
            let what = format!("{}, {policy:?}", backend.name);
            let played = play(&policy, 80, &backend.device, &what);
            assert_eq!(played.dropped, 0, "{what}: {:?}", played.why);
            assert!(played.replayed >= 60 || !records_steps(&backend.name), "{what}: {played:?}");
        }
        // Its scores depend on the budget.
        let (policy, what) = (Policy::roco(budget), format!("roco, {}", backend.name));
        let Played { replayed, dropped, why } = play(&policy, 12, &backend.device, &what);
        assert_eq!((replayed, dropped), (0, 0), "{what}: {why:?}");
        assert!(why.is_some_and(|why| why.contains("budget") || !records_steps(&backend.name)));
    }
}

/// Tokens that are packed now and then, in rows that pack at different times: the others are
/// replayed, beyond the room that was made first too.
#[test]
fn steps_between_packed_pages_are_replayed() {
    for backend in backends() {
        let fp8 = Policy::fp8();
        let evicted = Policy::snapkv(Budget::Tokens(BUDGET)).with_store(Fp8 {});
        for (policy, steps) in [(fp8, 90), (evicted, 40), (Policy::kivi(2), 40)] {
            let what = format!("{}, {policy:?}", backend.name);
            let played = play(&policy, steps, &backend.device, &what);
            assert_eq!(played.dropped, 0, "{what}: {:?}", played.why);
            let replays = played.replayed >= steps - 20;
            assert!(replays || !records_steps(&backend.name), "{what}: {played:?}");
        }
    }
}

/// Beyond the room that was made first, and with steps of two kinds.
#[test]
fn recordings_are_made_anew() {
    for backend in backends() {
        let growing = Policy::snapkv(Budget::Tokens(BUDGET));
        let played = play(&growing, 75, &backend.device, "snapkv");
        assert!(played.replayed >= 68 || !records_steps(&backend.name), "{played:?}");
        // Every fourth step ends a local window.
        let two = Policy::ems(Budget::Tokens(BUDGET)).with_window(4);
        let played = play(&two, 24, &backend.device, "ems");
        assert!(played.replayed >= 12 || !records_steps(&backend.name), "{played:?}");
    }
}

/// A replayed token beyond the last position is refused as a launched one is, and nothing is
/// counted.
#[test]
fn positions_end() {
    for backend in backends() {
        for policy in [Policy::h2o(Budget::Tokens(BUDGET)), Policy::snapkv(Budget::Tokens(BUDGET))]
        {
            let model = Model::new(COLUMNS + 10, &backend.device);
            let (mut cache, first) = model.begin(&policy);
            let run = |tokens, cache: &mut KvCache| -> Result<_, Error> {
                Ok(model.forward(tokens, cache)?)
            };
            let mut steps = StepGraph::new(&mut cache, first, run);
            for _ in 0..10 {
                steps.step().unwrap();
            }
            assert_eq!(steps.replayed() > 0, records_steps(&backend.name), "{}", backend.name);
            for _ in 0..2 {
                let error = steps.step().unwrap_err().to_string();
                let expected = briquette::Error::PositionOverflow {
                    position: COLUMNS + 10,
                    max: COLUMNS + 10,
                };
                assert_eq!(error, expected.to_string());
                assert_eq!(steps.cache().tokens_seen()[0], COLUMNS + 10);
            }
        }
    }
}

/// A recording of a model that rotates queries and keys itself would repeat the position it was
/// made at.
#[test]
fn rotated_keys_are_not_recorded() {
    struct Blind;
    impl StateVisitor for Blind {
        fn tensor(&mut self, _: StateTensor<'_>) {}
        fn number(&mut self, _: usize) {}
    }
    let device = host();
    let x = |heads: usize| Tensor::<4>::zeros([ROWS, heads, 5, SHAPE.head_dim], &device);
    let encodings: [(&dyn PositionEncoding, bool); 2] =
        [(&NoPositionEncoding, true), (&Rotated, false)];
    for (encoding, recorded) in encodings {
        let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
        for layer in 0..SHAPE.layers {
            cache.attend(layer, x(4), x(2), x(2), encoding).unwrap();
        }
        match cache.visit_state(&mut Blind) {
            Ok(()) => assert!(recorded, "{encoding:?}"),
            Err(error) => assert!(!recorded && error.to_string().contains("Rotated"), "{error}"),
        }
    }
}

/// A whole model: nothing between its layers is sent to the device or read from it.
#[test]
fn steps_of_a_model_are_replayed() {
    for backend in backends() {
        let model =
            briquette_models::Model::load(generations::MODEL, &backend.device, DType::F32).unwrap();
        for policy in [Policy::h2o(Budget::Tokens(BUDGET)), Policy::snapkv(Budget::Tokens(BUDGET))]
        {
            let prompt: Vec<u32> = (0..90).map(|number| 40 + number * 7 % 200).collect();
            let begin = || {
                let mut cache = model.cache(policy.clone()).unwrap();
                let logits = prefill(&model, &[&prompt], &mut cache, None).unwrap();
                (cache, logits.argmax(1))
            };
            let (mut cache, mut next) = begin();
            let mut launched = Vec::new();
            for _ in 0..12 {
                next = model.forward_last_of_known(next, &mut cache).unwrap().argmax(1);
                launched.extend(next.clone().try_into_vec_as::<i64>().unwrap());
            }
            let (mut cache, first) = begin();
            type Any = Box<dyn std::error::Error + Send + Sync>;
            let run = |tokens, cache: &mut KvCache| -> Result<_, Any> {
                Ok(model.forward_last_of_known(tokens, cache)?)
            };
            let mut steps = StepGraph::new(&mut cache, first, run);
            let mut replayed = Vec::new();
            for _ in 0..12 {
                steps.step().unwrap();
                replayed.extend(steps.tokens().try_into_vec_as::<i64>().unwrap());
            }
            let what = format!("{}, {}", policy.name(), backend.name);
            assert_eq!(replayed, launched, "{what}");
            let some = steps.replayed() >= 6;
            assert_eq!(some, records_steps(&backend.name), "{what}: {:?}", steps.fallback_reason());
        }
    }
}
