//! Burn's own rotary encoding as the encoding of a cache, on every device of the build.

use briquette::{
    Budget, CacheShape, Error, KvCache, Policy, Prompt,
    position::{PositionEncoding, RotaryEmbedding, Rotated},
};
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
    named,
};
use burn::{
    nn::{RotaryEncoding, RotaryEncodingConfig},
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const POSITIONS: usize = 48;

fn rope(positions: usize, device: &Device) -> RotaryEncoding {
    RotaryEncodingConfig::new(positions, SHAPE.head_dim).init(device)
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.cast(DType::F32).try_into_vec_as::<f32>().unwrap()
}

/// Each row is what Burn makes of it at its position, whatever stands beside it; padding is finite.
#[test]
fn rows_at_any_positions_are_what_burn_makes_of_them() {
    const DIMS: [usize; 4] = [2, 3, 5, SHAPE.head_dim];
    let [batch, heads, tokens, _] = DIMS;
    for backend in backends() {
        let device = &backend.device;
        let rope = rope(POSITIONS, device);
        for dtype in backend.dtypes() {
            let x = Noise::new(1).tensor(DIMS, device).cast(dtype);
            for of_heads in [1, heads] {
                let mut rng = ChaCha8Rng::seed_from_u64(of_heads as u64);
                let mut positions: Vec<i64> = (0..batch * of_heads * tokens)
                    .map(|_| rng.random_range(0..=POSITIONS as i64) - 1)
                    .collect();
                positions[..2].copy_from_slice(&[POSITIONS as i64 - 1, -1]);
                let data = TensorData::new(positions.clone(), [batch, of_heads, tokens]);
                let found = rope.encode(x.clone(), Tensor::<3, Int>::from_data(data, device));
                assert_eq!((found.dims(), found.dtype()), (DIMS, dtype));
                for place in 0..batch * heads * tokens {
                    let (row, head, token) =
                        (place / tokens / heads, place / tokens % heads, place % tokens);
                    let own = if of_heads == 1 { row } else { row * heads + head };
                    let of_place = |x: &Tensor<4>| {
                        x.clone().slice([row..row + 1, head..head + 1, token..token + 1])
                    };
                    let found = numbers(of_place(&found));
                    let Ok(position) = usize::try_from(positions[own * tokens + token]) else {
                        assert!(found.iter().all(|x| x.is_finite()));
                        continue;
                    };
                    let burns = rope.apply(of_place(&x).cast(DType::F32), position);
                    let burns = numbers(burns.cast(dtype));
                    if backend.name == "flex" {
                        assert_eq!(found, burns, "{dtype:?}, position {position}");
                    }
                    let most = if dtype == DType::F32 { 1e-6 } else { 2e-2 };
                    for (found, burns) in found.iter().zip(&burns) {
                        let apart = (found - burns).abs();
                        assert!(apart <= most, "{}, {dtype:?}: {apart}", backend.name);
                    }
                }
            }
        }
    }
}

/// Channels that Burn's encoding pairs as neighbours, where a [`RotaryEmbedding`] pairs them: half
/// a head apart.
fn halves(x: Tensor<4>) -> Tensor<4> {
    let [batch, heads, tokens, head_dim] = x.dims();
    x.reshape([batch, heads, tokens, head_dim / 2, 2])
        .swap_dims(3, 4)
        .reshape([batch, heads, tokens, head_dim])
}

/// However a policy encodes positions, it does the same as with a [`RotaryEmbedding`] over channels
/// in another order.
#[test]
fn policies_encode_by_it() {
    let budget = Budget::Tokens(48);
    for backend in backends() {
        let device = &backend.device;
        let burns = rope(256, device);
        let ours = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap();
        let mut names = vec!["streaming-llm", "ems", "expected-attention", "non-causal"];
        if backend.is_quick() {
            names.extend(["full", "tova", "snapkv", "cake", "d2o", "kvmerger", "kivi", "capkv"]);
        }
        for name in names {
            let new = || KvCache::new(SHAPE, named(name, budget), device).unwrap();
            let (mut cache, mut other) = (new(), new());
            let mut noise = Noise::new(2);
            for new in [100].into_iter().chain([1; 40]) {
                for layer in 0..SHAPE.layers {
                    let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
                        .map(|heads| noise.tensor([2, heads, new, SHAPE.head_dim], device));
                    let split = [q.clone(), k.clone()].map(halves);
                    let found = cache.attend(layer, q, k, v.clone(), &burns).unwrap();
                    let [q, k] = split;
                    let expected = other.attend(layer, q, k, v, &ours).unwrap();
                    let apart = (found - expected).abs().max().try_into_scalar::<f32>().unwrap();
                    assert!(apart < 1e-4, "{name}, {}: {apart} apart", backend.name);
                }
            }
            for layer in 0..SHAPE.layers {
                let [found, expected] =
                    [&cache, &other].map(|cache| cache.kept_positions(layer).unwrap());
                assert_eq!(found, expected, "{name}, {}", backend.name);
            }
        }
    }
}

/// A model that rotates all rows of a padded batch from one start counts columns: what is kept and
/// read is what the cache makes of positions of each row.
#[test]
fn rows_rotated_from_one_start_count_columns() {
    let device = host();
    let rope = rope(POSITIONS, &device);
    let budget = Budget::Tokens(16);
    let snapkv = Policy::snapkv(budget).with_window(4);
    for policy in [Policy::full(), snapkv, Policy::h2o(budget), Policy::tova(budget)] {
        let name = policy.name();
        let new = || KvCache::new(SHAPE, policy.clone(), &device).unwrap();
        let (mut rotated, mut cache) = (new(), new());
        for cache in [&mut rotated, &mut cache] {
            cache.begin_prompt(Prompt::new(30).left_padding(vec![12, 0])).unwrap();
        }
        let (mut noise, mut columns) = (Noise::new(4), 0);
        for new in [30].into_iter().chain([1; 6]) {
            for layer in 0..SHAPE.layers {
                let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
                    .map(|heads| noise.tensor([2, heads, new, SHAPE.head_dim], &device));
                let [turned, key] = [&q, &k].map(|x| rope.apply(x.clone(), columns));
                let found = rotated.attend(layer, turned, key, v.clone(), &Rotated).unwrap();
                let expected = cache.attend(layer, q, k, v, &rope).unwrap();
                let apart = (found - expected).abs().max().try_into_scalar::<f32>().unwrap();
                assert!(apart < 1e-4, "{name}: {apart} apart");
            }
            columns += new;
        }
        assert_eq!(rotated.tokens_seen(), [24, 36]);
        for layer in 0..SHAPE.layers {
            let [found, expected] =
                [&rotated, &cache].map(|cache| cache.kept_positions(layer).unwrap());
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Beyond the table there is an error with its length. A policy that re-counts positions needs one
/// as long as what it holds.
#[test]
fn positions_end_with_the_table() {
    let device = host();
    let rope = rope(24, &device);
    let mut noise = Noise::new(3);
    let mut give = |cache: &mut KvCache, new: usize| {
        (0..SHAPE.layers).try_for_each(|layer| {
            let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
                .map(|heads| noise.tensor([1, heads, new, SHAPE.head_dim], &device));
            cache.attend(layer, q, k, v, &rope).map(drop)
        })
    };
    for (first, new, position) in [(0, 25, 24), (20, 5, 24), (24, 1, 24)] {
        let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
        if first > 0 {
            give(&mut cache, first).unwrap();
        }
        let seen = cache.tokens_seen();
        match give(&mut cache, new) {
            Err(Error::PositionOverflow { position: found, max: 24 }) => {
                assert_eq!(found, position);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(cache.tokens_seen(), seen);
    }
    let mut cache =
        KvCache::new(SHAPE, Policy::streaming_llm(Budget::Tokens(16)), &device).unwrap();
    give(&mut cache, 20).unwrap();
    for _ in 0..40 {
        give(&mut cache, 1).unwrap();
    }
    assert_eq!((cache.tokens_seen(), cache.tokens_kept(0).unwrap()), (vec![60], vec![16]));
}

#[test]
fn an_encoding_of_other_heads_is_refused() {
    let device = host();
    let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    let x = |heads: usize| Tensor::<4>::zeros([1, heads, 3, SHAPE.head_dim], &device);
    let rope = RotaryEncodingConfig::new(24, 8).init(&device);
    let error = cache.attend(0, x(4), x(2), x(2), &rope).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("is 8") && error.contains("16, as in the cache"), "{error}");
}
