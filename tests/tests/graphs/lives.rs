//! Steps behind whatever else a cache lives through: a file, drafts, prompts in chunks, a prefill
//! shared with another cache, and a second pass. They are those of a cache whose steps are
//! launched.

use briquette::{
    Budget, KvCache, Policy, Prompt, Schedule, SharedPrefill, state::Replay, store::Fp8,
};
use briquette_graph::Error;
use briquette_tests::{
    backends::{Backend, backends, records_steps},
    named,
};
use burn::tensor::{Int, Tensor, TensorData};

use super::{BUDGET, COLUMNS, Given, Model, PADDING, ROWS, compare, launch, prompt, replay};

const STEPS: usize = 12;

fn policies(backend: &Backend) -> Vec<Policy> {
    let budget = Budget::Tokens(BUDGET);
    let below = Policy::streaming_llm(Budget::Tokens(COLUMNS + 40));
    let few = [Policy::full(), Policy::h2o(budget), below, Policy::fp8()];
    let more = [
        Policy::snapkv(budget),
        Policy::adakv(budget),
        Policy::d2o(budget),
        Policy::ems(budget),
        Policy::kivi(2),
        Policy::keydiff(budget).with_schedule(Schedule::always(12)),
        Policy::h2o(Budget::Tokens(COLUMNS + 40)),
        Policy::streaming_llm(budget),
        Policy::h2o(Budget::Ratio(0.3)),
    ];
    few.into_iter().chain(more.into_iter().filter(|_| backend.is_quick())).collect()
}

/// Two caches of one life: the steps of the first are launched, those of the second recorded.
struct Pair<'a> {
    model: &'a Model,
    caches: [KvCache; 2],
    what: String,
    records: bool,
}

impl<'a> Pair<'a> {
    fn new(model: &'a Model, caches: [KvCache; 2], policy: &Policy, backend: &Backend) -> Self {
        let what = format!("{policy:?}, {}", backend.name);
        Self { model, caches, what, records: records_steps(&backend.name) }
    }

    /// Plays steps behind these tokens. Returns what the last one gave.
    fn play(&mut self, next: Tensor<2, Int>) -> Given {
        let Self { model, caches: [plain, recorded], what, records } = self;
        let of_tokens = matches!(plain.policy().budget(), Some(Budget::Tokens(BUDGET)));
        let grows = plain.policy().schedule().decode_every != Some(1) || !of_tokens;
        let mut launched = launch(model, plain, next.clone(), STEPS);
        let run =
            |tokens, cache: &mut KvCache| -> Result<_, Error> { Ok(model.forward(tokens, cache)?) };
        let played = replay(recorded, next, run, &launched, grows, what);
        assert_eq!(played.dropped, 0, "{what}: {played:?}");
        assert!(played.replayed > 0 || !*records, "{what}: {played:?}");
        launched.pop().unwrap()
    }

    /// Plays steps, changes both caches, and plays steps again.
    fn play_around(
        &mut self,
        first: Tensor<2, Int>,
        change: impl Fn(&Model, &mut KvCache, Tensor<2, Int>) -> Tensor<2, Int>,
    ) {
        let last = self.play(first);
        let device = self.caches[0].device().clone();
        let last = || Tensor::from_data(TensorData::new(last.tokens.clone(), [ROWS, 1]), &device);
        let [plain, recorded] = &mut self.caches;
        let next = change(self.model, plain, last());
        change(self.model, recorded, last());
        self.play(next);
    }
}

/// Lets caches of every policy that passes live through a change.
fn live(
    passes: impl Fn(&Policy) -> bool,
    change: impl Fn(&Model, &mut KvCache, Tensor<2, Int>) -> Tensor<2, Int>,
) {
    for backend in backends() {
        let model = Model::new(1024, &backend.device);
        for policy in policies(&backend).into_iter().filter(|policy| passes(policy)) {
            let ((plain, first), (recorded, _)) = (model.begin(&policy), model.begin(&policy));
            Pair::new(&model, [plain, recorded], &policy, &backend).play_around(first, &change);
        }
    }
}

#[test]
fn steps_behind_a_file_are_launched_ones() {
    let folder = tempfile::tempdir().unwrap();
    live(
        |_| true,
        |model, cache, last| {
            let path = folder.path().join("a.prefix");
            cache.save(&path).unwrap();
            let (policy, config) = (cache.policy().clone(), model.config.clone());
            let (shape, device) = (cache.shape(), cache.device().clone());
            *cache = KvCache::load(&path, shape, policy, config, &device).unwrap();
            last
        },
    );
}

/// The second draft is the first that compresses, where decoded tokens are compressed.
#[test]
fn steps_behind_drafts_that_are_taken_back_are_launched_ones() {
    let takes_drafts = |policy: &Policy| policy.name() != "ems";
    live(takes_drafts, |model, cache, last| {
        for _ in 0..2 {
            let seen = cache.columns_seen().into_iter().max().unwrap();
            let more = Tensor::from_data([[5, 9], [11, 3]], cache.device());
            cache.begin_decode(3).unwrap();
            model.forward(Tensor::cat(vec![last.clone(), more], 1), cache).unwrap();
            cache.truncate(seen + 2).unwrap();
        }
        last
    });
}

