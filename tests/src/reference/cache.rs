//! The cache of one sequence: every layer of a model, called layer by layer.

use super::attention::{Encoding, Kind, weighted_mean};
use super::margin::Margin;
use super::method::{Method, Positions};
use super::profile::Profile;
use super::quantize::{Precision, Store};
use super::score::{Score, ems, non_causal};
use super::{Allocate, Head, allocate, reduce};

/// Settings that stay the same while a cache lives.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub query_heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Factor on `q · k`.
    pub scale: f64,
    /// What becomes of scores besides.
    pub kind: Kind,
    /// Encoding of positions.
    pub encoding: Encoding,
    /// The method, which selects entries.
    pub method: Method,
    /// Measurements of the model, for methods that use them.
    pub profile: Profile,
    /// The amount to keep.
    pub budget: Budget,
    /// Time of compression while a prompt arrives.
    pub prefill: Prefill,
    /// Compress after every so many decoded tokens.
    pub decode_every: Option<usize>,
}

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So many tokens.
    Tokens(usize),
    /// So large a share of the tokens seen.
    Ratio(f64),
}

/// Time at which a prompt is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// Not at all.
    Never,
    /// When it is complete.
    AtEnd,
    /// When it is complete and no prompt came before.
    FirstPrompt,
    /// After each of its chunks.
    EveryChunk,
}

/// One cached token of one kv head, and everything that ever happened to it.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The position it was written at.
    pub position: usize,
    /// Its key as it is held, `[head_dim]`: encoded, or as it came (see [`Positions`]); merged, or
    /// quantized and back. EMS keeps the length of every member's key; its direction is shared.
    pub key: Vec<f64>,
    /// Its value as it is held, `[head_dim]`.
    pub value: Vec<f64>,
    /// Every weight it ever received, `[query head of the group][query that saw it]`.
    pub received: Vec<Vec<f64>>,
    /// EMS: the position of the representative whose key direction and value it shares; mostly its
    /// own.
    pub representative: usize,
    /// EMS: the weights of the last finished window of queries.
    pub past: f64,
    /// EMS: the weights of the queries since.
    pub current: f64,
    /// Compactor: the weights of the queries of its own chunk.
    pub chunk: f64,
}

impl Entry {
    /// The weights it ever received, the mean over the query heads of its group.
    pub fn accumulated(&self) -> f64 {
        let sums = self.received.iter().map(|received| received.iter().sum::<f64>());
        sums.sum::<f64>() / self.received.len() as f64
    }
}

/// One layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    /// Entries of each kv head, in the order of positions.
    pub heads: Vec<Vec<Entry>>,
    /// Every query that ever came, before position encoding, `[query_heads][seen][head_dim]`.
    pub queries: Vec<Head>,
    /// Tokens seen so far: the position of the next one.
    pub seen: usize,
    /// The position at which the current prompt began.
    pub prompt_start: usize,
    /// Tokens seen at the last compression.
    pub compressed_at: usize,
    /// Tokens decoded since the last prompt or the last compression in decoding.
    pub decoded: usize,
    /// The measurement of an allocator that looks at layers, made when the last prompt was
    /// complete.
    pub measured: Option<f64>,
    /// Tokens seen when it was made.
    pub measured_at: usize,
    /// D2O: the similarity that was enough to be merged at the last compression, first of keys,
    /// then of values.
    pub thresholds: [Option<f64>; 2],
    /// EMS: tokens decoded since the last finished window of queries.
    pub in_window: usize,
    /// KIVI: how many of the oldest entries are quantized, `[kv_heads]`.
    pub quantized: Vec<usize>,
}

/// The cache of one sequence.
#[derive(Clone, Debug)]
pub struct ModelCache {
    /// Settings that stay the same.
    pub settings: Settings,
    /// The type keys and values are held in. Only quantization minds it.
    pub precision: Precision,
    /// The layers.
    pub layers: Vec<LayerCache>,
    /// Whether what arrives is part of a prompt.
    pub in_prompt: bool,
    /// Distance of the closest decision so far from another outcome.
    pub margin: Margin,
}

