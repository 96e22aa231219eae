//! Examples that the papers print, with their numbers, on the host device.

use std::sync::Arc;

use briquette::{
    Budget, CacheShape, KvCache, Policy, Profile, diagnose, position::NoPositionEncoding,
    reduce::EvictThenMerge,
};
use briquette_tests::{backends::host, inputs::Noise, profiles::profile};
use burn::tensor::{Device, Tensor};

const TOKENS: usize = 256;

fn cache(shape: CacheShape, policy: Policy, device: &Device) -> KvCache {
    let mut cache = KvCache::new(shape, policy, device).unwrap();
    let mut noise = Noise::new(11);
    let mut random = |heads| noise.tensor([1, heads, TOKENS, shape.head_dim], device);
    for layer in 0..shape.layers {
        let (q, k, v) = (random(shape.query_heads), random(shape.kv_heads), random(shape.kv_heads));
        cache.attend(layer, q, k, v, &NoPositionEncoding).unwrap();
    }
    cache
}

/// CompressKV, appendix D: AdaKV's head budgets within the layer budgets of Algorithm 1.
#[test]
fn adakv_shares_what_algorithm_1_gives_a_layer() {
    let device = host();
    let shape = CacheShape { layers: 4, query_heads: 4, kv_heads: 2, head_dim: 8 };
    let mut known = Profile::clone(&profile(shape));
    known.layer_errors = vec![0.7, 0.1, 0.1, 0.1];
    let known = Arc::new(known);
    // 32 each; of 4 · 64 − 4 · 32 = 128 by error 89.6 and three times 12.8, rounded one too many:
    // the first of the smallest errors gives it back.
    let algorithm_1 = [32 + 90, 32 + 12, 32 + 13, 32 + 13];
    for policy in [Policy::compresskv, Policy::compresskv_adakv] {
        let policy = policy(Budget::Tokens(64)).with_profile(known.clone());
        let name = policy.name().to_owned();
        let cache = cache(shape, policy, &device);
        for (layer, budget) in algorithm_1.into_iter().enumerate() {
            let heads = &cache.entries_by_head(layer).unwrap()[0];
            assert_eq!(heads.iter().sum::<usize>(), 2 * budget, "{name}, layer {layer}: {heads:?}");
        }
    }
}

/// EMS, Table 7: with an infinite γ no token is irrelevant, and with τ below any redundancy none is
/// evicted.
#[test]
fn an_infinite_gamma_evicts_nothing_before_merging() {
    let device = host();
    let shape = CacheShape { layers: 1, query_heads: 2, kv_heads: 1, head_dim: 8 };
    let remembered = |gamma| {
        let merge = EvictThenMerge { gamma, tau: 0.0, ..EvictThenMerge::default() };
        let policy = Policy::ems(Budget::Tokens(64)).with_reducer(merge);
        let cache = cache(shape, policy, &device);
        assert_eq!(cache.entries_by_head(0).unwrap(), [[64]]);
        cache.tokens_kept(0).unwrap()
    };
    // Of 64 representatives one has a redundancy above zero with every token of this noise.
    assert_eq!(remembered(f64::INFINITY), [TOKENS]);
    assert_eq!(remembered(2.0), [128]);
    assert_eq!(remembered(1.0), [64]);
}

/// EMS, Eq. 3 and 4, of a prompt nothing was taken from.
#[test]
fn rates_of_sparsity_and_redundancy() {
    let device = host();
    let shape = CacheShape { layers: 1, query_heads: 1, kv_heads: 1, head_dim: 2 };
    let policy = Policy::ems(Budget::Tokens(64));
    let mut cache = KvCache::new(shape, policy, &device).unwrap();
    // Ten tokens in turn along x and along y; all queries see all alike.
    let turn = Tensor::<2>::eye(2, &device).repeat(&[5, 1]).reshape([1, 1, 10, 2]);
    let zero = turn.zeros_like();
    cache.attend(0, zero, turn.clone(), turn, &NoPositionEncoding).unwrap();
    let entries = cache.entries(0).unwrap().unwrap();
    // All but the first two have a copy before them.
    assert_eq!(diagnose::redundancy(&entries, 0.6).unwrap(), [[0.8]]);
    // The window holds all ten queries: factor 1, s = s_Glo = 2.93, 1.93, 1.43, 1.10, 0.85, 0.65,
    // 0.48, 0.34, 0.21, 0.10 of 10.
    assert_eq!(diagnose::sparsity(&entries, 0.95).unwrap().unwrap(), [[1.0 - 0.8]]);
    assert_eq!(diagnose::sparsity(&entries, 0.5).unwrap().unwrap(), [[1.0 - 0.3]]);
}
