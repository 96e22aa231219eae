//! Stores hand a decode step to the kernels made for them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy,
    ops::{
        AttentionOps, BlockOps, ClusterOps, DecodeInput, DecodeOutput, Fallback, LinearOps,
        MergeOps, Ops, Result, SelectOps,
    },
    position::RotaryEmbedding,
};
use briquette_kernels::Kernels;
use briquette_tests::inputs::Noise;

use crate::common::{binds_too_few, kernel_backends};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 64 };

/// Tensor operations, but for attention over stores of their own; counts what was attended there.
#[derive(Clone, Debug, Default)]
struct Counting {
    kernels: Kernels,
    attended: Arc<AtomicUsize>,
}

impl AttentionOps for Counting {
    fn decode(&self, input: &DecodeInput) -> Result<Option<DecodeOutput>> {
        let output = self.kernels.decode(input)?;
        self.attended.fetch_add(usize::from(output.is_some()), Ordering::Relaxed);
        Ok(output)
    }
}

impl SelectOps for Counting {}
impl MergeOps for Counting {}
impl ClusterOps for Counting {}
impl LinearOps for Counting {}
impl BlockOps for Counting {}

impl Ops for Counting {
    fn fallbacks(&self) -> Vec<Fallback> {
        self.kernels.fallbacks()
    }
}

#[test]
fn every_decode_step_is_one_of_a_kernel() {
    let prompt = 200;
    let steps = 3;
    for backend in kernel_backends() {
        let device = &backend.device;
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 512, 10_000.0, device).unwrap();
        for method in ["ems", "kivi"] {
            let ops = Counting::default();
            let config = CacheConfig::default().with_ops(Arc::new(ops.clone()));
            let policy = Policy::named(method, Budget::Tokens(96)).unwrap();
            let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
            let mut noise = Noise::new(3);
            for call in 0..=steps {
                let new = if call == 0 { prompt } else { 1 };
                for layer in 0..SHAPE.layers {
                    let mut random = |heads| noise.tensor([2, heads, new, SHAPE.head_dim], device);
                    let (q, k, v) =
                        (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
                    cache.attend(layer, q, k, v, &rope).unwrap();
                }
            }
            let (attended, fallbacks) = (ops.attended.load(Ordering::Relaxed), ops.fallbacks());
            let lacks = fallbacks.iter().all(|fallback| binds_too_few(&fallback.reason));
            assert!(lacks, "{}, {method}: {fallbacks:?}", backend.name);
            // What a device does not bind is counted.
            let answered: usize = fallbacks.iter().map(|fallback| fallback.calls).sum();
            assert_eq!(attended + answered, steps * SHAPE.layers, "{}, {method}", backend.name);
        }
    }
}