impl ModelCache {
    /// An empty cache.
    pub fn new(settings: Settings, precision: Precision) -> Self {
        let layer = LayerCache {
            heads: vec![Vec::new(); settings.kv_heads],
            queries: vec![Vec::new(); settings.query_heads],
            quantized: vec![0; settings.kv_heads],
            ..LayerCache::default()
        };
        let layers = vec![layer; settings.layers];
        Self { settings, precision, layers, in_prompt: true, margin: Margin::default() }
    }

    /// A prompt begins here.
    pub fn begin_prompt(&mut self) {
        for layer in &mut self.layers {
            layer.prompt_start = layer.seen;
            layer.decoded = 0;
        }
    }

    /// Some tokens of the prompt arrive at a layer; `last` if they complete it. Layers take turns,
    /// the first first; what a layer holds is settled when the last one had its turn.
    ///
    /// `q` `[query_heads][new][head_dim]`, `k` and `v` `[kv_heads][new][head_dim]`; returns
    /// `[query_heads][new][head_dim]`.
    pub fn prompt(
        &mut self,
        layer: usize,
        q: &[Head],
        k: &[Head],
        v: &[Head],
        last: bool,
    ) -> Vec<Head> {
        self.in_prompt = true;
        let outputs = self.attend(layer, q, k, v);
        if let Score::GlobalLocal { window, .. } = self.settings.method.score {
            ems::after_prompt(self, layer, window);
        }
        let every_chunk = self.settings.prefill == Prefill::EveryChunk;
        if last || every_chunk {
            self.layers[layer].measured = allocate::measure(self, layer);
            self.layers[layer].measured_at = self.layers[layer].seen;
        }

        // Where shares depend on all layers, all wait for the last one.
        let all = self.settings.layers;
        let ready = match self.settings.method.allocate.looks_at_all_layers() {
            false => layer..layer + 1,
            true if layer + 1 == all => 0..all,
            true => 0..0,
        };
        for layer in ready {
            let at_end = match self.settings.prefill {
                Prefill::AtEnd => true,
                Prefill::FirstPrompt => self.layers[layer].prompt_start == 0,
                Prefill::Never | Prefill::EveryChunk => false,
            };
            if every_chunk || (last && at_end) {
                self.compress(layer);
            }
            if every_chunk || last {
                self.quantize(layer);
            }
        }
        outputs
    }

    /// One decoded token arrives at a layer; shapes as in [`prompt`](Self::prompt).
    pub fn decode(&mut self, layer: usize, q: &[Head], k: &[Head], v: &[Head]) -> Vec<Head> {
        self.in_prompt = false;
        let outputs = self.attend(layer, q, k, v);
        if let Score::GlobalLocal { window, .. } = self.settings.method.score {
            ems::after_decoded(&mut self.layers[layer], window);
        }
        self.layers[layer].decoded += 1;
        if self.settings.decode_every == Some(self.layers[layer].decoded) {
            self.layers[layer].decoded = 0;
            self.compress(layer);
        }
        self.quantize(layer);
        outputs
    }

    /// The positions each kv head of a layer holds.
    pub fn kept_positions(&self, layer: usize) -> Vec<Vec<usize>> {
        let of_head = |entries: &Vec<Entry>| entries.iter().map(|entry| entry.position).collect();
        self.layers[layer].heads.iter().map(of_head).collect()
    }

    /// The tokens a layer may hold now if all may hold the same.
    pub fn budget(&self, layer: usize) -> usize {
        match self.settings.budget {
            Budget::Tokens(tokens) => tokens,
            Budget::Ratio(ratio) => ((ratio * self.layers[layer].seen as f64).floor() as usize)
                .max(self.settings.method.least_budget()),
        }
    }

    /// The position of the first query since the last compression. A policy that only ever
    /// compresses prompts looks at the prompt at hand.
    pub fn queries_from(&self, layer: usize) -> usize {
        let LayerCache { prompt_start, compressed_at, .. } = self.layers[layer];
        match self.settings.decode_every {
            None => compressed_at.max(prompt_start),
            Some(_) => compressed_at,
        }
    }

