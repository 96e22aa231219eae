//! The cache a model calls: [`KvCache`].

mod compress;
mod config;
mod last_queries;
mod layer;
mod prompt;
mod query_window;
mod ranks;
mod room;
pub mod store;
pub(crate) mod tracks;

use burn::tensor::{Device, Int, Tensor, TensorData};

pub use config::{CacheConfig, InputCheck};
pub(crate) use last_queries::LastQueries;
pub use prompt::Prompt;

pub use crate::ops::{Entries, Sharing, Track, Tracks};
use crate::{
    CacheShape, Error, Policy, Result, device::Rows, ops::laid_out, position::PositionEncoding,
};
use compress::{Compressed, View, compress_among_layers, distinct};
use config::is_cache_type;
use layer::{Context, LayerCache, Outcome, Projections, Replacement};
use prompt::{Arrival, Phase};

/// The key-value cache of a model: what every layer has kept of the tokens it has seen.
///
/// Cloning is cheap: both copies share their tensors until one of them is written to.
#[derive(Clone, Debug)]
pub struct KvCache {
    shape: CacheShape,
    policy: Policy,
    config: CacheConfig,
    device: Device,
    /// How rows lie there, once something does.
    rows: Option<Rows>,
    layers: Vec<LayerCache>,
    batch: Option<usize>,
    /// The positions of the last call: the layers of one step share them.
    positions: Option<(Vec<i64>, Tensor<3, Int>)>,
}

impl KvCache {
    /// An empty cache that holds keys and values in f32.
    ///
    /// # Errors
    /// [`Error::InvalidShape`], or what [`Policy::check`] and [`Policy::check_shape`] return.
    pub fn new(shape: CacheShape, policy: Policy, device: &Device) -> Result<Self> {
        Self::with_config(shape, policy, CacheConfig::default(), device)
    }

    /// An empty cache. Nothing is allocated on the device before the first token.
    ///
    /// # Errors
    /// [`Error::InvalidShape`], [`Error::DataType`] if the device cannot hold the type, or what
    /// [`Policy::check`] and [`Policy::check_shape`] return.
    pub fn with_config(
        shape: CacheShape,
        policy: Policy,
        config: CacheConfig,
        device: &Device,
    ) -> Result<Self> {
        shape.check()?;
        policy.check()?;
        policy.check_shape(shape)?;
        config.check()?;
        if !device.supports_dtype(config.dtype) {
            return Err(Error::DataType {
                what: "the cache",
                dtype: config.dtype,
                expected: format!("a type that {device:?} supports"),
            });
        }
        let observes = policy.observes();
        let layers = (0..shape.layers).map(|_| LayerCache::new(observes)).collect();
        let device = device.clone();
        Ok(Self { shape, policy, config, device, rows: None, layers, batch: None, positions: None })
    }

    /// Declares a prompt that will arrive in one or more calls of [`attend`](Self::attend) a layer: needed if it
    /// comes in chunks or is padded. A prompt that is compressed at its end is compressed when its last column
    /// has arrived.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::PaddingRows`], or [`Error::PromptUnfinished`] if the prompt before has not
    /// arrived whole.
    pub fn begin_prompt(&mut self, prompt: Prompt) -> Result<()> {
        prompt.check()?;
        if let Some(batch) = self.batch {
            prompt.check_rows(batch)?;
        }
        for (layer, cache) in self.layers.iter().enumerate() {
            if let Some((arrived, declared)) = cache.progress().unfinished() {
                return Err(Error::PromptUnfinished { layer, arrived, declared });
            }
        }
        for layer in &mut self.layers {
            layer.begin(prompt.clone());
        }
        Ok(())
    }

