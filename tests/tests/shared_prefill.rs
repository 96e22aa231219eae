//! One prefill for the caches of all methods leaves each as a prefill of its own does, number for
//! number. On every device of the build.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, SharedPrefill, SparsePrefill,
    ops::HeadPattern,
    position::{PositionEncoding, RotaryEmbedding},
};
use briquette_tests::{backends::backends, in_one_pass, inputs::Noise, profiles::profile};
use burn::tensor::{DType, Device, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
const PROMPT: usize = 90;
const PADDING: [usize; 2] = [0, 17];
const DECODED: usize = 12;

/// Queries, keys and values of each layer.
type Layers = Vec<[Tensor<4>; 3]>;

fn layers(seed: u64, device: &Device) -> Layers {
    let mut noise = Noise::new(seed);
    let mut random = |heads| noise.tensor([2, heads, PROMPT + DECODED, SHAPE.head_dim], device);
    let layer = |_| [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random);
    (0..SHAPE.layers).map(layer).collect()
}

fn columns(layer: &[Tensor<4>; 3], start: usize, length: usize) -> [Tensor<4>; 3] {
    layer.clone().map(|x| x.narrow(2, start, length))
}

fn prompt() -> Prompt {
    Prompt::new(PROMPT).left_padding(PADDING.to_vec())
}

fn numbers(x: Tensor<4>) -> Vec<f32> {
    x.try_into_vec_as().unwrap()
}

fn caches(policies: &[Policy], device: &Device) -> Vec<KvCache> {
    let cache = |policy: &Policy| KvCache::new(SHAPE, policy.clone(), device).unwrap();
    policies.iter().map(cache).collect()
}

/// The outputs of a cache for the tokens behind its prompt, and the positions it holds.
fn rest(
    cache: &mut KvCache,
    layers: &Layers,
    encoding: &dyn PositionEncoding,
) -> (Vec<Vec<f32>>, String) {
    let mut outputs = Vec::new();
    for token in PROMPT..PROMPT + DECODED {
        for (layer, qkv) in layers.iter().enumerate() {
            let [q, k, v] = columns(qkv, token, 1);
            outputs.push(numbers(cache.attend(layer, q, k, v, encoding).unwrap()));
        }
    }
    let kept = (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap());
    (outputs, format!("{:?} {}", kept.collect::<Vec<_>>(), cache.bytes_held()))
}

#[test]
fn every_method_ends_as_after_a_prefill_of_its_own() {
    for backend in backends() {
        let device = &backend.device;
        let layers = layers(1, device);
        let encoding = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap();
        let with_profile = |policy: Policy| match policy.reads_profile() {
            true => policy.with_profile(profile(SHAPE)),
            false => policy,
        };
        let all: Vec<Policy> =
            in_one_pass(40).filter(Policy::can_share_prefill).map(with_profile).collect();
        let few = ["full", "snapkv", "h2o", "d2o", "ems", "streaming-llm", "adakv"];
        let few = |policy: &Policy| backend.is_quick() || few.contains(&policy.name());
        let policies: Vec<Policy> = all.into_iter().filter(few).collect();
        assert!(policies.len() >= 7, "{}", policies.len());
        let mut together = caches(&policies, device);
        let mut outputs = Vec::new();
        let mut prefill = SharedPrefill::new(&mut together, prompt()).unwrap();
        for (layer, qkv) in layers.iter().enumerate() {
            let [q, k, v] = columns(qkv, 0, PROMPT);
            outputs.push(numbers(prefill.attend(layer, q, k, v, &encoding).unwrap()));
        }
        for (policy, shared) in policies.iter().zip(&mut together) {
            let mut alone = KvCache::new(SHAPE, policy.clone(), device).unwrap();
            alone.begin_prompt(prompt()).unwrap();
            for (layer, qkv) in layers.iter().enumerate() {
                let [q, k, v] = columns(qkv, 0, PROMPT);
                let output = numbers(alone.attend(layer, q, k, v, &encoding).unwrap());
                // Another policy's attention may have been summed in another order.
                let close = output.iter().zip(&outputs[layer]).all(|(a, b)| (a - b).abs() < 1e-4);
                assert!(close, "{} on {}", policy.name(), backend.name);
            }
            let (shared, alone) =
                (rest(shared, &layers, &encoding), rest(&mut alone, &layers, &encoding));
            assert_eq!(shared.1, alone.1, "{} on {}", policy.name(), backend.name);
            assert!(shared.0 == alone.0, "{} on {}", policy.name(), backend.name);
        }
    }
}

#[test]
fn what_cannot_share_is_refused_and_nothing_changes() {
    let device = briquette_tests::backends::host();
    let layers = layers(2, &device);
    let encoding = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, &device).unwrap();
    let full = || KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    let with = |config| KvCache::with_config(SHAPE, Policy::full(), config, &device).unwrap();
    let told = |mut caches: Vec<KvCache>| {
        let error = SharedPrefill::new(&mut caches, prompt()).unwrap_err();
        let refused = matches!(error, Error::SharedPrefill { .. });
        assert!(refused, "{error:?}");
        error.to_string()
    };
    assert!(told(Vec::new()).contains("there is none"));

    let mut begun = full();
    let [q, k, v] = columns(&layers[0], 0, 5);
    begun.attend(0, q, k, v, &encoding).unwrap();
    assert!(
        told(vec![full(), begun])
            .contains("cache 1 of those that share a prefill: it holds tokens")
    );

    let pattern = HeadPattern::AShape { first: 4, recent: 16 };
    let sparse = Policy::full().with_sparse_prefill(SparsePrefill::of_all(pattern));
    assert!(told(vec![KvCache::new(SHAPE, sparse, &device).unwrap()]).contains("sparse"));

    let half = with(CacheConfig::default().with_dtype(DType::F16));
    assert!(told(vec![full(), full(), half]).contains("cache 2"));
    let shape = CacheShape { layers: 4, ..SHAPE };
    let deep = KvCache::new(shape, Policy::full(), &device).unwrap();
    assert!(told(vec![full(), deep]).contains("layers: 4"));
}

