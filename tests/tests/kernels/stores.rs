//! Stores hand a decode step to the kernels made for them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy,
    ops::{DecodeOutput, Ops, QuantizedInput, SharedInput, best},
    position::RotaryEmbedding,
};
use briquette_tests::{backends::backends, inputs::Noise};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 64 };

/// Tensor operations, but for attention over stores of their own; counts what was attended there.
#[derive(Debug)]
struct Counting {
    best: Arc<dyn Ops>,
    attended: Arc<AtomicUsize>,
}

impl Counting {
    fn count(&self, output: Option<DecodeOutput>) -> Option<DecodeOutput> {
        self.attended.fetch_add(usize::from(output.is_some()), Ordering::Relaxed);
        output
    }
}

impl Ops for Counting {
    fn shared_attention(&self, input: &SharedInput) -> Option<DecodeOutput> {
        self.count(self.best.shared_attention(input))
    }

    fn quantized_attention(&self, input: &QuantizedInput) -> Option<DecodeOutput> {
        self.count(self.best.quantized_attention(input))
    }
}

#[test]
fn every_decode_step_is_one_of_a_kernel() {
    let prompt = 200;
    let steps = 3;
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        let device = &backend.device;
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 512, 10_000.0, device).unwrap();
        for method in ["ems", "kivi"] {
            let attended = Arc::new(AtomicUsize::new(0));
            let ops = Counting { best: best(), attended: attended.clone() };
            let config = CacheConfig::default().with_ops(Arc::new(ops));
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
            let attended = attended.load(Ordering::Relaxed);
            assert_eq!(attended, steps * SHAPE.layers, "{}, {method}", backend.name);
        }
    }
}
