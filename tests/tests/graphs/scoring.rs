//! Steps of models whose weights are more than a softmax of scaled products: caps, sink logits,
//! ALiBi slopes, and windows in some layers.

use briquette::{Budget, CacheConfig, Policy, Schedule, ops::Window};
use briquette_tests::backends::{Backend, backends, records_steps};
use burn::tensor::{Device, Tensor};

use super::{BUDGET, COLUMNS, Model, Played, SHAPE, play_of};

/// Beyond the steps in which a layer comes to hold a window that is wider than the prompt.
const STEPS: usize = 60;

fn model(device: &Device, change: impl Fn(CacheConfig) -> CacheConfig) -> Model {
    let mut model = Model::new(1024, device);
    model.config = change(model.config);
    model
}

/// Such as are recorded in a cache without windows.
fn policies(backend: &Backend) -> Vec<Policy> {
    let budget = Budget::Tokens(BUDGET);
    let few = [Policy::full(), Policy::h2o(budget)];
    let more = [
        Policy::snapkv(budget),
        Policy::streaming_llm(budget),
        Policy::tova(budget),
        Policy::keydiff(budget).with_schedule(Schedule::always(20)),
        Policy::h2o(Budget::Ratio(0.3)),
    ];
    few.into_iter().chain(more.into_iter().filter(|_| backend.is_quick())).collect()
}

#[test]
fn steps_of_layers_with_windows_are_replayed() {
    let wide = COLUMNS + 30;
    for backend in backends() {
        let few = vec![[None, Some(24)], [None, Some(wide)]];
        let more = vec![[Some(24), None], [Some(wide), Some(9)], [None, Some(1)]];
        let chunks = [24, wide].map(|size| [Some(Window::Chunk(size)), None]);
        let windows = few.into_iter().chain(more.into_iter().filter(|_| backend.is_quick()));
        let windows = windows.map(|windows| windows.map(|window| window.map(Window::Sliding)));
        for windows in windows.chain(chunks) {
            let model = model(&backend.device, |config| config.with_windows(windows.to_vec()));
            for policy in policies(&backend) {
                let what = format!("{windows:?}, {policy:?}, {}", backend.name);
                let Played { replayed, dropped, why } = play_of(&model, &policy, STEPS, &what);
                assert_eq!(dropped, 0, "{what}: {why:?}");
                assert!(replayed >= STEPS / 2 || !records_steps(&backend.name), "{what}: {why:?}");
            }
        }
    }
}

/// Windows do not make up for a policy whose own steps cannot be recorded.
#[test]
fn steps_of_a_policy_that_reads_queries_back_are_launched_beside_windows() {
    let policy = Policy::tova(Budget::Tokens(BUDGET)).with_schedule(Schedule::always(8));
    for backend in backends() {
        let model = model(&backend.device, |config| config.with_windows(vec![Some(24), None]));
        let Played { replayed, dropped, why } = play_of(&model, &policy, 12, &backend.name);
        assert_eq!((replayed, dropped), (0, 0), "{}: {why:?}", backend.name);
        let why = why.unwrap();
        assert!(
            why.contains("queries") || !records_steps(&backend.name),
            "{}: {why}",
            backend.name
        );
    }
}

#[test]
fn steps_with_caps_sink_logits_and_slopes_are_replayed() {
    type Change = fn(CacheConfig, &Device) -> CacheConfig;
    fn of_heads(device: &Device) -> Tensor<1> {
        Tensor::from_floats([0.5, 0.25, -1.0, 0.0625], device)
    }
    let changes: [(&str, Change); 4] = [
        ("softcap", |config, _| config.with_softcap(1.5)),
        ("sinks", |config, device| config.with_sinks(vec![of_heads(device); SHAPE.layers])),
        ("slopes", |config, device| config.with_slopes(of_heads(device).abs() * 0.1)),
        ("all", |config, device| {
            let sinks = vec![of_heads(device); SHAPE.layers];
            let config = config.with_softcap(1.5).with_sinks(sinks);
            config.with_slopes(of_heads(device).abs() * 0.1).with_windows(vec![Some(24), None])
        }),
    ];
    for backend in backends() {
        for (name, change) in changes {
            let device = &backend.device;
            let model = model(device, |config| change(config, device));
            for policy in policies(&backend) {
                let what = format!("{name}, {policy:?}, {}", backend.name);
                let Played { replayed, dropped, why } = play_of(&model, &policy, 20, &what);
                assert_eq!(dropped, 0, "{what}: {why:?}");
                assert!(replayed >= 8 || !records_steps(&backend.name), "{what}: {why:?}");
            }
            // Recorded as soon as a kernel reads how they lie; else with the reason.
            for policy in [Policy::adakv(Budget::Tokens(BUDGET)), Policy::fp8()] {
                let what = format!("{name}, {policy:?}, {}", backend.name);
                let Played { replayed, dropped, why } = play_of(&model, &policy, 12, &what);
                assert_eq!(dropped, 0, "{what}: {why:?}");
                assert!(replayed > 0 || why.is_some(), "{what}");
            }
        }
    }
}
