//! CaM in kvpress: which entries go, and which values are merged.

use std::sync::{Arc, Mutex};

use briquette::{
    Budget, CacheShape, KvCache, LayerView, Policy, Schedule,
    ops::{Entries, Statistic},
    policy::Recent,
    position::NoPositionEncoding,
    reduce::{Reduced, Reducer, ValueMerge},
    score::{AttentionRequest, HeadMean, Recency, Scorer, WindowAttention},
};
use briquette_models::prefill;
use briquette_tests::backends::host;
use burn::tensor::{Int, Tensor, TensorData};
use serde::Deserialize;

use super::{Next, TOLERANCE, assert_logits, feed, fixture, model};

#[derive(Deserialize)]
struct Cam {
    modulus: u32,
    /// Layer, head, position, number below the modulus.
    draws: Vec<(usize, usize, i64, u32)>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    params: Params,
    agrees: bool,
    tokens: Vec<u32>,
    n_prompt: usize,
    /// `[layer][eviction][..]`
    evicted: Vec<Vec<Vec<usize>>>,
    merge_candidates: Vec<Vec<Vec<usize>>>,
    /// `[layer][eviction][kv_head][candidate]`
    probabilities: Vec<Vec<Vec<Vec<f32>>>>,
    merged: Vec<Vec<Vec<Vec<u8>>>>,
    #[serde(flatten)]
    golden: Option<Golden>,
}

#[derive(Clone, Debug, Deserialize)]
struct Params {
    evicts: Evicts,
    n_sink: usize,
    target_size: usize,
    merge_budget: usize,
    compression_interval: usize,
    seed: u64,
}

/// The rule of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Evicts {
    Recency,
    LastQuery,
    Accumulated,
}

/// Further fields of cases that agree.
#[derive(Deserialize)]
struct Golden {
    /// `[layer]`
    kept: Vec<Vec<usize>>,
    /// `[kv_head][entry][channel]`
    last_layer_values: Vec<Vec<Vec<f32>>>,
    #[serde(flatten)]
    next: Next,
}

/// One set a layer, as kvpress evicts.
#[derive(Debug)]
struct OneSet(Evicts);

const LAST_QUERY: WindowAttention =
    WindowAttention { window: 1, pool: None, heads: HeadMean::Layer };

impl Scorer for OneSet {
    fn name(&self) -> &str {
        "one-set"
    }

    fn observes(&self) -> AttentionRequest {
        match self.0 {
            Evicts::Recency => AttentionRequest::nothing(),
            Evicts::LastQuery => LAST_QUERY.observes(),
            Evicts::Accumulated => AttentionRequest::column_sums(),
        }
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        match self.0 {
            Evicts::Recency => Recency {}.score(view),
            Evicts::LastQuery => LAST_QUERY.score(view),
            Evicts::Accumulated => {
                let sums = view.statistic(Statistic::Sums, self.name())?.clone();
                let heads = sums.dims();
                Ok(sums.mean_dim(1).expand(heads))
            }
        }
    }
}

/// Numbers of each kv head.
type Heads = Vec<Vec<f32>>;

/// A layer before and after some of its entries were evicted.
#[derive(Debug)]
struct Eviction {
    before: Vec<usize>,
    after: Vec<usize>,
    /// Accumulated attention, `[kv_head][entry before]`.
    attention: Heads,
    /// The values, entry after entry.
    values_before: Heads,
    values_after: Heads,
}

impl Eviction {
    fn evicted(&self) -> Vec<usize> {
        self.before.iter().copied().filter(|position| !self.after.contains(position)).collect()
    }

    /// Those after an entry that share its value.
    fn behind(&self, position: usize, window: usize) -> &[usize] {
        let start = self.after.partition_point(|&other| other < position);
        &self.after[start..(start + window).min(self.after.len())]
    }

    /// The probability of being merged, given what has been accumulated.
    fn probability(&self, position: usize, window: usize, attention: impl Fn(usize) -> f32) -> f32 {
        let behind = self.behind(position, window);
        let mean = behind.iter().map(|&other| attention(other)).sum::<f32>() / behind.len() as f32;
        (attention(position) / mean).clamp(0.0, 1.0)
    }

    fn attention(&self, head: usize, position: usize) -> f32 {
        self.attention[head][self.before.binary_search(&position).unwrap()]
    }

    /// Whether the first value behind an evicted entry is another than before.
    fn changed(&self, head: usize, position: usize) -> bool {
        let channels = self.values_after[head].len() / self.after.len();
        let first = self.behind(position, 1)[0];
        let value = |values: &Heads, positions: &[usize]| {
            let place = positions.binary_search(&first).unwrap();
            values[head][place * channels..][..channels].to_vec()
        };
        value(&self.values_before, &self.before) != value(&self.values_after, &self.after)
    }
}