/// A cache whose heads hold tokens of a draft beyond their budget has no free slots to make.
#[test]
fn drafts_beyond_the_budget_stay_whole() {
    for backend in backends() {
        let model = Model::new(1024, &backend.device);
        let (mut cache, first) = model.begin(&Policy::streaming_llm(Budget::Tokens(BUDGET)));
        let draft = |cache: &mut KvCache| {
            cache.begin_decode(3).unwrap();
            model.forward(first.clone().repeat_dim(1, 3), cache).unwrap();
            cache.kept_positions(0).unwrap()
        };
        draft(&mut cache);
        let held = draft(&mut cache);
        assert_eq!(cache.tokens_kept(0).unwrap(), [BUDGET + 3; 2], "{}", backend.name);
        assert_eq!(cache.open_columns(), None, "{}", backend.name);
        cache.begin_device_indexing(8).unwrap();
        assert_eq!(cache.kept_positions(0).unwrap(), held, "{}", backend.name);
    }
}

/// Below its budget a cache gets free slots for recorded steps, and a draft lays them out again.
#[test]
fn drafts_behind_free_slots_are_taken_back() {
    for backend in backends() {
        let model = Model::new(1024, &backend.device);
        let policy = Policy::streaming_llm(Budget::Tokens(COLUMNS + 40));
        let live = |slots: usize| {
            let (mut cache, first) = model.begin(&policy);
            launch(&model, &mut cache, first.clone(), 2);
            if slots > 0 {
                cache.begin_device_indexing(slots).unwrap();
            }
            launch(&model, &mut cache, first.clone(), 2);
            let seen = cache.columns_seen().into_iter().max().unwrap();
            cache.begin_decode(3).unwrap();
            model.forward(first.clone().repeat_dim(1, 3), &mut cache).unwrap();
            cache.truncate(seen + 1).unwrap();
            let error = cache.fork().truncate(seen - 1).unwrap_err();
            assert!(
                matches!(error, briquette::Error::TruncateTooFar { least, .. } if least == seen),
                "{error}"
            );
            launch(&model, &mut cache, first, 2)
        };
        for (found, expected) in live(20).iter().zip(&live(0)) {
            compare(found, expected, true, &backend.name);
        }
    }
}

#[test]
fn steps_around_a_prompt_in_chunks_are_launched_ones() {
    live(
        |_| true,
        |model, cache, _| {
            const SECOND: usize = 12;
            const FIRST_PART: usize = 5;
            let words = model.words(SECOND, 23);
            cache.begin_prompt(Prompt::new(SECOND).left_padding(vec![7, 0])).unwrap();
            model.forward(words.clone().narrow(1, 0, FIRST_PART), cache).unwrap();
            let rest = words.narrow(1, FIRST_PART, SECOND - FIRST_PART);
            model.forward(rest, cache).unwrap().argmax(1)
        },
    );
}

#[test]
fn steps_behind_a_shared_prefill_are_launched_ones() {
    for backend in backends() {
        let model = Model::new(1024, &backend.device);
        for policy in policies(&backend) {
            let (plain, first) = model.begin(&policy);
            let mut caches = [model.cache(&Policy::full()), model.cache(&policy)];
            let mut prefill = SharedPrefill::new(&mut caches, prompt()).unwrap();
            let attend =
                |layer, [q, k, v]: [Tensor<4>; 3]| prefill.attend(layer, q, k, v, &model.rope);
            model.forward_through(model.words(COLUMNS, 37), attend).unwrap();
            let [_, recorded] = caches;
            Pair::new(&model, [plain, recorded], &policy, &backend).play(first);
        }
    }
}

#[test]
fn steps_behind_a_second_pass_are_launched_ones() {
    /// Tokens that repeat a part of each prompt.
    const REPEATS: [usize; ROWS] = [30, 25];
    for backend in backends() {
        let model = Model::new(1024, &backend.device);
        let kvzip = named("kvzip", Budget::Tokens(BUDGET));
        let mut policies = vec![kvzip.clone(), kvzip.with_store(Fp8 {})];
        if backend.is_quick() {
            policies.push(named("kvcompose", Budget::Tokens(BUDGET)));
        }
        for policy in policies {
            let (mut cache, first) = model.begin(&policy);
            let mut pass = cache.reconstruction().unwrap().unwrap();
            let part = pass.repeat().tokens;
            for start in (0..COLUMNS).step_by(part) {
                pass.begin(start..(start + part).min(COLUMNS), &REPEATS).unwrap();
                let attend =
                    |layer, [q, k, v]: [Tensor<4>; 3]| pass.attend(layer, q, k, v, &model.rope);
                model.forward_through(model.words(REPEATS[0], 29), attend).unwrap();
            }
            let given = pass.finish();
            cache.compress_by(&given).unwrap();
            let longest = cache.tokens_kept(0).unwrap();
            assert!(longest.iter().zip(PADDING).all(|(kept, padding)| *kept < COLUMNS - padding));
            Pair::new(&model, [cache.fork(), cache], &policy, &backend).play(first);
        }
    }
}
