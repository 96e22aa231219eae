//! Scripted sessions: prompts and decoded tokens, played through the reference and through the
//! library.

use std::sync::Arc;

use briquette::{
    CacheConfig, CacheShape, KvCache, Policy, Prompt,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
};
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::inputs::{Levels, Pattern, Tokens, draw};
use crate::policy::{policy, profile};
use crate::reference::score::criticalkv::projection;
use crate::reference::{
    Allocate, Encoding, Head, Heads, Kind, Margin, ModelCache, Precision, Prefill, Reduce, Score,
    Settings,
};

/// Positions that the encodings of sessions hold.
pub const MAX_POSITIONS: usize = 1024;

/// A model's cache and what happens to it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Layers, heads, method, budget, schedule: the same for every row.
    pub settings: Settings,
    /// The events, in order.
    pub turns: Vec<Turn>,
    /// The type of queries, keys, values and cache.
    pub dtype: DType,
    /// Seed at which the search for inputs starts.
    pub seed: u64,
}

/// One event of a session.
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

/// One call of `attend`, as one batch row sees it.
struct Piece {
    columns: usize,
    /// Columns of padding among them.
    padding: usize,
    /// Whether it completes a prompt; `None` is a decoded token.
    prompt: Option<bool>,
}

impl Turn {
    fn pieces(&self, row: usize) -> Vec<Piece> {
        let (lengths, chunks) = match self {
            Self::Decode(tokens) => {
                let token = |_| Piece { columns: 1, padding: 0, prompt: None };
                return (0..*tokens).map(token).collect();
            }
            Self::Prompt { lengths, chunks } => (lengths, chunks),
        };
        let mut padding_left = chunks.iter().sum::<usize>() - lengths[row];
        let mut pieces = Vec::new();
        for (index, columns) in chunks.iter().enumerate() {
            let padding = padding_left.min(*columns);
            padding_left -= padding;
            let prompt = Some(index + 1 == chunks.len());
            pieces.push(Piece { columns: *columns, padding, prompt });
        }
        pieces
    }
}

/// The reference's side of one batch row in one layer.
#[derive(Clone, Debug)]
pub struct Trace {
    /// One entry per call of `attend`; a row may get nothing but padding in a call.
    pub calls: Vec<Call>,
    /// Clearness of every decision, of this layer or of all.
    pub margin: Margin,
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
    /// `[kv_heads]`, the positions held when all layers had their turn.
    pub kept: Vec<Vec<usize>>,
}