    /// The keys of some entries of one head, as a query meets them.
    pub fn keys(&self, entries: &[Entry]) -> Head {
        let mut keys = Vec::new();
        for (rank, entry) in entries.iter().enumerate() {
            keys.push(match self.settings.method.encoded_at(entry, rank) {
                None => entry.key.clone(),
                Some(place) => self.settings.encoding.encode(&entry.key, place),
            });
        }
        keys
    }

    /// A query of a layer, encoded; `held` is how many entries its head holds.
    pub fn query(&self, layer: usize, head: usize, position: usize, held: usize) -> Vec<f64> {
        let LayerCache { queries, seen, .. } = &self.layers[layer];
        let place = match self.settings.method.positions {
            Positions::InCache => held - (seen - position),
            Positions::Written | Positions::Deferred => position,
        };
        self.settings.encoding.encode(&queries[head][position], place)
    }

    fn attend(&mut self, layer: usize, q: &[Head], k: &[Head], v: &[Head]) -> Vec<Head> {
        let Settings { query_heads, kv_heads, scale, encoding, method, .. } = self.settings;
        let kind = self.settings.kind.clone();
        let group = query_heads / kv_heads;
        let new = q[0].len();
        let cache = &mut self.layers[layer];
        let first = cache.seen;
        cache.seen += new;

        for (all, new) in cache.queries.iter_mut().zip(q) {
            all.extend_from_slice(new);
        }
        for head in 0..kv_heads {
            for token in 0..new {
                let (position, key) = (first + token, &k[head][token]);
                let held_encoded = method.positions == Positions::Written;
                cache.heads[head].push(Entry {
                    position,
                    key: if held_encoded { encoding.encode(key, position) } else { key.clone() },
                    value: v[head][token].clone(),
                    received: vec![Vec::new(); group],
                    representative: position,
                    ..Entry::default()
                });
            }
        }

        let mut all_outputs = Vec::new();
        for query_head in 0..query_heads {
            let entries = &self.layers[layer].heads[query_head / group];
            let old = entries.len() - new;
            let keys = self.keys(entries);
            let values: Head = entries.iter().map(|entry| entry.value.clone()).collect();
            let places: Vec<usize> = entries.iter().map(|entry| entry.position).collect();
            let queries: Head = (first..first + new)
                .map(|position| self.query(layer, query_head, position, entries.len()))
                .collect();

            let entries = &mut self.layers[layer].heads[query_head / group];
            let mut outputs = Vec::new();
            for (token, query) in queries.iter().enumerate() {
                // A token sees what was there before the call, and the call's own tokens up to
                // itself.
                let visible = old + token + 1;
                let seen = (&keys[..visible], &places[..visible]);
                let weights = kind.weights(query_head, (query, first + token), seen, scale);
                outputs.push(weighted_mean(&weights, &values[..visible]));
                for (entry, weight) in entries.iter_mut().zip(weights) {
                    entry.received[query_head % group].push(weight);
                }
            }
            all_outputs.push(outputs);
        }
        all_outputs
    }

    /// Score, allocate, reduce.
    fn compress(&mut self, layer: usize) {
        let score = self.settings.method.score;
        let waits = matches!(score, Score::Repeat { .. } | Score::Reread { .. });
        if waits || self.settings.method.allocate == Allocate::All {
            return;
        }
        if let Some(chunk) = self.settings.method.score.chunk() {
            non_causal::before_compression(self, layer, chunk);
        }
        let mut margin = self.margin;
        let keep = allocate::keep(self, layer, &mut margin);
        reduce::reduce(self, layer, &keep, &mut margin);
        self.margin = margin;
        self.layers[layer].compressed_at = self.layers[layer].seen;
    }

    fn quantize(&mut self, layer: usize) {
        let precision = self.precision;
        let LayerCache { heads, quantized, .. } = &mut self.layers[layer];
        for (entries, quantized) in heads.iter_mut().zip(quantized) {
            match self.settings.method.store {
                Store::Plain => {}
                Store::Quantized { bits, group, residual } => {
                    let pack = super::quantize::Pack { bits, group, residual, precision };
                    pack.apply(entries, quantized, &mut self.margin);
                }
                Store::Fp8 => {
                    super::quantize::to_fp8(entries, quantized, precision, &mut self.margin);
                }
            }
        }
    }
}