    /// Attention of new tokens over all the layer holds and over themselves, causal; the new tokens are taken
    /// in, and the layer is compressed if its policy says so, after the attention.
    ///
    /// One call appends, masks, attends, observes and compresses. Without a declared
    /// [prompt](Self::begin_prompt), several tokens are a whole unpadded prompt, and one token is a prompt if
    /// the layer is empty, else a decoded token.
    ///
    /// # Shapes
    /// - `queries`: `[batch, query_heads, new, head_dim]`
    /// - `keys`, `values`: `[batch, kv_heads, new, head_dim]`
    /// - returns `[batch, query_heads, new, head_dim]`, of the type of the queries; zero at padding
    ///
    /// Queries and keys come before their positions are encoded; `encoding` encodes them.
    ///
    /// # Errors
    /// A typed [`Error`] for every input the cache was not made for. The cache is then as it was before.
    ///
    /// Layers may be called in any order, except where the allocator measures them (CAKE, D2O): those of a prompt
    /// must come from the first to the last.
    pub fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        self.check(layer, &queries, &keys, &values)?;
        encoding.check(self.shape.head_dim, &self.device)?;
        let [batch, _, new, _] = queries.dims();
        let arrival = self.layers[layer].progress().arrive(layer, batch, new)?;
        let positions = self.positions(&arrival, batch);
        let new = Projections { queries, keys, values };
        let new = if arrival.padded { new.without_padding(&positions) } else { new };
        self.check_finite(layer, arrival.phase, &new)?;