/// The library's side, call by call.
#[derive(Clone, Debug)]
pub struct Observed {
    /// `[row][layer][query_heads][tokens][head_dim]`, without padding.
    pub outputs: Vec<Vec<Vec<Head>>>,
    /// `[row][layer][kv_heads]`, the positions held when all layers had their turn.
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
        let Settings { layers, query_heads, kv_heads, head_dim, .. } = self.settings;
        CacheShape { layers, query_heads, kv_heads, head_dim }
    }

    /// The library's policy that stands for the reference's method.
    pub fn policy(&self) -> Policy {
        let Settings { method, budget, prefill, decode_every, .. } = self.settings;
        let policy = policy(&method, budget, prefill, decode_every);
        match policy.reads_profile() {
            true => policy.with_profile(Arc::new(profile(&self.settings.profile, self.shape()))),
            false => policy,
        }
    }

    /// An empty cache of the library.
    pub fn cache(&self, device: &Device) -> KvCache {
        let mut config = CacheConfig::default().with_dtype(self.dtype);
        if self.settings.scale != 1.0 / (self.settings.head_dim as f64).sqrt() {
            config = config.with_softmax_scale(self.settings.scale);
        }
        let Kind { softcap, sinks, slopes, window: _, chunk: _ } = &self.settings.kind;
        let of_heads = |list: &[f64]| {
            let numbers: Vec<f32> = list.iter().map(|&number| number as f32).collect();
            let data = TensorData::new(numbers, [list.len()]);
            Tensor::<1>::from_data(data, (device, DType::F32))
        };
        config.softcap = *softcap;
        if !sinks.is_empty() {
            config = config.with_sinks(vec![of_heads(sinks); self.settings.layers]);
        }
        if !slopes.is_empty() {
            config = config.with_slopes(of_heads(slopes));
        }
        let policy = self.policy();
        if policy.reads_output_weights() {
            let CacheShape { layers, query_heads, head_dim, .. } = self.shape();
            let weight = |layer| {
                let heads = (0..query_heads).map(|head| projection(layer, head, head_dim));
                let rows: Vec<Vec<f64>> = heads.flatten().collect();
                let numbers = rows.iter().flatten().map(|x| *x as f32).collect();
                let data = TensorData::new(numbers, [rows.len(), rows[0].len()]);
                Tensor::<2>::from_data(data, device)
            };
            config = config.with_output_weights((0..layers).map(weight).collect());
        }
        KvCache::with_config(self.shape(), policy, config, device)
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
    /// Two scores that differ by less than their rounding make "the" right selection meaningless,
    /// so each row gets the first seeded inputs whose every decision is clear: by more than what
    /// the arithmetic of the library in this type can be off by. Layers that have nothing to do
    /// with each other get theirs one by one.
    ///
    /// # Panics
    /// If no inputs are clear.
    pub fn traces(&self) -> Vec<Vec<Trace>> {
        let all: Vec<usize> = (0..self.settings.layers).collect();
        let together = self.settings.method.allocate.looks_at_all_layers();
        let row = |row| match together {
            true => self.clear_traces(row, &all),
            false => all.iter().flat_map(|layer| self.clear_traces(row, &[*layer])).collect(),
        };
        (0..self.rows()).map(row).collect()
    }

    fn clear_traces(&self, row: usize, layers: &[usize]) -> Vec<Trace> {
        const ATTEMPTS: u64 = 4000;
        let least = self.least_margin();
        let mut short = [0; 4];
        for attempt in 0..ATTEMPTS {
            let place = (row * self.settings.layers + layers[0]) as u64;
            let seed = self.seed.wrapping_mul(1_000_003) + place * ATTEMPTS + attempt;
            let traces = self.trace(row, layers, seed);
            let found = traces[0].margin;
            let too_small = [
                found.scores < least.scores,
                found.cosines < least.cosines,
                found.shares < least.shares,
                found.steps < least.steps,
            ];
            if !too_small.contains(&true) {
                return traces;
            }
            short.iter_mut().zip(too_small).for_each(|(count, short)| *count += u64::from(short));
        }
        panic!(
            "no inputs with margins of {least:?} in {ATTEMPTS} attempts (too small, of each kind: {short:?}): \
             {self:?}"
        )
    }

    /// Margins that rounding in this type does not use up.
    fn least_margin(&self) -> Margin {
        // Methods that merge decide on more, and what they decide on is pooled or a mean, so less
        // far off.
        let merges =
            !matches!(self.settings.method.reduce, Reduce::Evict | Reduce::ValueMerge { .. });
        // Lengths are no further off than the numbers of a key, 2^-9 of themselves.
        let lengths = self.settings.method.score == Score::KeyNorm;
        match self.dtype {
            DType::BF16 => Margin {
                scores: match (merges, lengths) {
                    (_, true) => 5e-3,
                    (true, false) => 1.5e-2,
                    (false, false) => 4e-2,
                },
                cosines: 4e-3,
                // Of columns that hold what was merged, sums drift from call to call.
                shares: if merges { 1.5e-1 } else { 5e-2 },
                steps: 1e-7,
            },
            DType::F16 => Margin { scores: 5e-3, cosines: 1e-3, shares: 2e-2, steps: 1e-7 },
            _ => Margin { scores: 5e-5, cosines: 1e-5, shares: 1e-3, steps: 2e-6 },
        }
    }

    /// The distribution of this session's inputs.
    fn pattern(&self) -> Pattern {
        let method = self.settings.method;
        let directions = match method.reduce {
            Reduce::EvictThenMerge { .. } => Some(4),
            _ => None,
        };
        let looks_at_keys = method.score.looks_at_keys();
        if self.dtype == DType::F32 || looks_at_keys || method.scores_are_whole_numbers() {
            return Pattern { directions, ..Pattern::NOISE };
        }
        // Where one set of tokens serves all heads, they had better agree.
        let shared = match method.score {
            Score::Window(window) => window.heads != Heads::Group,
            _ => false,
        };
        let moves = matches!(method.score, Score::Variance { .. })
            || matches!(method.allocate, Allocate::Preference { .. });
        let merges =
            matches!(method.reduce, Reduce::EmaMerge { .. } | Reduce::GaussianMerge { .. });
        Pattern {
            noise: (0.15, if merges || directions.is_some() { 1.0 } else { 0.15 }),
            levels: Some(Levels { shared, swing: if moves { 0.5 } else { 0.0 } }),
            directions,
        }
    }

    /// Plays some layers of a row through the reference, each on its own inputs.
    fn trace(&self, row: usize, layers: &[usize], seed: u64) -> Vec<Trace> {
        let total = self.turns.iter().map(|turn| match turn {
            Turn::Prompt { lengths, .. } => lengths[row],
            Turn::Decode(tokens) => *tokens,
        });
        let (total, pattern) = (total.sum(), self.pattern());
        let of_layer = |layer: &usize| {
            // Seeds of attempts lie close together, those of layers do not.
            let seed = seed.wrapping_add((*layer as u64) << 40);
            draw(seed, &self.settings, total, pattern, self.dtype)
        };
        let all: Vec<Tokens> = layers.iter().map(of_layer).collect();
        let precision = match self.dtype {
            DType::F16 => Precision::F16,
            DType::BF16 => Precision::Bf16,
            _ => Precision::F32,
        };
        let mut settings = self.settings.clone();
        if settings.method.allocate == Allocate::All {
            // It takes no budget, so that its schedule is that of the full cache.
            (settings.prefill, settings.decode_every) = (Prefill::Never, None);
        }
        let mut cache = ModelCache::new(settings, precision);
        let mut calls = vec![Vec::new(); layers.len()];
        let mut seen = 0;
        for turn in &self.turns {
            if let Turn::Prompt { .. } = turn {
                cache.begin_prompt();
            }
            for piece in turn.pieces(row) {
                let new = piece.columns - piece.padding;
                let mut outputs = Vec::new();
                for (layer, all) in layers.iter().zip(&all) {
                    let Tokens { q, k, v } = all.range(seen, seen + new);
                    outputs.push(match piece.prompt {
                        _ if new == 0 => vec![Vec::new(); self.settings.query_heads],
                        Some(last) => cache.prompt(*layer, &q, &k, &v, last),
                        None => cache.decode(*layer, &q, &k, &v),
                    });
                }
                for (index, outputs) in outputs.into_iter().enumerate() {
                    calls[index].push(Call {
                        tokens: all[index].range(seen, seen + new),
                        padding: piece.padding,
                        outputs,
                        kept: cache.kept_positions(layers[index]),
                    });
                }
                seen += new;
            }
        }
        calls.into_iter().map(|calls| Trace { calls, margin: cache.margin }).collect()
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
                    // A whole prompt without padding needs no declaration, unless it is a single
                    // token.
                    let is_padded = padding.iter().any(|padding| *padding > 0);
                    if chunks.len() > 1 || columns == 1 || is_padded {
                        let prompt = Prompt::new(columns).left_padding(padding);
                        cache.begin_prompt(prompt).expect("the prompt is valid");
                    }
                    chunks.len()
                }
                Turn::Decode(tokens) => *tokens,
            };
            for _ in 0..calls {
                let index = observed.len();
                observed.push(self.call(&mut cache, traces, index, positions.as_ref(), device));
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
        for layer in 0..self.settings.layers {
            let calls: Vec<&Call> = traces.iter().map(|row| &row[layer].calls[index]).collect();
            let (q, k, v) = batch(&calls, self.dtype, device);
            let output = cache.attend(layer, q, k, v, positions).unwrap_or_else(|error| {
                panic!("attend, call {index}, layer {layer}: {error}\n{self:?}");
            });
            assert_eq!(output.dtype(), self.dtype, "the output is of the type of the queries");
            for (row, mut output) in heads(output).into_iter().enumerate() {
                for head in &mut output {
                    let padded: Vec<Vec<f64>> = head.drain(..calls[row].padding).collect();
                    assert!(
                        padded.iter().flatten().all(|x| *x == 0.0),
                        "a padded column's output is zero"
                    );
                }
                outputs[row].push(output);
            }
        }
        for layer in 0..self.settings.layers {
            let positions = cache.kept_positions(layer).expect("a layer that exists");
            let counts: Vec<Vec<usize>> =
                positions.iter().map(|heads| heads.iter().map(Vec::len).collect()).collect();
            assert_eq!(cache.kept_by_head(layer).expect("a layer that exists"), counts);
            for (row, positions) in positions.into_iter().enumerate() {
                kept[row].push(positions);
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
                    let (found, margin) = (&observed.outputs[row][layer], trace.margin);
                    let place =
                        format!("call {index}, row {row}, layer {layer}, {margin:?}\n{self:?}");
                    // The positions first: after a wrong selection every later output is off too.
                    assert_eq!(
                        observed.kept[row][layer], call.kept,
                        "kept positions (library, reference), {place}"
                    );
                    compare(found, &call.outputs, tolerance(self.dtype), &place);
                }
            }
            assert_eq!(observed.seen, seen, "tokens seen, call {index}\n{self:?}");
        }
    }
}

/// Tolerance of an output around the reference, absolute plus relative.
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
        let vectors = rows.iter().flat_map(|row| heads_of(&row.tokens)).flatten();
        let head_dim = vectors.map(Vec::len).max().unwrap_or(0);
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
