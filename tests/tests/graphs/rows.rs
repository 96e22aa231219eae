//! Steps before and behind a change of the rows of a batch.

use briquette::{Budget, KvCache, Policy};
use briquette_graph::Error;
use briquette_tests::backends::{backends, records_steps};
use burn::tensor::{Int, Tensor, TensorData};

use super::{BUDGET, Given, Model, ROWS, launch, replay};

const STEPS: usize = 12;
/// Of two rows and their copies.
const SELECTED: [usize; 3] = [2, 1, 0];

/// Appends a copy of each row, selects three, and returns their next tokens.
fn change_rows(cache: &mut KvCache, last: &Given) -> Tensor<2, Int> {
    let copy = cache.fork();
    cache.append_rows(&copy).unwrap();
    cache.select_rows(&SELECTED).unwrap();
    let tokens: Vec<i64> = SELECTED.iter().map(|row| last.tokens[row % ROWS]).collect();
    Tensor::from_data(TensorData::new(tokens, [SELECTED.len(), 1]), cache.device())
}

#[test]
fn steps_of_other_rows_are_recorded_anew() {
    for backend in backends() {
        let budget = Budget::Tokens(BUDGET);
        let compressing = [Policy::h2o(budget), Policy::d2o(budget), Policy::ems(budget)];
        let growing = [Policy::full(), Policy::adakv(budget), Policy::fp8()];
        for policy in compressing.into_iter().chain(growing) {
            let what = format!("{}, {}", policy.name(), backend.name);
            let model = Model::new(1024, &backend.device);
            let run = |tokens, cache: &mut KvCache| -> Result<_, Error> {
                Ok(model.forward(tokens, cache)?)
            };
            let grows = policy.schedule().decode_every != Some(1);
            let (mut plain, first) = model.begin(&policy);
            let before = launch(&model, &mut plain, first, STEPS);
            let next = change_rows(&mut plain, &before[STEPS - 1]);
            let after = launch(&model, &mut plain, next, STEPS);

            let (mut cache, first) = model.begin(&policy);
            replay(&mut cache, first, run, &before, grows, &what);
            let next = change_rows(&mut cache, &before[STEPS - 1]);
            let played = replay(&mut cache, next, run, &after, grows, &what);
            assert_eq!(played.dropped, 0, "{what}: {played:?}");
            assert!(played.replayed > 0 || !records_steps(&backend.name), "{what}: {played:?}");
        }
    }
}