        let Self { shape, policy, config, device, rows, layers, .. } = self;
        let measures: Vec<Option<Vec<f64>>> =
            layers.iter().map(|layer| layer.measure().cloned()).collect();
        let context = Context {
            layer,
            shape: *shape,
            observes: policy.observes(),
            policy,
            config,
            device,
            rows: *rows.get_or_insert_with(|| Rows::of(device)),
            encoding,
            measures: &measures,
        };
        let mut step = layers[layer].step(context, batch);
        let computed = layers[layer]
            .compute(context, &arrival, new, positions, &mut step)
            .and_then(|outcome| {
                let compressed = compress_layers(layers, context, &outcome)?;
                Ok((outcome, compressed))
            });
        let (mut outcome, compressed) = match computed {
            Ok(computed) => computed,
            Err(error) => {
                layers[layer].abort(step);
                return Err(error);
            }
        };
        let mut others = Vec::new();
        for (other, compressed) in compressed {
            if other == layer {
                outcome.replace_among_layers(compressed, policy);
            } else {
                others.push((other, compressed));
            }
        }
        let others: Vec<(usize, Replacement)> = others
            .into_iter()
            .map(|(other, compressed)| {
                Ok((other, layers[other].replacement(context, compressed)?))
            })
            .collect::<Result<_>>()?;
        let output = layers[layer].commit(context, arrival, outcome, step)?;
        // Nothing fails from here on.
        for (other, replacement) in others {
            layers[other].replace(replacement);
        }
        if layer + 1 == shape.layers {
            layers.iter_mut().for_each(LayerCache::forget_snapshot);
        }
        self.batch = Some(batch);
        Ok(output)
    }

    /// Tokens seen by every layer, one number a batch row, padding not counted; empty before the first.
    pub fn tokens_seen(&self) -> Vec<usize> {
        let seen = self.layers.iter().map(|layer| layer.progress().seen());
        seen.min_by_key(|seen| seen.iter().sum::<usize>()).unwrap_or_default().to_vec()
    }

    /// Tokens a layer keeps, one number a batch row, those of its longest head; empty before the first. See
    /// [`kept_by_head`](Self::kept_by_head).
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn tokens_kept(&self, layer: usize) -> Result<Vec<usize>> {
        let longest = |heads: Vec<usize>| heads.into_iter().max().unwrap_or(0);
        Ok(self.kept_by_head(layer)?.into_iter().map(longest).collect())
    }

    /// Tokens each head of a layer keeps, `[batch][kv_head]`; empty before the first. Where tokens share (EMS) only the
    /// device knows, and it is read.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn kept_by_head(&self, layer: usize) -> Result<Vec<Vec<usize>>> {
        if self.policy.reducer().makes_shared_entries() {
            let positions = self.kept_positions(layer)?;
            return Ok(positions.iter().map(|row| row.iter().map(Vec::len).collect()).collect());
        }
        let held = self.layer(layer)?.held();
        Ok(held.chunks(self.shape.kv_heads).map(<[usize]>::to_vec).collect())
    }

    /// Entries each head of a layer holds, `[batch][kv_head]`: fewer than tokens where tokens share (EMS).
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn entries_by_head(&self, layer: usize) -> Result<Vec<Vec<usize>>> {
        let cache = self.layer(layer)?;
        let held = match cache.entries()? {
            Some(entries) => distinct(&entries, cache.held()),
            None => cache.held().to_vec(),
        };
        Ok(held.chunks(self.shape.kv_heads).map(<[usize]>::to_vec).collect())
    }

    /// What the allocator measured of a layer at the last prompt, one number a batch row (CAKE: the preference;
    /// D2O: the density); `None` if it measures nothing.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn layer_measure(&self, layer: usize) -> Result<Option<Vec<f64>>> {
        Ok(self.layer(layer)?.measure().cloned())
    }

    /// What the reducer of a layer remembers, `[batch, numbers]` (D2O: the threshold of each row); `None` if it
    /// remembers nothing.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn reducer_state(&self, layer: usize) -> Result<Option<Tensor<2>>> {
        Ok(self.layer(layer)?.state().cloned())
    }

    /// The positions a layer keeps, ascending: `[batch][kv_head][entry]`. Reads from the device.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], or [`Error::Execution`] if the device failed.
    pub fn kept_positions(&self, layer: usize) -> Result<Vec<Vec<Vec<usize>>>> {
        let Some(positions) = self.layer(layer)?.positions() else { return Ok(Vec::new()) };
        let [_, heads, columns] = positions.dims();
        let positions = positions.try_into_vec_as::<i64>()?;
        let heads_of_rows = positions.chunks(heads * columns).map(|row| {
            let heads = row.chunks(columns);
            heads
                .map(|head| head.iter().filter_map(|&p| usize::try_from(p).ok()).collect())
                .collect()
        });
        Ok(heads_of_rows.collect())
    }

    /// The entries of a layer, a row a token, or `None` before the first.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`].
    pub fn entries(&self, layer: usize) -> Result<Option<Entries>> {
        let Some(entries) = self.layer(layer)?.entries()? else { return Ok(None) };
        Ok(Some(laid_out(entries, self.config.ops.as_ref())?))
    }

    /// Bytes the buffers of all layers take on the device now: keys, values, positions, what scorers
    /// accumulate, and the room made for tokens to come. What a device pads rows by is counted (CUDA pads those of scalars).
    pub fn bytes_held(&self) -> usize {
        let rows = self.rows.unwrap_or_default();
        self.layers.iter().map(|layer| layer.bytes(rows)).sum()
    }

    /// Bytes the keys and values of all tokens seen would take.
    pub fn bytes_full(&self) -> usize {
        let CacheShape { layers, kv_heads, head_dim, .. } = self.shape;
        let token = 2 * layers * kv_heads * head_dim * self.config.dtype.size();
        token * self.tokens_seen().iter().sum::<usize>()
    }

    /// Forgets everything; the next batch may have another size.
    pub fn reset(&mut self) {
        let observes = self.policy.observes();
        self.layers.fill_with(|| LayerCache::new(observes));
        self.batch = None;
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The dimensions.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// The configuration.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn layer(&self, layer: usize) -> Result<&LayerCache> {
        let layers = self.layers.len();
        self.layers.get(layer).ok_or(Error::LayerOutOfRange { layer, layers })
    }

    /// The positions of an arrival, `[batch, 1, new]`.
    fn positions(&mut self, arrival: &Arrival, batch: usize) -> Tensor<3, Int> {
        if let Some((host, tensor)) = &self.positions
            && *host == arrival.positions
            && tensor.dims()[0] == batch
        {
            return tensor.clone();
        }
        let new = arrival.positions.len() / batch;
        let data = TensorData::new(arrival.positions.clone(), [batch, 1, new]);
        let tensor = Tensor::from_data(data, &self.device);
        self.positions = Some((arrival.positions.clone(), tensor.clone()));
        tensor
    }

    fn check(
        &self,
        layer: usize,
        queries: &Tensor<4>,
        keys: &Tensor<4>,
        values: &Tensor<4>,
    ) -> Result<()> {
        self.layer(layer)?;
        let CacheShape { query_heads, kv_heads, head_dim, .. } = self.shape;
        let [batch, _, new, _] = queries.dims();
        for (tensor, x, heads) in [
            ("queries", queries, query_heads),
            ("keys", keys, kv_heads),
            ("values", values, kv_heads),
        ] {
            if x.device() != self.device {
                return Err(Error::WrongDevice {
                    tensor,
                    expected: format!("{:?}", self.device),
                    found: format!("{:?}", x.device()),
                });
            }
            if x.dims() != [batch, heads, new, head_dim] {
                let expected = if tensor == "queries" {
                    format!("[batch, {heads}, new, {head_dim}]")
                } else {
                    format!("[{batch}, {heads}, {new}, {head_dim}] like the queries")
                };
                return Err(Error::TensorShape { tensor, expected, found: x.dims().to_vec() });
            }
            if !is_cache_type(x.dtype()) || x.dtype() != queries.dtype() {
                let expected = if tensor == "queries" {
                    "F32, F16 or BF16".to_owned()
                } else {
                    format!("{:?} like the queries", queries.dtype())
                };
                return Err(Error::DataType { what: tensor, dtype: x.dtype(), expected });
            }
        }
        if batch == 0 || new == 0 {
            return Err(Error::EmptyPrompt { row: 0, columns: new, padding: 0 });
        }
        match self.batch {
            Some(expected) if expected != batch => {
                Err(Error::BatchChanged { expected, found: batch })
            }
            _ => Ok(()),
        }
    }

    /// One number a tensor is read from the device.
    fn check_finite(&self, layer: usize, phase: Phase, new: &Projections) -> Result<()> {
        if !self.config.input_check.applies(matches!(phase, Phase::Prompt { .. })) {
            return Ok(());
        }
        let count = |x: &Tensor<4>| x.clone().is_finite().bool_not().int().sum();
        let counts =
            Tensor::cat(vec![count(&new.queries), count(&new.keys), count(&new.values)], 0);
        let counts = counts.try_into_vec_as::<i64>()?;
        match ["queries", "keys", "values"].into_iter().zip(counts).find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(Error::NotFinite { what, layer, count: count as usize }),
            None => Ok(()),
        }
    }
}

