//! Caches on many threads: each gives what it gives alone, and one may go from thread to thread.

use std::{path::Path, thread};

use briquette::{Budget, CacheShape, KvCache, Policy, Schedule, position::RotaryEmbedding};
use briquette_models::{GenerateOptions, Model, generate};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::tensor::{DType, Device};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 32 };
const PROMPT: usize = 70;
const DECODED: usize = 12;

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

#[test]
fn caches_go_to_threads_and_models_are_shared() {
    is_send::<KvCache>();
    is_send::<Policy>();
    is_sync::<Policy>();
    is_send::<Model>();
    is_sync::<Model>();
    is_sync::<RotaryEmbedding>();
}

/// Results of a cache: outputs of all calls, the positions it ends with, and its bytes.
#[derive(Debug, PartialEq)]
struct Found {
    outputs: Vec<f32>,
    kept: Vec<Vec<Vec<Vec<usize>>>>,
    bytes: usize,
}

/// A cache and where it is in its tokens.
struct Play {
    cache: KvCache,
    noise: Noise,
    rope: RotaryEmbedding,
    outputs: Vec<f32>,
}

impl Play {
    fn new(name: &str, seed: u64, device: &Device) -> Self {
        let policy = named(name, Budget::Tokens(40)).with_profile(profile(SHAPE));
        let policy = match policy.takes_budget() {
            true => policy.with_schedule(Schedule::always(1)),
            false => policy,
        };
        Self {
            cache: KvCache::new(SHAPE, policy, device).unwrap(),
            noise: Noise::new(seed),
            rope: RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap(),
            outputs: Vec::new(),
        }
    }

    fn give(&mut self, tokens: usize) {
        let device = self.cache.device().clone();
        let CacheShape { layers, query_heads, kv_heads, head_dim } = SHAPE;
        for layer in 0..layers {
            let [q, k, v] = [query_heads, kv_heads, kv_heads]
                .map(|heads| self.noise.tensor([1, heads, tokens, head_dim], &device));
            let output = self.cache.attend(layer, q, k, v, &self.rope).unwrap();
            self.outputs.extend(output.try_into_vec_as::<f32>().unwrap());
        }
    }

    fn prompt(mut self) -> Self {
        self.give(PROMPT);
        self
    }

    fn decode(mut self) -> Found {
        (0..DECODED).for_each(|_| self.give(1));
        let kept = |layer| self.cache.kept_positions(layer).unwrap();
        Found {
            kept: (0..SHAPE.layers).map(kept).collect(),
            bytes: self.cache.bytes_held(),
            outputs: self.outputs,
        }
    }
}

/// All methods on the host; elsewhere, where kernels are compiled for each, two of different
/// stores.
fn names(backend: &Backend) -> Vec<String> {
    let few = ["adakv", "kivi"];
    let all = in_one_pass(40).map(|policy| policy.name().to_owned());
    all.filter(|name| backend.is_quick() || few.contains(&name.as_str())).collect()
}

#[test]
fn many_at_once_give_what_each_gives_alone() {
    for backend in backends() {
        let device = &backend.device;
        let plays: Vec<(String, u64)> =
            names(&backend).into_iter().flat_map(|name| [(name.clone(), 1), (name, 2)]).collect();
        let alone: Vec<Found> = plays
            .iter()
            .map(|(name, seed)| Play::new(name, *seed, device).prompt().decode())
            .collect();
        let together: Vec<Found> = thread::scope(|scope| {
            let threads: Vec<_> = plays
                .iter()
                .map(|(name, seed)| {
                    scope.spawn(|| Play::new(name, *seed, device).prompt().decode())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for ((play, alone), together) in plays.iter().zip(&alone).zip(&together) {
            assert_eq!(alone, together, "{play:?} on {}", backend.name);
        }
        assert_ne!(alone[0], alone[1], "two seeds are two texts");
    }
}

#[test]
fn a_cache_goes_from_thread_to_thread() {
    for backend in backends() {
        let device = &backend.device;
        for name in names(&backend) {
            let alone = Play::new(&name, 3, device).prompt().decode();
            let moved = thread::scope(|scope| {
                let filled = scope.spawn(|| Play::new(&name, 3, device).prompt()).join().unwrap();
                scope.spawn(|| filled.decode()).join().unwrap()
            });
            assert_eq!(alone, moved, "{name} on {}", backend.name);
        }
    }
}

#[test]
fn one_model_serves_many_caches() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/ember-7m");
    let model = Model::load(folder, &host(), DType::F32).unwrap();
    let say = |seed: u32| {
        let prompt: Vec<u32> = (0..90).map(|at| 5 + (at * 7 + seed * 13) % 900).collect();
        let mut cache = model.cache(Policy::snapkv(Budget::Tokens(48))).unwrap();
        let options = GenerateOptions { max_new_tokens: 12, ..GenerateOptions::default() };
        generate(&model, &prompt, &mut cache, &options, |_| {}).unwrap().0.tokens
    };
    let alone: Vec<Vec<u32>> = (0..8).map(say).collect();
    let together: Vec<Vec<u32>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|seed| {
                scope.spawn({
                    let say = &say;
                    move || say(seed)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}
