//! Sparse attention over prompts against dense attention under the same masks, in f64.

use std::sync::Arc;

use briquette::{
    Budget, CacheShape, Error, KvCache, Policy, Profile, Prompt, SparsePrefill,
    ops::{HeadPattern, Reference, Visibility},
    position::NoPositionEncoding,
};
use briquette_ops::{AttentionInput, Scoring, closest_patterns};
use briquette_tests::{
    backends::{backends, host},
    inputs::{Noise, draw_profile},
    policy::profile as library_profile,
    reference::{
        Head,
        attention::weighted_mean,
        sparse::{mask, masked_weights},
    },
};
use burn::tensor::{Device, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 8 };
const TOKENS: usize = 700;
const SCALE: f64 = 0.353_553_390_593_273_8;

fn inputs(seed: u64, tokens: usize, device: &Device) -> [Tensor<4>; 3] {
    let mut noise = Noise::new(seed);
    [(SHAPE.query_heads, 2.0), (SHAPE.kv_heads, 1.0), (SHAPE.kv_heads, 1.0)]
        .map(|(heads, factor)| noise.tensor([1, heads, tokens, SHAPE.head_dim], device) * factor)
}

fn read(x: &Tensor<4>) -> Vec<Head> {
    let [_, _, tokens, channels] = x.dims();
    let all = x.clone().try_into_vec_as::<f32>().unwrap();
    let rows = |head: &[f32]| -> Head {
        head.chunks(channels).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
    };
    all.chunks(tokens * channels).map(rows).collect()
}

fn cache(prefill: Option<SparsePrefill>, policy: Policy, device: &Device) -> KvCache {
    let policy = prefill.into_iter().fold(policy, Policy::with_sparse_prefill);
    KvCache::new(SHAPE, policy, device).unwrap()
}

fn attend(cache: &mut KvCache, [q, k, v]: [Tensor<4>; 3]) -> Tensor<4> {
    cache.attend(0, q, k, v, &NoPositionEncoding).unwrap()
}

fn largest_difference(a: &Tensor<4>, b: &Tensor<4>) -> f32 {
    (a.clone() - b.clone()).abs().max().into_scalar::<f32>()
}

/// One for each query head.
const PATTERNS: [[HeadPattern; 4]; 2] = [
    [
        HeadPattern::AShape { first: 3, recent: 50 },
        HeadPattern::VerticalSlash { vertical: 60, slash: 140 },
        HeadPattern::Blocks { blocks: 3 },
        HeadPattern::Antidiagonal { stride: 8, threshold: 0.7 },
    ],
    [
        HeadPattern::Antidiagonal { stride: 16, threshold: 0.5 },
        HeadPattern::Blocks { blocks: 1 },
        HeadPattern::VerticalSlash { vertical: 0, slash: 0 },
        HeadPattern::Dense,
    ],
];

