//! A warm-up compiles most of what an answer takes, and few lengths of prompts add kernels to it.

use std::collections::BTreeSet;

use briquette::{
    Budget, CacheShape, Error, KvCache, Policy, WarmUp, device::bytes_in_use,
    position::RotaryEmbedding,
};
use briquette_tests::{backends::backends, inputs::Noise};
use burn::tensor::{DType, Device};
use cubecl::launched::LaunchedKernels;

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 40;

fn policies() -> [Policy; 7] {
    let budget = Budget::Tokens(BUDGET);
    [
        Policy::full(),
        Policy::snapkv(budget),
        Policy::h2o(budget),
        Policy::ems(budget),
        Policy::d2o(budget),
        Policy::kvmerger(budget),
        Policy::compactor(budget),
    ]
}

/// Kernels that are launched meanwhile, each by its hash, which covers all that it is compiled for.
fn launched(work: impl FnOnce()) -> BTreeSet<String> {
    let kernels = LaunchedKernels::new();
    work();
    kernels.finish().iter().map(|hash| format!("{hash:?}")).collect()
}

/// Reads a prompt of so many tokens and decodes a few behind it.
fn answer(policy: &Policy, tokens: usize, rope: &RotaryEmbedding, device: &Device) {
    let mut noise = Noise::new(tokens as u64);
    let mut cache = KvCache::new(SHAPE, policy.clone(), device).unwrap();
    for columns in [tokens, 1, 1, 1] {
        for layer in 0..SHAPE.layers {
            let mut part = |heads| noise.tensor([1, heads, columns, SHAPE.head_dim], device);
            let (queries, keys, values) =
                (part(SHAPE.query_heads), part(SHAPE.kv_heads), part(SHAPE.kv_heads));
            cache.attend(layer, queries, keys, values, rope).unwrap();
        }
    }
}

#[test]
fn few_lengths_compile_kernels() {
    for backend in backends() {
        let device = &backend.device;
        let is_device = bytes_in_use(device).is_some();
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 2048, 10_000.0, device).unwrap();
        let warm_up = WarmUp { rows: vec![1], prompts: vec![100, 1500] };
        for policy in policies() {
            let name = policy.name();
            let cache = KvCache::new(SHAPE, policy.clone(), device).unwrap();
            let mut told = Vec::new();
            let warm = launched(|| {
                let done = |done, all| told.push((done, all));
                cache.warm(&warm_up, DType::F32, &rope, done).unwrap();
            });
            assert_eq!(told, [(1, 2), (2, 2)]);
            assert_eq!((cache.bytes_held(), cache.tokens_seen().len()), (0, 0));
            assert_eq!(!warm.is_empty(), is_device, "{name}, {}", backend.name);
            let lengths = (0..if is_device { 50 } else { 4 }).map(|n| 100 + 28 * n);
            let (mut all, mut compile) = (warm.clone(), Vec::new());
            for tokens in lengths {
                let before = all.len();
                all.extend(launched(|| answer(&policy, tokens, &rope, device)));
                if all.len() > before {
                    compile.push((tokens, all.len() - before));
                }
            }
            println!("{}, {name}: {} and {compile:?}", backend.name, warm.len());
            assert!(compile.len() <= 15, "{name}, {}: {compile:?}", backend.name);
        }
    }
}

#[test]
fn a_warm_up_of_nothing_is_refused() {
    let backend = &backends()[0];
    let cache = KvCache::new(SHAPE, Policy::full(), &backend.device).unwrap();
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 64, 10_000.0, &backend.device).unwrap();
    for (rows, prompts) in
        [(vec![], vec![8]), (vec![1], vec![]), (vec![0], vec![8]), (vec![1], vec![0])]
    {
        let warm_up = WarmUp { rows, prompts };
        let found = cache.warm(&warm_up, DType::F32, &rope, |_, _| {});
        assert!(matches!(found, Err(Error::InvalidParameter { .. })), "{warm_up:?}: {found:?}");
    }
}
