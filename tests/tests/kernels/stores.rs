//! Stores hand a decode step to the kernels made for them, or lay their entries out where a device
//! cannot take those.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache,
    ops::{Fallback, Ops},
    position::RotaryEmbedding,
};
use briquette_kernels::Kernels;
use briquette_ops::{
    AttentionOps, ClusterOps, DecodeInput, DecodeOutput, EntryOps, MergeOps, ModelOps, Result,
    SelectOps,
};
use briquette_tests::{backends::host, inputs::Noise, named, session::tolerance};
use burn::tensor::{DType, Device};

use crate::common::{binds_too_few, close, kernel_backends, numbers};

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
impl EntryOps for Counting {}
impl MergeOps for Counting {}
impl ClusterOps for Counting {}
impl ModelOps for Counting {}

impl Ops for Counting {
    fn fallbacks(&self) -> Vec<Fallback> {
        self.kernels.fallbacks()
    }
}

const STEPS: usize = 3;

/// The outputs of the decode steps behind a prompt, in all layers: of the same numbers on every
/// device.
fn decode(method: &str, config: CacheConfig, device: &Device) -> Vec<f32> {
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 512, 10_000.0, device).unwrap();
    let policy = named(method, Budget::Tokens(96));
    let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
    let mut noise = Noise::new(3);
    let mut outputs = Vec::new();
    for call in 0..=STEPS {
        let new = if call == 0 { 200 } else { 1 };
        for layer in 0..SHAPE.layers {
            let mut random = |heads| noise.tensor([2, heads, new, SHAPE.head_dim], device);
            let (q, k, v) =
                (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
            let output = cache.attend(layer, q, k, v, &rope).unwrap();
            if call > 0 {
                outputs.extend(numbers(output));
            }
        }
    }
    outputs
}

#[test]
fn every_decode_step_is_one_of_a_kernel() {
    for backend in kernel_backends() {
        for method in ["ems", "kivi", "fp8"] {
            let place = format!("{}, {method}", backend.name);
            let ops = Counting::default();
            let config = CacheConfig::default().with_ops(Arc::new(ops.clone()));
            let found = decode(method, config, &backend.device);
            let expected = decode(method, CacheConfig::default(), &host());
            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
            println!("{place}");
            close(&found, &expected, DType::F32, tolerance(DType::F32));

            let (attended, fallbacks) = (ops.attended.load(Ordering::Relaxed), ops.fallbacks());
            let lacks = fallbacks.iter().all(|fallback| binds_too_few(&backend, &fallback.reason));
            assert!(lacks, "{place}: {fallbacks:?}");
            // What a device does not bind is counted.
            let answered: usize = fallbacks.iter().map(|fallback| fallback.calls).sum();
            assert_eq!(attended + answered, STEPS * SHAPE.layers, "{place}");
            assert_eq!(attended == 0, backend.binds_few(), "{place}");
        }
    }
}
