//! Scripted sessions: prompts and decoded tokens, played through the reference and through the library.

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy, PrefillCompression, Prompt, Schedule,
    policy::{PositionMode, Recent},
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
    score::{Normalize, Pool},
};
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::inputs::{Pattern, Tokens, draw};
use crate::reference::{self, Encoding, Head, LayerCache, Method, Prefill, Settings};

/// Positions that the encodings of sessions hold.
pub const MAX_POSITIONS: usize = 512;

/// A model's cache and what happens to it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Decoder layers.
    pub layers: usize,
    /// Heads, method, budget, schedule: the same for every layer and row.
    pub settings: Settings,
    /// What happens, in order.
    pub turns: Vec<Turn>,
    /// The type of queries, keys, values and cache.
    pub dtype: DType,
    /// Where the search for inputs starts.
    pub seed: u64,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Turn {
    /// A prompt arrives.
    Prompt {
        /// Tokens of each batch row; shorter rows are padded at the left.
        lengths: Vec<usize>,
        /// Columns of each call; together the longest row.
        chunks: Vec<usize>,
    },
    /// So many tokens are decoded.
    Decode(usize),
}

/// What the reference says about one batch row in one layer.
#[derive(Clone, Debug)]
pub struct Trace {
    /// One a call of `attend`; a row may get nothing but padding in a call.
    pub calls: Vec<Call>,
    /// See [`LayerCache::margin`].
    pub margin: f64,
}

/// One call of `attend`, one row.
#[derive(Clone, Debug)]
pub struct Call {
    /// The row's tokens, without padding.
    pub tokens: Tokens,
    /// Columns of padding before them.
    pub padding: usize,
    /// `[query_heads][tokens][head_dim]`
    pub outputs: Vec<Head>,
    /// `[kv_heads]`, the positions held afterwards.
    pub kept: Vec<Vec<usize>>,
}

/// What the library did, call by call.
#[derive(Clone, Debug)]
pub struct Observed {
    /// `[row][layer][query_heads][tokens][head_dim]`, without padding.
    pub outputs: Vec<Vec<Vec<Head>>>,
    /// `[row][layer][kv_heads]`, the positions held afterwards.
    pub kept: Vec<Vec<Vec<Vec<usize>>>>,
    /// Tokens seen by each row afterwards.
    pub seen: Vec<usize>,
    /// Bytes held afterwards.
    pub bytes: usize,
}

/// A prompt given in one call.
pub fn prompt(lengths: &[usize]) -> Turn {
    chunked(lengths, &[lengths.iter().copied().max().unwrap_or(0)])
}

/// A prompt given in several calls.
pub fn chunked(lengths: &[usize], chunks: &[usize]) -> Turn {
    assert_eq!(
        lengths.iter().max().copied(),
        Some(chunks.iter().sum()),
        "the chunks make up the longest row"
    );
    Turn::Prompt { lengths: lengths.to_vec(), chunks: chunks.to_vec() }
}

impl Session {
    /// Batch rows.
    pub fn rows(&self) -> usize {
        let rows = self.turns.iter().find_map(|turn| match turn {
            Turn::Prompt { lengths, .. } => Some(lengths.len()),
            Turn::Decode(_) => None,
        });
        rows.unwrap_or(1)
    }

    /// The shape of the library's cache.
    pub fn shape(&self) -> CacheShape {
        let Settings { query_heads, kv_heads, head_dim, .. } = self.settings;
        CacheShape { layers: self.layers, query_heads, kv_heads, head_dim }
    }

