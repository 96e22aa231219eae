//! Attention modules of Burn over a cache, beside their own `forward`.

use briquette::{
    Budget, CacheShape, Error, KvCache, Policy, Prompt,
    nn::{CachedAttention, CachedEncoder},
};
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
    named,
};
use burn::{
    module::Param,
    nn::{
        attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask},
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Bool, Device, Tensor, TensorData},
};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const ROWS: usize = 2;
const PROMPT: usize = 50;
const TOKENS: usize = PROMPT + 9;
const BUDGET: usize = 40;

/// Policies of every kind: by queries, keys, weights and positions, per head and per layer, with
/// entries that are merged, shared and quantized.
const POLICIES: [&str; 10] =
    ["streaming-llm", "snapkv", "h2o", "tova", "knorm", "keydiff", "adakv", "d2o", "ems", "kivi"];

fn shape(heads: usize) -> CacheShape {
    CacheShape { layers: 1, query_heads: heads, kv_heads: heads, head_dim: WIDTH / heads }
}

fn tokens(seed: u64, device: &Device) -> Tensor<3> {
    let x = Noise::new(seed).tensor([1, ROWS, TOKENS, WIDTH], device);
    x.reshape([ROWS, TOKENS, WIDTH])
}

/// An encoder whose norms differ, so that none takes the place of another.
fn encoder(norm_first: bool, device: &Device) -> TransformerEncoder {
    let config = TransformerEncoderConfig::new(WIDTH, 96, HEADS, 3).with_norm_first(norm_first);
    let mut encoder = config.init(device);
    let mut noise = Noise::new(1);
    let mut scale = || -> Param<Tensor<1>> {
        let around = noise.tensor([1, 1, 1, WIDTH], device).reshape([WIDTH]);
        Param::from_tensor(around * 0.3 + 1.0)
    };
    for layer in &mut encoder.layers {
        layer.norm_1.gamma = scale();
        layer.norm_2.gamma = scale();
    }
    encoder
}

/// Starts and lengths of calls: a prompt in one of these ways, then tokens one at a time.
fn calls(prompt: &[(usize, usize)]) -> Vec<(usize, usize)> {
    prompt.iter().copied().chain((PROMPT..TOKENS).map(|token| (token, 1))).collect()
}

fn farthest(a: Tensor<3>, b: Tensor<3>) -> f32 {
    (a - b).abs().max().try_into_scalar().unwrap()
}

#[test]
fn attention_over_a_cache_is_burns_own_under_a_causal_mask() {
    for backend in backends() {
        let device = &backend.device;
        for heads in [1, HEADS] {
            let attention = MultiHeadAttentionConfig::new(WIDTH, heads).init(device);
            let x = tokens(2, device);
            let mask = generate_autoregressive_mask(ROWS, TOKENS, device);
            let whole = attention.forward(MhaInput::self_attn(x.clone()).mask_attn(mask)).context;
            let mut cache = KvCache::new(shape(heads), Policy::full(), device).unwrap();
            for (start, new) in calls(&[(0, PROMPT)]) {
                let x = x.clone().narrow(1, start, new);
                let found = attention.forward_with(x, cache.layer(0).unwrap()).unwrap();
                let off = farthest(found, whole.clone().narrow(1, start, new));
                assert!(off < 1e-4, "{heads} heads on {}, {start}: {off}", backend.name);
            }
        }
    }
}

#[test]
fn an_encoder_over_a_cache_is_burns_own_under_a_causal_mask() {
    for backend in backends() {
        let device = &backend.device;
        for norm_first in [false, true] {
            let encoder = encoder(norm_first, device);
            let x = tokens(3, device);
            let mask = generate_autoregressive_mask(ROWS, TOKENS, device);
            let input = TransformerEncoderInput::new(x.clone()).mask_attn(mask);
            let whole = encoder.forward(input);
            for prompt in [&[(0, PROMPT)][..], &[(0, 30), (30, PROMPT - 30)]] {
                let mut cache =
                    KvCache::new(encoder.cache_shape(), Policy::full(), device).unwrap();
                cache.begin_prompt(Prompt::new(PROMPT)).unwrap();
                for (start, new) in calls(prompt) {
                    let x = x.clone().narrow(1, start, new);
                    let found = encoder.forward_with(x, &mut cache).unwrap();
                    let off = farthest(found, whole.clone().narrow(1, start, new));
                    let what = format!("norm first: {norm_first}, on {}", backend.name);
                    assert!(off < 1e-4, "{what}, {start}: {off}");
                }
            }
        }
    }
}