/// Where budgets depend on other layers of the prompt, compresses those that have arrived: at every layer if
/// entries are dropped, at the last one if they are merged.
fn compress_layers(
    layers: &[LayerCache],
    context: Context<'_>,
    outcome: &Outcome,
) -> Result<Vec<(usize, Compressed)>> {
    let Some((snapshot, entries)) = &outcome.snapshot else { return Ok(Vec::new()) };
    let before = context.layer.checked_sub(1);
    let arrived =
        |layer: usize| layers[layer].snapshot().is_some_and(|it| it.seen == snapshot.seen);
    if let Some(missing) = before.filter(|&before| !arrived(before)) {
        let allocator = context.policy.allocator().name().to_owned();
        return Err(Error::LayerOrder { layer: context.layer, missing, allocator });
    }
    let last = context.layer + 1 == context.shape.layers;
    if !last && !context.policy.reducer().drops_only() {
        return Ok(Vec::new());
    }
    let measure = |layer: usize| match layer == context.layer {
        true => outcome.measure.clone(),
        false if layer < context.layer && layers[layer].snapshot().is_some() => {
            layers[layer].measure().cloned()
        }
        false => None,
    };
    let measures: Vec<Option<Vec<f64>>> = (0..context.shape.layers).map(measure).collect();
    let mut all = Vec::new();
    for (layer, cache) in layers.iter().enumerate().take(context.layer + 1) {
        let held_entries;
        let (snapshot, entries, held) = if layer == context.layer {
            (&**snapshot, &**entries, outcome.held())
        } else {
            let (Some(snapshot), Some(entries)) = (cache.snapshot(), cache.entries()?) else {
                continue;
            };
            held_entries = entries;
            (snapshot, &held_entries, cache.held())
        };
        let view = View {
            entries,
            held,
            arrived: &snapshot.arrived,
            seen: &snapshot.seen,
            budget: &snapshot.budget,
            prompt: true,
            state: cache.state(),
        };
        let of_layer = Context { layer, ..context };
        let compressed = compress_among_layers(of_layer, view, &snapshot.scores, &measures, !last)?;
        all.extend(compressed.map(|compressed| (layer, compressed)));
    }
    Ok(all)
}

impl Projections {
    /// Zeros where `positions` are those of padding: whatever stands there must not reach a sum.
    fn without_padding(self, positions: &Tensor<3, Int>) -> Self {
        let padding = positions.clone().lower_scalar(0).unsqueeze_dim::<4>(3);
        let clear = |x: Tensor<4>| {
            let mask = padding.clone().expand(x.dims());
            x.mask_fill(mask, 0.0)
        };
        Self { queries: clear(self.queries), keys: clear(self.keys), values: clear(self.values) }
    }
}
