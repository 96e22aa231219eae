//! `generate_until` and `generate_batch` replay their steps, and give what launched ones give.

use std::ops::ControlFlow;

use briquette::{Budget, Policy};
use briquette_models::{
    Error, GenerateOptions, Generation, Interrupt, Model, Timing, generate_batch,
    generate_batch_until, generate_until,
};
use briquette_tests::backends::{backends, records_steps};
use burn::tensor::DType;

pub(super) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/ember-7m");
const NEW: usize = 40;

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|number| 40 + number * 7 % 200).collect()
}

fn play(model: &Model, policy: &Policy, options: &GenerateOptions) -> (Vec<Generation>, Timing) {
    let mut cache = model.cache(policy.clone()).unwrap();
    generate_batch(model, &[prompt(70), prompt(90)], &mut cache, options, |_, _| {}).unwrap()
}

#[test]
fn generations_are_replayed() {
    for backend in backends() {
        let model = Model::load(MODEL, &backend.device, DType::F32).unwrap();
        let greedy = GenerateOptions { max_new_tokens: NEW, ..GenerateOptions::default() };
        let drawn =
            GenerateOptions { temperature: 0.8, top_k: Some(20), seed: 5, ..greedy.clone() };
        let budget = Budget::Tokens(40);
        // Compresses at every token, grows, packs now and then, and holds no page yet.
        let policies = [
            (Policy::h2o(budget), &drawn, true),
            (Policy::snapkv(budget), &greedy, true),
            (Policy::fp8(), &drawn, true),
            (Policy::kivi(2), &greedy, false),
        ];
        for (policy, options, alike) in policies {
            let what = format!("{}, {}", policy.name(), backend.name);
            let launched = GenerateOptions { record: false, ..options.clone() };
            let (expected, timing) = play(&model, &policy, &launched);
            assert_eq!((timing.steps, timing.replayed), (NEW - 1, 0), "{what}");
            let (found, timing) = play(&model, &policy, options);
            assert_eq!(found, expected, "{what}");
            assert_eq!(timing.steps, NEW - 1, "{what}");
            let replays = alike && records_steps(&backend.name);
            assert_eq!(timing.replayed >= NEW / 2, replays, "{what}: {timing:?}");
        }
    }
}

/// Rows that have ended leave, and steps are recorded anew behind half of them.
#[test]
fn rows_leave_replayed_generations() {
    const ENDS: [usize; 3] = [8, 14, NEW];
    for backend in backends() {
        let model = Model::load(MODEL, &backend.device, DType::F32).unwrap();
        for policy in [Policy::h2o(Budget::Tokens(32)), Policy::full()] {
            let play = |record| {
                let options =
                    GenerateOptions { max_new_tokens: NEW, record, ..GenerateOptions::default() };
                let mut cache = model.cache(policy.clone()).unwrap();
                let mut heard = [0; 3];
                let prompts = [prompt(70), prompt(90), prompt(50)];
                let (rows, timing) =
                    generate_batch_until(&model, &prompts, &mut cache, &options, |row, _| {
                        heard[row] += 1;
                        let ends = heard[row] == ENDS[row];
                        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                assert_eq!((heard, cache.tokens_seen()), (ENDS, vec![50 + NEW - 1]));
                (rows, timing)
            };
            let what = format!("{}, {}", policy.name(), backend.name);
            let (launched, replayed) = (play(false), play(true));
            assert_eq!(launched.0, replayed.0, "{what}");
            let is_replayed = records_steps(&backend.name);
            assert_eq!(replayed.1.replayed > 0, is_replayed, "{what}: {:?}", replayed.1);
        }
    }
}

/// A text that follows on the same cache goes on where a replayed generation ended.
#[test]
fn texts_go_on() {
    for backend in backends() {
        let model = Model::load(MODEL, &backend.device, DType::F32).unwrap();
        for policy in [Policy::h2o(Budget::Tokens(32)), Policy::full()] {
            let tokens_of = |record| {
                let options =
                    GenerateOptions { max_new_tokens: NEW, record, ..GenerateOptions::default() };
                let mut cache = model.cache(policy.clone()).unwrap();
                let mut heard = Vec::new();
                let mut prompt = prompt(90);
                for turn in 0..2 {
                    let (generation, _) =
                        generate_until(&model, &prompt, &mut cache, &options, |token| {
                            heard.push(token);
                            let ends = turn == 0 && heard.len() == NEW / 2;
                            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                        })
                        .unwrap();
                    prompt = vec![*generation.tokens.last().unwrap(), 50, 60];
                }
                (heard, cache.tokens_seen(), cache.bytes_held() - cache.bytes_spare())
            };
            let (heard, seen, bytes) = tokens_of(true);
            assert_eq!(heard.len(), NEW / 2 + NEW, "{}", policy.name());
            assert_eq!(
                (heard, seen, bytes),
                tokens_of(false),
                "{}, {}",
                policy.name(),
                backend.name
            );
        }
    }
}

/// A replay does not run the model, which an interruption is asked of otherwise.
#[test]
fn replayed_generations_are_interrupted() {
    for backend in backends() {
        let interrupt = Interrupt::new();
        let model = Model::load(MODEL, &backend.device, DType::F32).unwrap();
        let model = model.with_interrupt(interrupt.clone());
        let options = GenerateOptions { max_new_tokens: NEW, ..GenerateOptions::default() };
        let mut cache = model.cache(Policy::h2o(Budget::Tokens(32))).unwrap();
        let mut heard = 0;
        let error = generate_until(&model, &prompt(90), &mut cache, &options, |_| {
            heard += 1;
            if heard == NEW / 2 {
                interrupt.set();
            }
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert_eq!(heard, NEW / 2);
        assert_eq!(cache.tokens_seen(), [90 + NEW / 2 - 1]);
    }
}