    /// The library's policy that stands for the reference's method.
    pub fn policy(&self) -> Policy {
        let Settings { method, budget, prefill, decode_every, .. } = self.settings;
        let budget = match budget {
            reference::Budget::Tokens(tokens) => Budget::Tokens(tokens),
            reference::Budget::Ratio(ratio) => Budget::Ratio(ratio),
        };
        let policy = match method {
            Method::Full => return Policy::full(),
            Method::LocalWindow => Policy::local_window(budget),
            Method::StreamingLlm { sinks } => Policy::streaming_llm(budget).with_sinks(sinks),
            Method::SinksAndWindow { sinks } => Policy::streaming_llm(budget)
                .with_sinks(sinks)
                .with_positions(PositionMode::Written),
            Method::H2o { mean, recent_half } => {
                let mut policy = Policy::h2o(budget);
                if mean {
                    policy = policy.with_normalize(Normalize::Mean);
                }
                if !recent_half {
                    policy = policy.with_recent(Recent::Tokens(0));
                }
                policy
            }
            Method::Tova => Policy::tova(budget),
            Method::SnapKv { window, pool } => {
                let pool = match pool {
                    reference::Pool::Average(kernel) => Pool::avg(kernel),
                    reference::Pool::Max(kernel) => Pool::max(kernel),
                };
                Policy::snapkv(budget).with_window(window).with_pool(pool)
            }
        };
        let prefill = match prefill {
            Prefill::Never => PrefillCompression::Never,
            Prefill::AtEnd => PrefillCompression::AtEnd,
            Prefill::EveryChunk => PrefillCompression::EveryChunk,
        };
        policy.with_schedule(Schedule { prefill, decode_every })
    }

    /// An empty cache of the library.
    pub fn cache(&self, device: &Device) -> KvCache {
        let mut config = CacheConfig::default().with_dtype(self.dtype);
        if self.settings.scale != 1.0 / (self.settings.head_dim as f64).sqrt() {
            config = config.with_softmax_scale(self.settings.scale);
        }
        KvCache::with_config(self.shape(), self.policy(), config, device)
            .expect("the session's policy is valid")
    }

    /// The library's position encoding.
    pub fn positions(&self, device: &Device) -> Box<dyn PositionEncoding> {
        match self.settings.encoding {
            Encoding::None => Box::new(NoPositionEncoding),
            Encoding::Rotary { theta } => Box::new(
                RotaryEmbedding::new(self.settings.head_dim, MAX_POSITIONS, theta, device)
                    .expect("a valid encoding"),
            ),
        }
    }

    /// Plays the session through the reference, `[row][layer]`.
    ///
    /// Two scores that differ by less than their rounding make "the" right selection meaningless, so each row
    /// and layer gets the first seeded inputs whose every selection is clear: by more than what the
    /// arithmetic of the library in this type can be off by.
    pub fn traces(&self) -> Vec<Vec<Trace>> {
        let row = |row| (0..self.layers).map(|layer| self.clear_trace(row, layer)).collect();
        (0..self.rows()).map(row).collect()
    }

    fn clear_trace(&self, row: usize, layer: usize) -> Trace {
        const ATTEMPTS: u64 = 4000;
        let least = match self.dtype {
            DType::BF16 => 4e-2,
            DType::F16 => 5e-3,
            _ => 5e-5,
        };
        let mut widest: f64 = 0.0;
        for attempt in 0..ATTEMPTS {
            let place = (row * self.layers + layer) as u64;
            let trace =
                self.trace(row, self.seed.wrapping_mul(1_000_003) + place * ATTEMPTS + attempt);
            if trace.margin >= least {
                return trace;
            }
            widest = widest.max(trace.margin);
        }
        panic!(
            "no inputs with a margin of {least} in {ATTEMPTS} attempts (widest: {widest}): {self:?}"
        )
    }

