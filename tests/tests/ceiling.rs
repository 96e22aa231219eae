//! A cache with a ceiling holds no more than it, in prompts and in decoding, whatever its method.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, position::NoPositionEncoding,
};
use briquette_tests::{backends::host, in_one_pass, inputs::Noise, profiles::profile};
use burn::tensor::Device;

const SHAPE: CacheShape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 32 };
const ROWS: usize = 2;
const BUDGET: usize = 40;

fn cache(policy: Policy, ceiling: Option<usize>, device: &Device) -> KvCache {
    let config = CacheConfig::default();
    let config = ceiling.map_or(config.clone(), |bytes| config.with_memory_ceiling(bytes));
    KvCache::with_config(SHAPE, policy.with_profile(profile(SHAPE)), config, device).unwrap()
}

fn attend(cache: &mut KvCache, layer: usize, noise: &mut Noise, new: usize) -> Result<(), Error> {
    let device = cache.device().clone();
    let mut random = |heads| noise.tensor([ROWS, heads, new, SHAPE.head_dim], &device);
    let (q, k, v) = (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
    cache.attend(layer, q, k, v, &NoPositionEncoding).map(drop)
}

/// The same number of tokens in every layer.
fn give(cache: &mut KvCache, noise: &mut Noise, new: usize) {
    (0..SHAPE.layers).for_each(|layer| attend(cache, layer, noise, new).unwrap());
}

/// A prompt in `chunks`, and tokens behind it until one is refused: how many calls were taken, and
/// the most that was held after any.
fn fill(cache: &mut KvCache, chunks: &[usize]) -> (usize, usize, Option<Error>) {
    let mut noise = Noise::new(5);
    let (mut taken, mut most) = (0, 0);
    cache.begin_prompt(Prompt::new(chunks.iter().sum())).unwrap();
    for new in chunks.iter().copied().chain(std::iter::repeat_n(1, 40)) {
        for layer in 0..SHAPE.layers {
            let before = (cache.bytes_held(), cache.kept_positions(layer).unwrap());
            if let Err(error) = attend(cache, layer, &mut noise, new) {
                let after = (cache.bytes_held(), cache.kept_positions(layer).unwrap());
                assert_eq!(before, after, "{error}");
                return (taken, most, Some(error));
            }
            taken += 1;
            most = most.max(cache.bytes_held());
        }
    }
    (taken, most, None)
}

#[test]
fn no_call_goes_beyond_the_ceiling() {
    let device = host();
    let mut refused = Vec::new();
    for policy in in_one_pass(BUDGET) {
        for chunks in [&[90][..], &[30, 30, 30]] {
            let name = policy.name().to_owned();
            let (calls, needs, error) = fill(&mut cache(policy.clone(), None, &device), chunks);
            assert!(error.is_none(), "{name}: {error:?}");
            // What it needs is enough, and less is not.
            let mut enough = cache(policy.clone(), Some(needs), &device);
            let (taken, most, error) = fill(&mut enough, chunks);
            assert!(taken == calls && most == needs, "{name}, {chunks:?}, {needs}: {error:?}");
            for ceiling in [needs - 1, needs * 3 / 4, needs / 4, 1000, 0] {
                let mut less = cache(policy.clone(), Some(ceiling), &device);
                let (taken, most, error) = fill(&mut less, chunks);
                assert!(taken < calls && most <= ceiling, "{name}: {taken} calls, {most} held");
                match error {
                    Some(Error::MemoryCeiling { ceiling: named, held, needed }) => {
                        assert!(named == ceiling && held <= ceiling && needed > ceiling, "{name}");
                    }
                    other => panic!("{name}: {other:?}"),
                }
                refused.push(taken);
            }
        }
    }
    // Some in the first call, and some while tokens are decoded.
    assert!(refused.contains(&0) && refused.iter().any(|&taken| taken > 3 * SHAPE.layers));
}

/// A prompt, a token, a draft of five of which two go, and a token: what the calls returned, the
/// most that was held after any, and why one was refused.
fn draft(cache: &mut KvCache) -> (Vec<Vec<f32>>, usize, Option<Error>) {
    let (device, mut noise) = (cache.device().clone(), Noise::new(6));
    let (mut outputs, mut most) = (Vec::new(), 0);
    for new in [90, 1, 5, 1] {
        if new == 5 {
            cache.begin_decode(new).unwrap();
        }
        for layer in 0..SHAPE.layers {
            let mut random = |heads| noise.tensor([ROWS, heads, new, SHAPE.head_dim], &device);
            let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random);
            let state = |cache: &KvCache| {
                (cache.bytes_held(), cache.tokens_seen(), cache.kept_positions(layer).unwrap())
            };
            let before = state(cache);
            match cache.attend(layer, q, k, v, &NoPositionEncoding) {
                Ok(output) => outputs.push(output.try_into_vec_as().unwrap()),
                Err(error) => {
                    assert_eq!(state(cache), before, "{error}");
                    return (outputs, most, Some(error));
                }
            }
            most = most.max(cache.bytes_held());
        }
        if new == 5 {
            cache.truncate(94).unwrap();
        }
    }
    (outputs, most, None)
}

