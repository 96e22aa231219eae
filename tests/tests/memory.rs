//! The bytes that a cache reports are those that the device holds.

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, device::bytes_in_use, position::RotaryEmbedding,
};
use briquette_tests::{
    backends::{backends, is_cubecl},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::tensor::{DType, Device};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 64 };

/// Bytes that the device gives back when the cache goes.
fn freed(mut cache: KvCache, prompt: usize, device: &Device) -> (usize, usize) {
    let shape = cache.shape();
    let rope = RotaryEmbedding::new(shape.head_dim, 2048, 10_000.0, device).unwrap();
    let mut noise = Noise::new(3);
    for call in 0..4 {
        let new = if call == 0 { prompt } else { 1 };
        for layer in 0..shape.layers {
            let mut random = |heads| noise.tensor([2, heads, new, shape.head_dim], device);
            let (q, k, v) =
                (random(shape.query_heads), random(shape.kv_heads), random(shape.kv_heads));
            cache.attend(layer, q, k, v, &rope).unwrap();
        }
    }
    let held = cache.bytes_held();
    device.sync().unwrap();
    let before = bytes_in_use(device).unwrap();
    drop(cache);
    device.sync().unwrap();
    let after = bytes_in_use(device).unwrap();
    (held, (before - after) as usize)
}

#[test]
fn bytes_held_are_the_devices() {
    // The positions of the last call, which all layers share, are not counted; and a device rounds
    // each of a few dozen buffers up: wgpu to 32 bytes, CUDA to 512. Caches are larger there, so
    // that this is little of them.
    let uncounted = |backend: &str, held: usize| if backend == "wgpu" { 512 } else { held / 50 };
    let tokens = |backend: &str| if backend == "wgpu" { (200, 96) } else { (800, 384) };
    for backend in backends() {
        if bytes_in_use(&backend.device).is_none() {
            assert!(!is_cubecl(&backend.name), "{}: CubeCL tells what it holds", backend.name);
            continue;
        }
        // Devices that pad rows pad those of the odd head size, keys and values with them.
        let (prompt, budget) = tokens(&backend.name);
        let odd = CacheShape { head_dim: 80, ..SHAPE };
        let odd = ["full", "ems", "h2o"].map(|name| (name.to_owned(), odd));
        let all = in_one_pass(budget).map(|policy| (policy.name().to_owned(), SHAPE));
        for (method, shape) in all.chain(odd) {
            for dtype in backend.dtypes().into_iter().filter(|dtype| *dtype != DType::BF16) {
                let policy = named(&method, Budget::Tokens(budget));
                let policy = policy.with_profile(profile(shape));
                let config = CacheConfig::default().with_dtype(dtype);
                let cache = KvCache::with_config(shape, policy, config, &backend.device).unwrap();
                let (held, freed) = freed(cache, prompt, &backend.device);
                println!("{}, {method}, {dtype:?}: {held} held, {freed} freed", backend.name);
                assert!(
                    (held..=held + uncounted(&backend.name, held)).contains(&freed),
                    "{}, {method}, {dtype:?}: says it holds {held} bytes, the device got {freed} back",
                    backend.name
                );
            }
        }
    }
}
