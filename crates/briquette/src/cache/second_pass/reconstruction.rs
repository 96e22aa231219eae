//! A second pass over a prompt: the model repeats it on the cache's entries, and the weights of the
//! repeating queries are counted.

use std::ops::Range;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};

use crate::{
    Error, Result,
    cache::{
        KvCache,
        call::input::{Projections, check, check_encoding},
        layer::LayerCache,
    },
    ops::{
        AttentionStatistics, Entries, Scoring, Selection, Visibility, gather_rows, group_mean,
        precise_product,
    },
    policy::PositionMode,
    position::{PositionEncoding, encode, encode_queries},
    stage::Repeat,
    store::{StoreQuery, attend_entries},
    view::reach,
};

/// Second pass over a prompt that a cache holds whole, for policies that [observe
/// one](crate::score::AttentionRequest::second_pass).
///
/// The prompt is repeated part by part. [`begin`](Self::begin) selects a part; a forward pass of
/// the model over the tokens that repeat it then calls [`attend`](Self::attend) once per layer, in
/// place of [`KvCache::attend`]. These tokens see the whole prompt and those before them that
/// repeat the same part; the cache does not change. [`KvCache::compress_by`] takes the result of
/// [`finish`](Self::finish).
///
/// The counted weights are a softmax over the sinks, the part, and the repeating tokens, as
/// published (KVzip, [arXiv 2505.23416](https://arxiv.org/abs/2505.23416)); or over the whole
/// prompt and the repeating tokens ([`Repeat::reread`]: KVCompose, [arXiv
/// 2509.05165](https://arxiv.org/abs/2509.05165)).
#[derive(Debug)]
pub struct Reconstruction<'a> {
    cache: &'a KvCache,
    repeat: Repeat,
    /// Tokens of the prompt per batch row.
    seen: Vec<usize>,
    /// Columns of the entries of a layer.
    columns: usize,
    part: Option<Part>,
    hidden: Option<Tensor<3>>,
    /// The largest weight so far, `[batch, heads, columns]` per layer: of kv heads, or of query
    /// heads where their mean counts.
    given: Vec<Tensor<3>>,
}

/// A part of the prompt and the tokens that repeat it.
#[derive(Clone, Debug)]
struct Part {
    /// The position of each repeating token, `[batch, 1, new]`; −1 is padding.
    positions: Tensor<3, Int>,
    new: usize,
    padded: bool,
    /// All positions are below this one.
    end: usize,
    /// The columns of the sinks and of the part, the same for every head.
    columns: Selection,
    /// Whether each row has those columns, `[batch, width]`: 0 if it has, −1 if not.
    there: Tensor<2, Int>,
    sinks: usize,
    width: usize,
}

impl KvCache {
    /// Begins a second pass over the prompt; `None` if the policy needs none.
    ///
    /// The cache refuses decoded tokens ([`Error::SecondPassMissing`]) until
    /// [`compress_by`](Self::compress_by) has taken the result.
    ///
    /// # Errors
    /// [`Error::Stage`] if the cache does not hold all tokens it has seen, or has seen none, or if
    /// the model has ALiBi slopes.
    pub fn reconstruction(&self) -> Result<Option<Reconstruction<'_>>> {
        let Some(repeat) = self.policy.second_pass() else { return Ok(None) };
        if self.config.slopes.is_some() {
            return Err(self.refused("repeats prompts of models without ALiBi slopes"));
        }
        let seen = self.tokens_seen();
        let whole = |layer: usize| {
            let heads = self.layers[layer].held().chunks(self.shape.kv_heads);
            heads.zip(&seen).all(|(heads, seen)| heads.iter().all(|held| held == seen))
        };
        if seen.is_empty() || !(0..self.shape.layers).all(whole) {
            let reason = "repeats prompts of which all tokens are held in every layer";
            return Err(self.refused(reason));
        }
        // Rows that differ may lie in more columns than the longest has. All layers hold the same.
        let positions = self.layers.first().and_then(LayerCache::positions);
        let columns = positions.map_or(0, |positions| positions.dims()[2]);
        let heads = if repeat.reread { self.shape.query_heads } else { self.shape.kv_heads };
        let given = || {
            let dims = [seen.len(), heads, columns];
            Tensor::zeros(dims, (self.device(), DType::F32))
        };
        let given = (0..self.shape.layers).map(|_| given()).collect();
        Ok(Some(Reconstruction {
            cache: self,
            repeat,
            seen,
            columns,
            part: None,
            hidden: None,
            given,
        }))
    }

    fn refused(&self, reason: impl Into<String>) -> Error {
        Error::stage("scorer", self.policy.scorer().name(), reason)
    }
}