#[test]
fn a_draft_is_that_of_no_ceiling_or_refused() {
    let device = host();
    let (mut tried, mut refused) = (0, Vec::new());
    for policy in in_one_pass(BUDGET) {
        let name = policy.name().to_owned();
        if policy.schedule().append_only.is_some()
            || policy.schedule().decode_every.is_some() && policy.reducer().makes_clusters()
        {
            continue;
        }
        tried += 1;
        let kept = |cache: &KvCache| -> Vec<_> {
            (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect()
        };
        let mut free = cache(policy.clone(), None, &device);
        let (expected, needs, error) = draft(&mut free);
        assert!(error.is_none(), "{name}: {error:?}");
        for ceiling in [usize::MAX, needs, needs - 1, needs * 3 / 4, 1000] {
            let mut held = cache(policy.clone(), Some(ceiling), &device);
            let (found, most, error) = draft(&mut held);
            assert!(most <= ceiling, "{name}: {most} of {ceiling}");
            // Entries of a cache with a ceiling lie in another order.
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!((found - expected).abs() < 1e-4, "{name}: {found}, {expected}");
            }
            match error {
                None => {
                    assert_eq!(found.len(), expected.len(), "{name}");
                    assert_eq!(kept(&held), kept(&free), "{name}");
                }
                Some(Error::MemoryCeiling { ceiling: named, held, needed }) => {
                    assert!(ceiling < needs, "{name}: {needed} of {needs}");
                    assert!(named == ceiling && held <= ceiling && needed > ceiling, "{name}");
                    refused.push(found.len() / SHAPE.layers);
                }
                error => panic!("{name}: {error:?}"),
            }
        }
    }
    // Some in the prompt, and some in the draft.
    assert!(tried > 20 && refused.contains(&0) && refused.contains(&2), "{tried}: {refused:?}");
}

#[test]
fn a_full_cache_is_refused_before_it_grows() {
    let device = host();
    let mut noise = Noise::new(7);
    // Room for a prompt of 64 and what it is given ahead, and not for a second one.
    let mut small = cache(Policy::full(), None, &device);
    give(&mut small, &mut noise, 64);
    let held = small.bytes_held();
    let mut small = cache(Policy::full(), Some(held), &device);
    give(&mut small, &mut noise, 64);
    let error = attend(&mut small, 0, &mut noise, 600).unwrap_err().to_string();
    assert!(error.contains(&format!("ceiling of {held} ")), "{error}");
    // It goes on within the room it has.
    give(&mut small, &mut noise, 1);
    assert_eq!((small.tokens_seen(), small.bytes_held()), (vec![65; ROWS], held));
}

#[test]
fn copies_are_held_to_the_ceiling_too() {
    let device = host();
    let mut noise = Noise::new(9);
    let policy = Policy::snapkv(Budget::Tokens(BUDGET));
    let config = CacheConfig::default().with_memory_ceiling(200_000);
    let mut one = KvCache::with_config(SHAPE, policy, config, &device).unwrap();
    for layer in 0..SHAPE.layers {
        let mut random = |heads| noise.tensor([1, heads, 90, SHAPE.head_dim], &device);
        let (q, k, v) = (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
        one.attend(layer, q, k, v, &NoPositionEncoding).unwrap();
    }
    let fits = 200_000 / one.bytes_held();
    assert!(one.fork_rows(fits).is_ok());
    let error = one.fork_rows(fits + 1).unwrap_err();
    assert!(matches!(error, Error::MemoryCeiling { ceiling: 200_000, .. }), "{error}");
}
