//! Steps that cannot be recorded are launched, and that can be seen.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use briquette::{Budget, KvCache, Policy};
use briquette_graph::Error;
use briquette_ops::constant_ints;
use briquette_tests::backends::{backends, records_steps};
use burn::tensor::{Device, Tensor};

use super::{BUDGET, Model, launch, replay};

const STEPS: usize = 20;

/// Steps of a model that does something beside its step. Returns how many were replayed, and how
/// many recordings dropped.
fn play(policy: &Policy, device: &Device, beside: impl Fn(&Tensor<2>) + Sync) -> (usize, usize) {
    let model = Model::new(1024, device);
    let (mut cache, first) = model.begin(policy);
    let launched = launch(&model, &mut cache, first, STEPS);
    let (mut cache, first) = model.begin(policy);
    let run = |tokens, cache: &mut KvCache| -> Result<_, Error> {
        let logits = model.forward(tokens, cache)?;
        beside(&logits);
        Ok(logits)
    };
    let grows = policy.schedule().decode_every.is_none();
    let played = replay(&mut cache, first, run, &launched, grows, policy.name());
    assert_eq!(
        played.dropped > 0,
        played.why.is_some_and(|why| !NOTHING_IS_RECORDED.iter().any(|it| why == *it))
    );
    (played.replayed, played.dropped)
}

/// The reasons of devices that record nothing.
const NOTHING_IS_RECORDED: [&str; 2] =
    ["the device has no graphs", "operations are put off to be fused (feature `fusion`)"];

fn policies() -> [Policy; 2] {
    [Policy::h2o(Budget::Tokens(BUDGET)), Policy::snapkv(Budget::Tokens(BUDGET))]
}

#[test]
fn a_step_that_reads_is_launched() {
    for backend in backends() {
        let tries = if records_steps(&backend.name) { 3 } else { 0 };
        for policy in policies() {
            let found = play(&policy, &backend.device, |logits| {
                logits.clone().sum().try_into_scalar::<f32>().expect("numbers are read");
            });
            assert_eq!(found, (0, tries), "{}, {}", policy.name(), backend.name);
        }
    }
}

/// On CUDA a copy from the host is recorded, and copies the same again.
#[test]
fn a_step_that_sends_gives_the_same() {
    for backend in backends() {
        for policy in policies() {
            let device = &backend.device;
            let (replayed, dropped) = play(&policy, device, |logits| {
                let one = Tensor::<1>::from_floats([1.0], device).reshape([1, 1]);
                drop(logits.clone() * one);
            });
            let what = format!("{}, {}", policy.name(), backend.name);
            match backend.name.as_str() {
                name if !records_steps(name) => assert_eq!((replayed, dropped), (0, 0), "{what}"),
                "wgpu" | "vulkan" => assert_eq!((replayed, dropped), (0, 3), "{what}"),
                _ => assert!(replayed > 0 || dropped > 0, "{what}"),
            }
        }
    }
}

/// Lists that kernels are told are sent where they are others than before: a replay would tell
/// those of the step that was recorded.
#[test]
fn a_step_that_tells_kernels_another_list_is_launched() {
    for backend in backends() {
        let (device, told) = (&backend.device, AtomicUsize::new(0));
        let tries = if records_steps(&backend.name) { 3 } else { 0 };
        for policy in policies() {
            let found = play(&policy, device, |_| {
                let number = told.fetch_add(1, Ordering::Relaxed) as i64;
                drop(constant_ints("numbers of steps", vec![number], [1], device));
            });
            assert_eq!(found, (0, tries), "{}, {}", policy.name(), backend.name);
        }
    }
}

/// A model that fails only where it is recorded: on the thread of the device, the second time of
/// two.
#[test]
fn a_step_that_panics_is_launched() {
    for backend in backends() {
        let here = thread::current().id();
        let tries = if records_steps(&backend.name) { 3 } else { 0 };
        for policy in policies() {
            let elsewhere = AtomicUsize::new(0);
            let found = play(&policy, &backend.device, |_| {
                if thread::current().id() != here {
                    assert_eq!(elsewhere.fetch_add(1, Ordering::Relaxed) % 2, 0, "on purpose");
                }
            });
            assert_eq!(found, (0, tries), "{}, {}", policy.name(), backend.name);
        }
    }
}