impl Reconstruction<'_> {
    /// Returns how the prompt is to be repeated.
    pub fn repeat(&self) -> Repeat {
        self.repeat
    }

    /// Begins the tokens `part` of each prompt, or as many of them as a row has. `tokens` are the
    /// numbers of repeating tokens per row: these are right-aligned in their columns, and their
    /// positions follow the prompt.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if a row has no token, [`Error::PaddingRows`] if there are not as
    /// many rows as in the cache.
    pub fn begin(&mut self, part: Range<usize>, tokens: &[usize]) -> Result<()> {
        let Self { cache, ref seen, columns, .. } = *self;
        if tokens.len() != seen.len() {
            return Err(Error::PaddingRows { expected: seen.len(), found: tokens.len() });
        }
        let new = tokens.iter().copied().max().unwrap_or(0);
        if let Some(row) = tokens.iter().position(|&tokens| tokens == 0) {
            return Err(Error::EmptyPrompt { row, columns: new, padding: new });
        }
        let rows = seen.len();
        let whole = self.repeat.reread;
        // A row of which nothing is left gives nothing.
        let asks = |seen: usize| !whole || part.start < seen;
        let part = if whole { 0..seen.iter().copied().max().unwrap_or(0) } else { part.clone() };
        let sinks = cache.policy.protect().sinks.min(part.start);
        let width = seen.iter().map(|&seen| part.end.min(seen).saturating_sub(part.start)).max();
        let width = width.unwrap_or(0);
        let wanted: Vec<usize> = (0..sinks).chain(part.start..part.start + width).collect();
        let (mut indices, mut there) = (Vec::new(), Vec::new());
        for &seen in seen {
            for _ in 0..cache.shape.kv_heads {
                // A row has its tokens at the right. What it has not may be any column.
                let column = |&token: &usize| (columns - seen + token).min(columns - 1) as i64;
                indices.extend(wanted.iter().map(column));
            }
            let has = |&token: &usize| if token < seen && asks(seen) { 0_i64 } else { -1 };
            there.extend(wanted.iter().map(has));
        }
        let mut positions = Vec::new();
        for (seen, &tokens) in seen.iter().zip(tokens) {
            positions.extend(std::iter::repeat_n(-1, new - tokens));
            positions.extend((*seen..seen + tokens).map(|position| position as i64));
        }
        let dims = [rows, cache.shape.kv_heads, wanted.len()];
        self.part = Some(Part {
            positions: Tensor::from_data(
                TensorData::new(positions, [rows, 1, new]),
                cache.device(),
            ),
            new,
            padded: tokens.iter().any(|&tokens| tokens < new),
            end: seen.iter().zip(tokens).map(|(seen, tokens)| seen + tokens).max().unwrap_or(0),
            columns: Selection {
                indices: Tensor::from_data(TensorData::new(indices, dims), cache.device()),
                counts: vec![wanted.len(); rows * cache.shape.kv_heads],
            },
            there: Tensor::from_data(TensorData::new(there, [rows, wanted.len()]), cache.device()),
            sinks,
            width,
        });
        Ok(())
    }

    /// Sets the hidden states that the next call of [`attend`](Self::attend) is computed from,
    /// `[batch, new, hidden]`, after the layer's norm. Only [`Repeat::normalize`] needs them.
    pub fn hidden_states(&mut self, x: &Tensor<3>) {
        if self.repeat.normalize {
            self.hidden = Some(x.clone());
        }
    }

    /// Computes the attention of the repeating tokens in one layer. Shapes are those of
    /// [`KvCache::attend`].
    ///
    /// # Errors
    /// Errors of [`KvCache::attend`], and [`Error::Stage`] if no part was begun or hidden states
    /// are missing.
    pub fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let cache = self.cache;
        let new = Projections { queries, keys, values };
        let shape = cache.config.layer_shape(cache.shape, layer);
        check(layer, &new, (cache.shape.layers, shape), cache.device(), Some(self.seen.len()))?;
        check_encoding(encoding, &cache.policy, cache.shape, cache.device())?;
        let columns = new.queries.dims()[2];
        let Some(part) = self.part.as_ref().filter(|part| part.new == columns) else {
            let reason = format!("was given {columns} columns that no part was begun for");
            return Err(cache.refused(reason));
        };
        if let Some(max) = encoding.max_positions().filter(|&max| part.end > max) {
            return Err(Error::PositionOverflow { position: part.end - 1, max });
        }
        let new = if part.padded { new.without_padding(&part.positions) } else { new };
        let ops = cache.config.ops.as_ref();
        let (places, progress) = ((&part.positions, part.end), cache.layers[layer].progress());
        let (new, encoding) = new.turned_back(encoding, &cache.policy, places, progress, ops)?;
        let Some(held) = cache.entries(layer)? else {
            return Err(cache.refused("was asked of an empty layer"));
        };
        let at = |x, positions| encode(encoding, x, positions, part.end, ops);
        let queries = encode_queries(encoding, new.queries, part.positions.clone(), part.end, ops)?;
        let keys = at(new.keys, part.positions.clone())?.cast(cache.dtype());
        let held = match cache.policy.positions() {
            PositionMode::Written => held,
            // Nothing was dropped: a token's rank is its position.
            PositionMode::InCache | PositionMode::Deferred => {
                Entries { keys: at(held.keys, held.positions.clone())?, ..held }
            }
        };
        let [batch, heads, ..] = keys.dims();
        let arriving = Entries {
            keys: keys.clone(),
            values: new.values.cast(cache.dtype()),
            positions: part.positions.clone().expand([batch, heads, columns]),
            statistics: AttentionStatistics::default(),
            clustering: None,
        };
        let given = self.received(layer, part, queries.clone(), &held, keys)?;
        self.given[layer] = self.given[layer].clone().max_pair(given);
        let all =
            Entries { statistics: AttentionStatistics::default(), ..held }.followed_by(arriving);
        let visibility = Visibility::Positions {
            queries: part.positions.clone(),
            entries: all.positions.clone(),
        };
        let output = attend_entries(
            all,
            StoreQuery {
                queries,
                visibility,
                encode: None,
                patterns: None,
                scoring: self.scoring(layer),
                column_sums: false,
                column_squares: false,
                ops,
            },
        )?;
        Ok(output.output)
    }

    /// Returns the weight that each entry of each layer received, `[batch, kv_heads, columns]`,
    /// f32; 0 where nothing was repeated.
    pub fn finish(self) -> Vec<Tensor<3>> {
        let heads = self.cache.shape.kv_heads;
        self.given.into_iter().map(|given| group_mean(given, heads)).collect()
    }

    fn scoring(&self, layer: usize) -> Scoring {
        let KvCache { shape, config, .. } = self.cache;
        config.scoring(*shape, layer)
    }

    /// Returns the largest weight that a repeating query gives each entry of the part,
    /// `[batch, heads, columns]`.
    fn received(
        &self,
        layer: usize,
        part: &Part,
        queries: Tensor<4>,
        held: &Entries,
        new: Tensor<4>,
    ) -> Result<Tensor<3>> {
        /// Maximum number of weights at once, unless [`LEAST`] queries have more.
        const BLOCK: usize = 1 << 22;
        /// Minimum number of queries at once: with fewer, a large batch takes thousands of
        /// launches.
        const LEAST: usize = 16;
        let cache = self.cache;
        let [batch, query_heads, columns, channels] = queries.dims();
        let heads = cache.shape.kv_heads;
        let group = query_heads / heads;
        let chosen = |x: &Tensor<4>| gather_rows(x.clone().cast(DType::F32), &part.columns);
        let keys = Tensor::cat(vec![chosen(&held.keys), new.cast(DType::F32)], 2).swap_dims(2, 3);
        let width = keys.dims()[3];
        // By position: what a row has of the part stands before all that repeats it.
        let seen_at =
            Tensor::cat(vec![part.there.clone(), part.positions.clone().squeeze_dim(1)], 1);
        let seen_at = seen_at.reshape([batch, 1, 1, width]);
        let asked_at = part.positions.clone().reshape([batch, 1, columns, 1]);
        let factor = self.factor(layer, part, batch, columns)?;
        let scoring = self.scoring(layer);
        let queries = queries.cast(DType::F32).reshape([batch * heads, group, columns, channels]);
        let block = (BLOCK / (batch * query_heads * width)).max(LEAST).min(columns);
        let mut most: Option<Tensor<4>> = None;
        for start in (0..columns).step_by(block) {
            let rows = block.min(columns - start);
            let dims = [batch, heads, group * rows, channels];
            let asked = queries.clone().narrow(2, start, rows).reshape(dims);
            let dims = [batch, 1, rows, width];
            let positions = asked_at.clone().narrow(2, start, rows).expand(dims);
            let seen_at = seen_at.clone().expand(dims);
            let hidden = seen_at.clone().greater(positions).bool_or(seen_at.lower_scalar(0));
            let hidden = hidden.repeat_dim(2, group).expand([batch, heads, group * rows, width]);
            let logits = precise_product(asked, keys.clone()) * scoring.scale;
            // Finite: a query that is padding sees nothing, and is multiplied by zero.
            let logits = scoring.capped(logits).mask_fill(hidden, -1e30);
            let weights = scoring.softmax(logits.reshape([batch, query_heads, rows, width]));
            let weights = weights.reshape([batch, heads, group * rows, width]);
            let weights = weights.narrow(3, part.sinks, part.width);
            let factor = factor.clone().narrow(2, start, rows).repeat_dim(2, group);
            let weights = (weights * factor).reshape([batch * heads, group, rows, part.width]);
            let found = weights.max_dim(2);
            most = Some(most.map_or(found.clone(), |most| most.max_pair(found)));
        }
        let Some(most) = most else { return Ok(self.given[layer].zeros_like()) };
        let mut most = most.reshape([batch, heads, group, part.width]);
        if self.repeat.normalize {
            let Some(weight) = cache.config.output_weights.as_ref().and_then(|all| all.get(layer))
            else {
                return Err(cache.refused("was called without its output projections"));
            };
            let values = chosen(&held.values).narrow(2, part.sinks, part.width);
            let length = |x: Tensor<4>| x.square().sum_dim(3).sqrt();
            most = most * reach(values, weight.clone(), cache.shape, length);
        }
        let given = self.given[layer].zeros_like();
        let [_, of_heads, _] = given.dims();
        let most = if of_heads == heads { most.max_dim(2) } else { most };
        let most: Tensor<3> = most.reshape([batch, of_heads, part.width]);
        let there = part.there.clone().narrow(1, part.sinks, part.width);
        let there = there.lower_scalar(0).reshape([batch, 1, part.width]);
        let most = most.clone().mask_fill(there.expand(most.dims()), 0.0);
        let columns = part.columns.indices.clone().narrow(2, part.sinks, part.width);
        // The same for all heads of a row.
        let columns = columns.narrow(1, 0, 1).expand([batch, of_heads, part.width]);
        Ok(given.scatter(2, columns, most, IndexingUpdateOp::Add))
    }

    /// The factor of each repeating token's weights, `[batch, 1, new, 1]`: 0 at padding.
    fn factor(&self, layer: usize, part: &Part, batch: usize, columns: usize) -> Result<Tensor<4>> {
        let dims = [batch, 1, columns, 1];
        let own =
            part.positions.clone().greater_equal_scalar(0).float().cast(DType::F32).reshape(dims);
        if !self.repeat.normalize {
            return Ok(own);
        }
        let hidden = self.hidden.as_ref().filter(|x| x.dims()[..2] == [batch, columns]);
        let Some(hidden) = hidden else {
            let reason = format!("was called without the hidden states of layer {layer}");
            return Err(self.cache.refused(reason));
        };
        let length = hidden.clone().cast(DType::F32).square().sum_dim(2).sqrt().reshape(dims);
        let padding = own.clone().equal_elem(0.0);
        Ok(own / length.mask_fill(padding, 1.0))
    }
}