#[test]
fn a_padded_batch_is_burns_own_under_both_masks() {
    let device = host();
    let padding = [0, 17];
    let encoder = encoder(true, &device);
    let x = tokens(4, &device);
    let padded = padding.iter().flat_map(|&padding| (0..TOKENS).map(move |at| at < padding));
    let padded = TensorData::new(padded.collect(), [ROWS, TOKENS]);
    let input = TransformerEncoderInput::new(x.clone())
        .mask_pad(Tensor::<2, Bool>::from_data(padded, &device))
        .mask_attn(generate_autoregressive_mask(ROWS, TOKENS, &device));
    let whole = encoder.forward(input);
    let mut cache = KvCache::new(encoder.cache_shape(), Policy::full(), &device).unwrap();
    cache.begin_prompt(Prompt::new(PROMPT).left_padding(padding.to_vec())).unwrap();
    for (start, new) in calls(&[(0, 30), (30, PROMPT - 30)]) {
        let found = encoder.forward_with(x.clone().narrow(1, start, new), &mut cache).unwrap();
        for (row, padding) in padding.into_iter().enumerate() {
            let from = padding.saturating_sub(start);
            let own = |x: Tensor<3>, start: usize| {
                x.narrow(0, row, 1).narrow(1, start + from, new - from)
            };
            let off = farthest(own(found.clone(), 0), own(whole.clone(), start));
            assert!(off < 1e-4, "row {row}, {start}: {off}");
        }
    }
    assert_eq!(cache.tokens_seen(), padding.map(|padding| TOKENS - padding));
}

#[test]
fn policies_decode_behind_an_encoder() {
    let device = host();
    let encoder = encoder(false, &device);
    let x = tokens(5, &device);
    let run = |policy: Policy| {
        let mut cache = KvCache::new(encoder.cache_shape(), policy, &device).unwrap();
        let forward = |(start, new)| {
            encoder.forward_with(x.clone().narrow(1, start, new), &mut cache).unwrap()
        };
        let outputs: Vec<Tensor<3>> = calls(&[(0, PROMPT)]).into_iter().map(forward).collect();
        (cache, outputs)
    };
    let (full, expected) = run(Policy::full());
    for name in POLICIES {
        let policy = named(name, Budget::Tokens(BUDGET));
        let compresses = policy.takes_budget();
        let (cache, outputs) = run(policy);
        // A prompt is attended to whole, and compressed behind its attention.
        let off = farthest(outputs[0].clone(), expected[0].clone());
        assert!(off < 1e-4, "{name}: {off}");
        let off = outputs.into_iter().zip(expected.clone()).map(|(a, b)| farthest(a, b));
        let off: Vec<f32> = off.collect();
        assert!(off.iter().all(|off| off.is_finite()), "{name}: {off:?}");
        assert_eq!(cache.tokens_seen(), [TOKENS; ROWS], "{name}");
        let entries = |cache: &KvCache| -> usize {
            let layers = (0..cache.shape().layers).map(|layer| cache.entries_by_head(layer));
            layers.flat_map(|heads| heads.unwrap().concat()).sum()
        };
        assert_eq!(entries(&cache) < entries(&full), compresses, "{name}");
    }
}

#[test]
fn what_a_cache_cannot_compute_is_refused() {
    let device = host();
    let x = tokens(6, &device).narrow(1, 0, 5);
    let mut cache = KvCache::new(shape(HEADS), Policy::full(), &device).unwrap();
    let config = MultiHeadAttentionConfig::new(WIDTH, HEADS);

    let quiet = config.clone().with_quiet_softmax(true).init(&device);
    let error = quiet.forward_with(x.clone(), cache.layer(0).unwrap()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "quiet_softmax", .. }), "{error}");

    let odd = MultiHeadAttentionConfig::new(WIDTH, 5).init(&device);
    let error = odd.forward_with(x.clone(), cache.layer(0).unwrap()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "n_heads", .. }), "{error}");

    let attention = config.init(&device);
    let narrow = x.clone().narrow(2, 0, WIDTH / 2);
    let error = attention.forward_with(narrow, cache.layer(0).unwrap()).unwrap_err();
    assert!(matches!(error, Error::TensorShape { tensor: "x", .. }), "{error}");

    let other = MultiHeadAttentionConfig::new(WIDTH, 2 * HEADS).init(&device);
    let error = other.forward_with(x.clone(), cache.layer(0).unwrap()).unwrap_err();
    assert!(matches!(error, Error::TensorShape { tensor: "queries", .. }), "{error}");

    // The cache has one layer, the encoder three.
    let encoder = encoder(false, &device);
    let error = encoder.forward_with(x.clone(), &mut cache).unwrap_err();
    assert!(matches!(error, Error::InvalidShape { .. }), "{error}");
    let config = TransformerEncoderConfig::new(WIDTH, 96, HEADS, 1).with_quiet_softmax(true);
    let error = config.init(&device).forward_with(x.clone(), &mut cache).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "quiet_softmax", .. }), "{error}");

    assert_eq!((cache.tokens_seen(), cache.bytes_held()), (Vec::new(), 0));
    attention.forward_with(x, cache.layer(0).unwrap()).unwrap();
    assert_eq!(cache.tokens_seen(), [5; ROWS]);
}