    fn trace(&self, row: usize, seed: u64) -> Trace {
        let pattern = match self.settings.method {
            method if self.dtype == DType::F32 || method.scores_are_whole_numbers() => {
                Pattern::Noise
            }
            method => Pattern::Levels { shared: method == Method::Tova },
        };
        let total = self.turns.iter().map(|turn| match turn {
            Turn::Prompt { lengths, .. } => lengths[row],
            Turn::Decode(tokens) => *tokens,
        });
        let all = draw(seed, &self.settings, total.sum(), pattern, self.dtype);
        let mut cache = LayerCache::new(self.settings);
        let mut calls = Vec::new();
        for turn in &self.turns {
            match turn {
                Turn::Prompt { lengths, chunks } => {
                    cache.begin_prompt();
                    let mut padding_left = chunks.iter().sum::<usize>() - lengths[row];
                    for (index, columns) in chunks.iter().enumerate() {
                        let padding = padding_left.min(*columns);
                        padding_left -= padding;
                        let tokens = all.range(cache.seen, cache.seen + columns - padding);
                        let mut outputs = vec![Vec::new(); self.settings.query_heads];
                        if padding < *columns {
                            let last = index + 1 == chunks.len();
                            outputs = cache.prompt(&tokens.q, &tokens.k, &tokens.v, last);
                        }
                        calls.push(Call { tokens, padding, outputs, kept: cache.kept_positions() });
                    }
                }
                Turn::Decode(count) => {
                    for _ in 0..*count {
                        let tokens = all.range(cache.seen, cache.seen + 1);
                        let outputs = cache.decode(&tokens.q, &tokens.k, &tokens.v);
                        calls.push(Call {
                            tokens,
                            padding: 0,
                            outputs,
                            kept: cache.kept_positions(),
                        });
                    }
                }
            }
        }
        Trace { calls, margin: cache.margin }
    }

    /// Plays the same inputs through the library, one entry a call.
    pub fn play(&self, traces: &[Vec<Trace>], device: &Device) -> Vec<Observed> {
        let positions = self.positions(device);
        let mut cache = self.cache(device);
        let mut observed = Vec::new();
        for turn in &self.turns {
            let calls = match turn {
                Turn::Prompt { lengths, chunks } => {
                    let columns = chunks.iter().sum();
                    let padding: Vec<usize> =
                        lengths.iter().map(|length| columns - length).collect();
                    // A whole prompt without padding needs no declaration, unless it is a single token.
                    if chunks.len() > 1
                        || columns == 1
                        || padding.iter().any(|padding| *padding > 0)
                    {
                        let prompt = Prompt::new(columns).left_padding(padding);
                        cache.begin_prompt(prompt).expect("the prompt is valid");
                    }
                    chunks.len()
                }
                Turn::Decode(tokens) => *tokens,
            };
            for _ in 0..calls {
                observed.push(self.call(
                    &mut cache,
                    traces,
                    observed.len(),
                    positions.as_ref(),
                    device,
                ));
            }
        }
        observed
    }

    fn call(
        &self,
        cache: &mut KvCache,
        traces: &[Vec<Trace>],
        index: usize,
        positions: &dyn PositionEncoding,
        device: &Device,
    ) -> Observed {
        let rows = traces.len();
        let mut outputs = vec![Vec::new(); rows];
        let mut kept = vec![Vec::new(); rows];
        for layer in 0..self.layers {
            let calls: Vec<&Call> = traces.iter().map(|row| &row[layer].calls[index]).collect();
            let (q, k, v) = batch(&calls, self.dtype, device);
            let output = cache.attend(layer, q, k, v, positions).unwrap_or_else(|error| {
                panic!("attend, call {index}, layer {layer}: {error}\n{self:?}");
            });
            assert_eq!(output.dtype(), self.dtype, "the output is of the type of the queries");
            let rows_of_layer = heads(output);
            let kept_of_layer = cache.kept_positions(layer).expect("a layer that exists");
            for (row, (mut output, kept_of_row)) in
                rows_of_layer.into_iter().zip(kept_of_layer).enumerate()
            {
                for head in &mut output {
                    let padded: Vec<Vec<f64>> = head.drain(..calls[row].padding).collect();
                    assert!(
                        padded.iter().flatten().all(|x| *x == 0.0),
                        "a padded column's output is zero"
                    );
                }
                outputs[row].push(output);
                kept[row].push(kept_of_row);
            }
        }
        Observed { outputs, kept, seen: cache.tokens_seen(), bytes: cache.bytes_held() }
    }

