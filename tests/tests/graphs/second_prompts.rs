//! Steps behind a second prompt, which is kept whole above the budget.

use briquette::{Budget, KvCache, Policy, PrefillCompression, Prompt};
use briquette_graph::Error;
use briquette_tests::backends::backends;
use burn::tensor::{Int, Tensor};

use super::{Model, launch, replay};

const SECOND: usize = 12;

/// A cache behind two prompts, the rows of both of different lengths.
fn begin(model: &Model, policy: &Policy) -> (KvCache, Tensor<2, Int>) {
    let (mut cache, _) = model.begin(policy);
    cache.begin_prompt(Prompt::new(SECOND).left_padding(vec![5, 0])).unwrap();
    let logits = model.forward(model.words(SECOND, 23), &mut cache).unwrap();
    (cache, logits.argmax(1))
}

/// Heads are laid out anew while steps are compared, so that tensors come and go.
#[test]
fn steps_behind_a_second_prompt_are_launched_ones() {
    const STEPS: usize = 24;
    for backend in backends() {
        let budget = Budget::Ratio(0.25);
        for policy in [Policy::h2o(budget), Policy::d2o(budget), Policy::ems(budget)] {
            let schedule = policy.schedule().with_prefill(PrefillCompression::FirstPrompt);
            let policy = policy.with_schedule(schedule);
            let model = Model::new(1024, &backend.device);
            let (mut cache, first) = begin(&model, &policy);
            let launched = launch(&model, &mut cache, first, STEPS);
            let (mut cache, first) = begin(&model, &policy);
            let run = |tokens, cache: &mut KvCache| -> Result<_, Error> {
                Ok(model.forward(tokens, cache)?)
            };
            let what = format!("{}, {}", policy.name(), backend.name);
            replay(&mut cache, first, run, &launched, false, &what);
        }
    }
}