#[test]
fn after_an_error_all_caches_are_empty_and_take_the_prompt_again() {
    let device = briquette_tests::backends::host();
    let layers = layers(3, &device);
    let encoding = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, &device).unwrap();
    let budget = Budget::Tokens(30);
    let mut caches = caches(&[Policy::full(), Policy::h2o(budget), Policy::tova(budget)], &device);
    let mut prefill = SharedPrefill::new(&mut caches, prompt()).unwrap();
    let [q, k, v] = columns(&layers[0], 0, PROMPT);
    prefill.attend(0, q, k, v, &encoding).unwrap();
    let [q, k, v] = columns(&layers[1], 0, PROMPT - 1);
    let error = prefill.attend(1, q, k, v, &encoding).unwrap_err();
    assert!(
        matches!(&error, Error::TensorShape { expected, .. } if expected.contains("90")),
        "{error}"
    );
    assert!(caches.iter().all(|cache| cache.tokens_seen().is_empty() && cache.bytes_held() == 0));

    // Nor is one begun if another refuses the padding.
    let wrong = Prompt::new(PROMPT).left_padding(vec![PROMPT; 2]);
    assert!(SharedPrefill::new(&mut caches, wrong).is_err());
    let mut prefill = SharedPrefill::new(&mut caches, prompt()).unwrap();
    for (layer, qkv) in layers.iter().enumerate() {
        let [q, k, v] = columns(qkv, 0, PROMPT);
        prefill.attend(layer, q, k, v, &encoding).unwrap();
    }
    assert_eq!(
        caches[1].tokens_kept(2).unwrap(),
        [30, 30, 30, 30][..caches[1].tokens_kept(2).unwrap().len()]
    );
}