    /// Plays the session on a device and holds it to the reference.
    ///
    /// # Panics
    /// At the first difference, saying where it is.
    pub fn check(&self, device: &Device) {
        let traces = self.traces();
        let observed = self.play(&traces, device);
        let mut seen = vec![0; traces.len()];
        for (index, observed) in observed.iter().enumerate() {
            for (row, layers) in traces.iter().enumerate() {
                seen[row] += layers[0].calls[index].tokens.q[0].len();
                for (layer, trace) in layers.iter().enumerate() {
                    let call = &trace.calls[index];
                    let place = format!(
                        "call {index}, row {row}, layer {layer}, margin {:e}\n{self:?}",
                        trace.margin
                    );
                    // The positions first: after a wrong selection every later output is off too.
                    assert_eq!(
                        observed.kept[row][layer], call.kept,
                        "kept positions (library, reference), {place}"
                    );
                    compare(
                        &observed.outputs[row][layer],
                        &call.outputs,
                        tolerance(self.dtype),
                        &place,
                    );
                }
            }
            assert_eq!(observed.seen, seen, "tokens seen, call {index}\n{self:?}");
        }
    }
}

/// How far an output may be from the reference, absolute plus relative.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-4 } else { 2e-2 }
}

/// Compares `[heads][tokens][head_dim]`.
///
/// # Panics
/// If a number is further off than `tolerance`, absolute plus relative.
pub fn compare(found: &[Head], expected: &[Head], tolerance: f64, place: &str) {
    assert_eq!(found.len(), expected.len(), "heads, {place}");
    for (head, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "tokens, {place}");
        for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
            for (channel, (found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (found - expected).abs();
                assert!(
                    off <= tolerance * (1.0 + expected.abs()),
                    "output {found}, reference {expected} (off by {off:e}), head {head}, token {token}, \
                     channel {channel}, {place}"
                );
            }
        }
    }
}

/// Left-padded tensors q, k and v of one call, `[rows, heads, columns, head_dim]`.
pub fn batch(rows: &[&Call], dtype: DType, device: &Device) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
    let tensor = |heads_of: fn(&Tokens) -> &[Head]| {
        let heads = heads_of(&rows[0].tokens).len();
        let head_dim = rows
            .iter()
            .flat_map(|row| heads_of(&row.tokens))
            .flatten()
            .map(Vec::len)
            .max()
            .unwrap_or(0);
        let mut numbers: Vec<f32> = Vec::new();
        let mut columns = 0;
        for row in rows {
            for head in heads_of(&row.tokens) {
                columns = row.padding + head.len();
                // Anything that leaks out of the padding shows.
                numbers.extend(std::iter::repeat_n(-6.5, row.padding * head_dim));
                numbers.extend(head.iter().flatten().map(|x| *x as f32));
            }
        }
        let data = TensorData::new(numbers, [rows.len(), heads, columns, head_dim]);
        Tensor::<4>::from_data(data.convert_dtype(dtype), (device, dtype))
    };
    (tensor(|tokens| &tokens.q), tensor(|tokens| &tokens.k), tensor(|tokens| &tokens.v))
}

/// `[rows, heads, columns, head_dim]` as nested numbers.
pub fn heads(tensor: Tensor<4>) -> Vec<Vec<Head>> {
    let [rows, heads, columns, head_dim] = tensor.dims();
    let numbers: Vec<f32> = tensor.try_into_vec_as().expect("the device gives its numbers back");
    let mut numbers = numbers.into_iter().map(f64::from);
    let mut vector = || numbers.by_ref().take(head_dim).collect::<Vec<f64>>();
    let mut head = || (0..columns).map(|_| vector()).collect::<Head>();
    let mut row = || (0..heads).map(|_| head()).collect::<Vec<Head>>();
    (0..rows).map(|_| row()).collect()
}