#[test]
fn each_pattern_is_dense_attention_under_its_mask() {
    for backend in backends() {
        let device = backend.device.clone();
        for patterns in PATTERNS {
            let [q, k, v] = inputs(3, TOKENS, &device);
            let prefill = SparsePrefill::of_heads(vec![patterns.to_vec()]);
            let mut sparse = cache(Some(prefill), Policy::full(), &device);
            let output = attend(&mut sparse, [q.clone(), k.clone(), v.clone()]);
            let (output, q, k, v) = (read(&output), read(&q), read(&k), read(&v));
            for (head, pattern) in patterns.into_iter().enumerate() {
                let (k, v) = (&k[head / 2], &v[head / 2]);
                let mask = mask(pattern, &q[head], k, SCALE);
                let seen = mask.iter().flatten().filter(|seen| **seen).count();
                let all = TOKENS * (TOKENS + 1) / 2;
                assert_eq!(
                    seen == all,
                    pattern == HeadPattern::Dense,
                    "{pattern:?}: {seen} of {all}"
                );
                let weights = masked_weights(&mask, &q[head], k, SCALE);
                for (token, (row, found)) in weights.iter().zip(&output[head]).enumerate() {
                    for (x, y) in weighted_mean(row, v).iter().zip(found) {
                        assert!((x - y).abs() < 2e-5, "{pattern:?}, query {token}: {x} and {y}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_padded_row_has_the_masks_it_has_alone() {
    for backend in backends() {
        let device = backend.device.clone();
        for patterns in PATTERNS {
            let prefill = SparsePrefill::of_heads(vec![patterns.to_vec()]);
            let (padding, long) = (77, TOKENS);
            let rows = [inputs(5, long, &device), inputs(6, long - padding, &device)];
            let alone = rows
                .clone()
                .map(|row| attend(&mut cache(Some(prefill.clone()), Policy::full(), &device), row));
            let [first, second] = rows;
            let batch: Vec<Tensor<4>> = first
                .into_iter()
                .zip(second)
                .map(|(long_row, short)| {
                    let [_, heads, _, channels] = short.dims();
                    let fill = Tensor::ones([1, heads, padding, channels], &device) * 9.0;
                    Tensor::cat(vec![long_row, Tensor::cat(vec![fill, short], 2)], 0)
                })
                .collect();
            let mut cache = cache(Some(prefill), Policy::full(), &device);
            cache.begin_prompt(Prompt::new(long).left_padding(vec![0, padding])).unwrap();
            let together = attend(&mut cache, batch.try_into().unwrap());
            let first = together.clone().narrow(0, 0, 1);
            let second = together.narrow(0, 1, 1).narrow(2, padding, long - padding);
            assert!(largest_difference(&first, &alone[0]) < 2e-5);
            assert!(largest_difference(&second, &alone[1]) < 2e-5);
        }
    }
}

#[test]
fn a_chunk_of_padding_alone_sees_nothing() {
    for backend in backends() {
        let device = backend.device.clone();
        for patterns in PATTERNS {
            let prefill = SparsePrefill::of_heads(vec![patterns.to_vec()]);
            let mut cache = cache(Some(prefill), Policy::full(), &device);
            cache.begin_prompt(Prompt::new(140).left_padding(vec![7])).unwrap();
            let all = inputs(2, 140, &device);
            let part = |from: usize, count: usize| all.clone().map(|x| x.narrow(2, from, count));
            let nothing = attend(&mut cache, part(0, 5));
            assert_eq!(nothing.abs().max().into_scalar::<f32>(), 0.0);
            let rest = attend(&mut cache, part(5, 135));
            // The first token sees itself alone.
            let first = rest.narrow(2, 2, 1).narrow(1, 3, 1);
            let itself = all[2].clone().narrow(2, 7, 1).narrow(1, 1, 1);
            assert!(largest_difference(&first, &itself) < 2e-5);
        }
    }
}

#[test]
fn scorers_observe_the_weights_that_are_computed() {
    for backend in backends() {
        let device = backend.device.clone();
        let pattern = HeadPattern::AShape { first: 4, recent: 30 };
        let [q, k, v] = inputs(8, 200, &device);
        let mut sparse =
            cache(Some(SparsePrefill::of_all(pattern)), Policy::h2o(Budget::Tokens(40)), &device);
        attend(&mut sparse, [q.clone(), k.clone(), v]);
        let (q, k) = (read(&q), read(&k));
        for (kv_head, kept) in sparse.kept_positions(0).unwrap()[0].iter().enumerate() {
            let mut sums = [0.0; 200];
            for q in &q[2 * kv_head..][..2] {
                let mask = mask(pattern, q, &k[kv_head], SCALE);
                for row in masked_weights(&mask, q, &k[kv_head], SCALE) {
                    sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight);
                }
            }
            let mut expected: Vec<usize> = (0..180).collect();
            expected.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]));
            expected.truncate(20);
            expected.extend(180..200);
            expected.sort_unstable();
            assert_eq!(*kept, expected);
        }
    }
}

#[test]
fn chunks_and_decoded_tokens() {
    for backend in backends() {
        let device = backend.device.clone();
        let pattern = HeadPattern::AShape { first: 10, recent: 40 };
        let all = inputs(9, 300, &device);
        let part = |from: usize, count: usize| all.clone().map(|x| x.narrow(2, from, count));
        let prefill = SparsePrefill::of_all(pattern);
        let mut whole = cache(Some(prefill.clone()), Policy::full(), &device);
        let output = attend(&mut whole, part(0, 299));
        // What no estimate decides does not change with chunks.
        let mut chunks = cache(Some(prefill), Policy::full(), &device);
        chunks.begin_prompt(Prompt::new(299)).unwrap();
        let outputs = [(0, 120), (120, 1), (121, 178)]
            .map(|(from, count)| attend(&mut chunks, part(from, count)));
        assert!(largest_difference(&Tensor::cat(outputs.to_vec(), 2), &output) < 2e-5);
        // A decoded token sees everything.
        let mut dense = cache(None, Policy::full(), &device);
        let of_dense = attend(&mut dense, part(0, 299));
        assert!(largest_difference(&of_dense, &output) > 0.1);
        let decoded = [&mut whole, &mut dense].map(|cache| attend(cache, part(299, 1)));
        assert!(largest_difference(&decoded[0], &decoded[1]) < 2e-5);
    }
}

#[test]
fn the_search_finds_the_pattern_that_loses_least() {
    for backend in backends() {
        let device = backend.device.clone();
        let [queries, keys, values] = inputs(4, 400, &device);
        // Head 0 looks at the first tokens, the others far back from where they are.
        let input = AttentionInput {
            queries,
            keys,
            values,
            visibility: Visibility::Causal,
            scoring: Scoring::plain(SCALE),
            column_sums: false,
            column_squares: false,
        };
        let few = HeadPattern::AShape { first: 1, recent: 5 };
        let many = HeadPattern::AShape { first: 1, recent: 300 };
        let found = closest_patterns(&Reference, input.clone(), &[few, many]).unwrap();
        assert_eq!(found, [many; 4]);
        assert!(closest_patterns(&Reference, input, &[]).is_err());
    }
}

#[test]
fn patterns_of_a_profile_are_those_of_its_heads() {
    let device = host();
    let [q, k, v] = inputs(9, 300, &device);
    let all = || [q.clone(), k.clone(), v.clone()];
    let patterns = vec![PATTERNS[0].to_vec()];
    let mut told = cache(Some(SparsePrefill::of_heads(patterns.clone())), Policy::full(), &device);
    let expected = attend(&mut told, all());

    let policy = Policy::full().with_sparse_prefill(SparsePrefill::of_profile());
    assert!(policy.reads_profile());
    let missing = KvCache::new(SHAPE, policy.clone(), &device).unwrap_err();
    assert!(matches!(missing, Error::ProfileMissing { .. }), "{missing}");
    let drawn = draw_profile(3, SHAPE.layers, SHAPE.query_heads);
    let mut profile = library_profile(&drawn, SHAPE);
    let with = |profile: &Profile| policy.clone().with_profile(Arc::new(profile.clone()));
    let unsearched = KvCache::new(SHAPE, with(&profile), &device).unwrap_err();
    assert!(unsearched.to_string().contains("calibrate --patterns"), "{unsearched}");

    profile.patterns = Some(patterns);
    let mut read = KvCache::new(SHAPE, with(&profile), &device).unwrap();
    assert_eq!(largest_difference(&attend(&mut read, all()), &expected), 0.0);
    let again = Profile::from_json(&profile.to_json().unwrap()).unwrap();
    assert_eq!(again, profile);

    for wrong in
        [vec![], vec![vec![HeadPattern::Dense]], vec![vec![HeadPattern::Blocks { blocks: 0 }; 4]]]
    {
        profile.patterns = Some(wrong);
        let error = KvCache::new(SHAPE, with(&profile), &device).unwrap_err();
        assert!(matches!(error, Error::InvalidProfile { .. }), "{error}");
    }
}

#[test]
fn patterns_that_cannot_be_are_refused() {
    let device = host();
    let refused =
        |prefill| match KvCache::new(SHAPE, Policy::full().with_sparse_prefill(prefill), &device) {
            Err(Error::InvalidParameter { parameter: "sparse_prefill", .. }) => {}
            other => panic!("{other:?}"),
        };
    refused(SparsePrefill::of_heads(vec![vec![HeadPattern::Dense; 3]]));
    refused(SparsePrefill::of_heads(vec![]));
    refused(SparsePrefill::of_all(HeadPattern::Blocks { blocks: 0 }));
    refused(SparsePrefill::of_all(HeadPattern::AShape { first: 4, recent: 0 }));
    for (stride, threshold) in [(0, 0.9), (7, 0.9), (256, 0.9), (8, 1.5), (8, f64::NAN), (8, -0.1)]
    {
        refused(SparsePrefill::of_all(HeadPattern::Antidiagonal { stride, threshold }));
    }
    for prefill in [SparsePrefill::minference(), SparsePrefill::xattention()] {
        KvCache::new(SHAPE, Policy::full().with_sparse_prefill(prefill), &device).unwrap();
    }
}
