//! Steps behind a second prompt, which is kept whole above the budget.

use briquette::{Budget, KvCache, Policy, Prompt, Schedule, policy::PrefillCompression};
use briquette_graph::{Error, StepGraph};
use briquette_tests::backends::backends;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{Given, Model, ROWS, WORDS, given, make_room};

const SECOND: usize = 12;

/// A cache behind two prompts, the rows of both of different lengths.
fn begin(model: &Model, policy: &Policy, device: &Device) -> (KvCache, Tensor<2, Int>) {
    let (mut cache, _) = model.begin(policy, device);
    let words: Vec<i64> = (0..ROWS * SECOND).map(|number| (number * 23 % WORDS) as i64).collect();
    let words = Tensor::from_data(TensorData::new(words, [ROWS, SECOND]), device);
    cache.begin_prompt(Prompt::new(SECOND).left_padding(vec![5, 0])).unwrap();
    let logits = model.forward(words, &mut cache).unwrap();
    (cache, logits.argmax(1))
}

/// Heads are laid out anew while steps are compared, so that tensors come and go.
#[test]
fn steps_behind_a_second_prompt_are_launched_ones() {
    const STEPS: usize = 24;
    for backend in backends() {
        let (device, budget) = (&backend.device, Budget::Ratio(0.25));
        for policy in [Policy::h2o(budget), Policy::d2o(budget), Policy::ems(budget)] {
            let schedule =
                Schedule { prefill: PrefillCompression::FirstPrompt, ..policy.schedule() };
            let policy = policy.with_schedule(schedule);
            let model = Model::new(1024, device);
            let (mut cache, mut next) = begin(&model, &policy, device);
            let mut launched: Vec<Given> = Vec::new();
            for _ in 0..STEPS {
                // Merging hands a difference in rounding on, larger at each step: none may begin.
                make_room(&mut cache, device);
                let logits = model.forward(next, &mut cache).unwrap();
                next = logits.clone().argmax(1);
                launched.push(given(next.clone(), logits, &cache));
            }
            let (mut cache, first) = begin(&model, &policy, device);
            let run = |tokens, cache: &mut KvCache| -> Result<_, Error> {
                Ok(model.forward(tokens, cache)?)
            };
            let mut graph = StepGraph::new(&mut cache, first, run);
            for (number, launched) in launched.iter().enumerate() {
                let what = format!("{}, {}, step {number}", policy.name(), backend.name);
                graph.step().unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = given(graph.tokens(), graph.logits().unwrap(), graph.cache());
                assert_eq!(&found, launched, "{what}");
            }
        }
    }
}