/// A reducer, and all it does: `[layer][eviction]`.
#[derive(Debug)]
struct Recording {
    merge: ValueMerge,
    evictions: Arc<Mutex<Vec<Vec<Eviction>>>>,
}

impl Reducer for Recording {
    fn name(&self) -> &str {
        "recording"
    }

    fn observes(&self) -> AttentionRequest {
        self.merge.observes()
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> briquette::Result<Reduced> {
        let before = view.entries;
        let reduced = self.merge.reduce(view, keep)?;
        let after = &reduced.entries;
        let eviction = Eviction {
            before: one_set(&before.positions),
            after: one_set(&after.positions),
            attention: heads(&before.statistics.get(Statistic::Sums).unwrap()),
            values_before: heads(&before.values),
            values_after: heads(&after.values),
        };
        self.evictions.lock().unwrap()[view.layer].push(eviction);
        Ok(reduced)
    }
}

fn heads<const D: usize>(x: &Tensor<D>) -> Heads {
    let heads = x.dims()[1];
    let numbers: Vec<f32> = x.clone().try_into_vec_as().unwrap();
    numbers.chunks(numbers.len() / heads).map(<[f32]>::to_vec).collect()
}

/// Positions that all heads have in common.
fn one_set(positions: &Tensor<3, Int>) -> Vec<usize> {
    let [_, _, columns] = positions.dims();
    let positions: Vec<i64> = positions.clone().try_into_vec_as().unwrap();
    let (first, others) = positions.split_at(columns);
    assert!(others.chunks(columns).all(|head| head == first), "heads differ: {positions:?}");
    first.iter().map(|&position| usize::try_from(position).unwrap()).collect()
}

/// The same decoding here.
struct Decoded {
    cache: KvCache,
    /// Attention of the prompt's queries to each of its tokens, `[layer][kv_head][position]`.
    of_prompt: Vec<Heads>,
    /// `[layer][eviction]`
    evictions: Vec<Vec<Eviction>>,
}

fn decode(case: &Case) -> Decoded {
    let Params { evicts, n_sink, target_size, merge_budget, seed, .. } = case.params;
    let model = model();
    let layers = model.cache_shape().layers;
    let evictions = Arc::new(Mutex::new((0..layers).map(|_| Vec::new()).collect()));
    let merge = ValueMerge { window: merge_budget, seed, prompts: false };
    let recent = match evicts {
        Evicts::Recency => Recent::Tokens(0),
        Evicts::LastQuery => Recent::Tokens(1),
        Evicts::Accumulated => Recent::Share(0.5),
    };
    // kvpress leaves a prompt whole until the first token is decoded.
    let policy = Policy::custom("cam", Budget::Tokens(target_size), OneSet(evicts))
        .with_sinks(n_sink)
        .with_recent(recent)
        .with_reducer(Recording { merge, evictions: Arc::clone(&evictions) })
        .with_schedule(Schedule::decode_only(case.params.compression_interval));
    let mut cache = model.cache(policy).unwrap();
    let (prompt, decoded) = case.tokens.split_at(case.n_prompt);
    prefill(model, &[prompt], &mut cache, None).unwrap();
    let of_layer = |layer| {
        heads(&cache.entries(layer).unwrap().unwrap().statistics.get(Statistic::Sums).unwrap())
    };
    let of_prompt = (0..layers).map(of_layer).collect();
    for &token in decoded {
        feed(token, &mut cache);
    }
    let evictions = evictions.lock().unwrap().iter_mut().map(std::mem::take).collect();
    Decoded { cache, of_prompt, evictions }
}

#[test]
fn cam_of_kvpress() {
    let cam: Cam = fixture("kvpress_cam.json");
    assert_eq!(cam.cases.len(), 5);
    for case in cam.cases {
        let place = format!("{:?}, {} of {}", case.params, case.n_prompt, case.tokens.len());
        assert_eq!(case.golden.is_some(), case.agrees, "{place}");
        let mut decoded = decode(&case);
        for (layer, evictions) in decoded.evictions.iter().enumerate() {
            let found: Vec<Vec<usize>> = evictions.iter().map(Eviction::evicted).collect();
            assert_eq!(found, case.evicted[layer], "layer {layer}, {place}");
        }
        assert_merged(&case, &decoded, &place);
        let Some(golden) = &case.golden else { continue };

        for (layer, expected) in golden.kept.iter().enumerate() {
            for found in decoded.cache.kept_positions(layer).unwrap().remove(0) {
                assert_eq!(found, *expected, "layer {layer}, {place}");
            }
        }
        let last = decoded.cache.entries(golden.kept.len() - 1).unwrap().unwrap();
        for (head, found) in heads(&last.values).iter().enumerate() {
            let expected = golden.last_layer_values[head].concat();
            assert_eq!(found.len(), expected.len(), "{place}");
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                let off = f64::from((found - expected).abs());
                assert!(
                    off <= TOLERANCE,
                    "value {head}, {index}: {found}, expected {expected}, {place}"
                );
            }
        }
        let logits = feed(golden.next.next_token, &mut decoded.cache);
        assert_logits(logits, &golden.next.last_logits_after, &place);
    }
}

