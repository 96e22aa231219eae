//! The channels of keys that kvpress's ThinKPress leaves.

use briquette::{Budget, Policy, store::KeyChannels};
use briquette_models::prefill;
use serde::Deserialize;

use super::{Next, assert_logits, cases, feed, model};

#[derive(Deserialize)]
struct Case {
    params: Params,
    n_kept: usize,
    tokens: Vec<u32>,
    margin: f64,
    /// `[layer][kv_head]`
    kept_channels: Vec<Vec<Vec<usize>>>,
    #[serde(flatten)]
    next: Next,
}

/// Parameters by kvpress's names.
#[derive(Debug, Deserialize)]
struct Params {
    /// Of SnapKVPress before it.
    compression_ratio: f64,
    key_channel_compression_ratio: f64,
    window_size: usize,
}

#[test]
fn channels_of_kvpress() {
    let think = cases::<Case>("kvpress_think.json", 3);
    assert!(think.iter().any(|case| case.params.compression_ratio > 0.0));
    for case in think {
        let Params { compression_ratio, key_channel_compression_ratio: drop, window_size: window } =
            case.params;
        let place = format!("{:?}, margin {}", case.params, case.margin);
        let policy = match compression_ratio {
            0.0 => Policy::full(),
            _ => Policy::snapkv(Budget::Tokens(case.n_kept)),
        };
        let policy = policy.with_store(KeyChannels { drop, window, recent: 0 });
        let mut cache = model().cache(policy).unwrap();
        prefill(model(), &[&case.tokens], &mut cache, None).unwrap();
        for (layer, expected) in case.kept_channels.iter().enumerate() {
            let keys = cache.entries(layer).unwrap().unwrap().keys;
            let [_, _, tokens, channels] = keys.dims();
            assert_eq!(tokens, case.n_kept, "{place}");
            let there = keys.abs().max_dim(2).try_into_vec_as::<f32>().unwrap();
            for (head, there) in there.chunks(channels).enumerate() {
                let found: Vec<usize> = (0..channels).filter(|&at| there[at] > 0.0).collect();
                assert_eq!(found, expected[head], "layer {layer}, kv head {head}, {place}");
            }
        }
        let logits = feed(case.next.next_token, &mut cache);
        assert_logits(logits, &case.next.last_logits_after, &place);
    }
}