/// Compares probabilities, and what came of them.
///
/// After a prompt, kvpress's probabilities are those without what the prompt's queries gave. That
/// can be seen in the first layer, whose keys and queries depend on no merged value.
fn assert_merged(case: &Case, decoded: &Decoded, place: &str) {
    let window = case.params.merge_budget;
    let layers = if case.agrees { decoded.evictions.len() } else { 1 };
    let mut all_agree = true;
    for (layer, evictions) in decoded.evictions.iter().enumerate().take(layers) {
        for (event, eviction) in evictions.iter().enumerate() {
            let candidates = &case.merge_candidates[layer][event];
            for (head, probabilities) in case.probabilities[layer][event].iter().enumerate() {
                let of_prompt = &decoded.of_prompt[layer][head];
                let all = |position| eviction.attention(head, position);
                let of_decoding = |position: usize| {
                    all(position) - of_prompt.get(position).copied().unwrap_or(0.0)
                };
                for (index, (&position, expected)) in
                    candidates.iter().zip(probabilities).enumerate()
                {
                    let place = format!("layer {layer}, head {head}, position {position}, {place}");
                    let found = eviction.probability(position, window, all);
                    let agrees = |found: f32| f64::from((found - expected).abs()) <= TOLERANCE;
                    if case.agrees {
                        assert!(agrees(found), "{found}, expected {expected}, {place}");
                        let merged = case.merged[layer][event][head][index] == 1;
                        assert_eq!(eviction.changed(head, position), merged, "{place}");
                    } else {
                        all_agree &= agrees(found);
                        let found = eviction.probability(position, window, of_decoding);
                        assert!(agrees(found), "{found}, expected {expected}, {place}");
                    }
                }
            }
        }
    }
    assert_eq!(all_agree, case.agrees, "{place}");
}

/// Merges as if it were in another layer, and the entries at another position, with another
/// accumulated attention.
#[derive(Debug)]
struct Elsewhere {
    layer: usize,
    position: i64,
    /// Of the entry that goes; those that stay have 1.
    attention: f32,
}

impl Elsewhere {
    const MERGE: ValueMerge = ValueMerge { window: 1, seed: 0, prompts: true };
}

impl Reducer for Elsewhere {
    fn name(&self) -> &str {
        "elsewhere"
    }

    fn observes(&self) -> AttentionRequest {
        Self::MERGE.observes()
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> briquette::Result<Reduced> {
        let mut entries = Entries::clone(view.entries);
        entries.positions = entries.positions.clone().add_scalar(self.position);
        entries.statistics = std::mem::take(&mut entries.statistics).map(|track| {
            let [batch, heads, columns] = track.dims();
            let rest = track.ones_like().narrow(2, 1, columns - 1);
            Tensor::cat(
                vec![Tensor::full([batch, heads, 1], self.attention, &track.device()), rest],
                2,
            )
        });
        let mut view = *view;
        (view.layer, view.entries) = (self.layer, &entries);
        Self::MERGE.reduce(&view, keep)
    }
}

#[test]
fn draws_of_cam() {
    let cam: Cam = fixture("kvpress_cam.json");
    assert_eq!(cam.draws.len(), 9);
    let device = host();
    for (layer, head, position, number) in cam.draws {
        for (off, merged) in [(-0.5, false), (0.5, true)] {
            let attention = ((f64::from(number) + off) / f64::from(cam.modulus)) as f32;
            let policy = Policy::custom("draw", Budget::Tokens(2), OneSet(Evicts::Recency))
                .with_reducer(Elsewhere { layer, position, attention });
            let heads_of_cache = 8;
            let shape = CacheShape {
                layers: 1,
                query_heads: heads_of_cache,
                kv_heads: heads_of_cache,
                head_dim: 1,
            };
            let mut cache = KvCache::new(shape, policy, &device).unwrap();
            let ones =
                TensorData::new(vec![1.0_f32; 3 * heads_of_cache], [1, heads_of_cache, 3, 1]);
            let ones = Tensor::<4>::from_data(ones, &device);
            cache.attend(0, ones.clone(), ones.clone(), ones, &NoPositionEncoding).unwrap();
            let values = heads(&cache.entries(0).unwrap().unwrap().values);
            let expected = if merged { [2.0, 1.0] } else { [1.0, 1.0] };
            assert_eq!(values[head], expected, "layer {layer}, head {head}, position {position}");
        }
    }
}
