use std::sync::Arc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Device, Int, Tensor},
};

use briquette::{
    Budget, CacheConfig, CacheShape, InputCheck, KvCache, Policy,
    device::Upkeep,
    ops::{Fallback, Ops, best},
    policy::PositionMode,
    position::PositionEncoding,
};
use briquette_ops::QuantizedMatrix;

use crate::{
    Attend, Error, Interrupt, ModelConfig, Result, WeightBits,
    device_map::{DeviceMap, Placed},
    nn::{
        build::Build,
        decoder::Decoder,
        latent::READ_BY_HEADS,
        numbers::numbers,
        positions::Positions,
        projection::{Projection, Projections, within},
    },
};

/// A causal language model: token embedding, decoder layers of its
/// [`Architecture`](crate::Architecture), and a head that may share the embedding.
///
/// It computes on the device, or [devices](crate::DeviceMap), and in the data type it was loaded
/// with; keys and values live in the [`KvCache`] given to each call. Load it on the device it is to
/// run on: moving the module moves its parameters, but neither quantized weights nor the tables of
/// its position encoding, and its record has no quantized weights.
#[derive(Module, Debug)]
pub struct Model {
    pub(crate) model: Decoder,
    /// `None` when the head is tied to the token embedding.
    lm_head: Option<Projection>,
    #[module(skip)]
    config: ModelConfig,
    #[module(skip)]
    positions: Positions,
    #[module(skip)]
    pub(crate) placed: Placed,
    /// The operations of its layers and caches, which count their fallbacks together.
    #[module(skip)]
    pub(crate) ops: Arc<dyn Ops>,
    #[module(skip)]
    interrupt: Interrupt,
    #[module(skip)]
    upkeep: Upkeep,
    /// Bits of the weights that it was loaded with in more, if they were quantized since.
    #[module(skip)]
    pub(crate) quantized_to: Option<WeightBits>,
    #[module(skip)]
    pub(crate) warnings: Vec<String>,
}

impl Model {
    /// A model with random weights, to be trained or loaded into.
    ///
    /// # Errors
    /// [`Error::Cache`] if the position encoding cannot be built, and [`Error::InvalidSetting`] for
    /// a map of devices with other layers.
    pub fn new(config: ModelConfig, devices: impl Into<DeviceMap>) -> Result<Self> {
        let devices = devices.into();
        let whole = Placed::on(devices.first(), config.num_hidden_layers);
        let whole = Self::on(config, whole)?;
        if devices.is_one_for_all() {
            return Ok(whole);
        }
        // Parameters are made when they are first looked at: so far they are sizes.
        let Decoder { embed_tokens, layers, .. } = &whole.model;
        let layers: Vec<usize> = layers.iter().map(numbers).collect();
        let head = whole.lm_head.as_ref().map_or(0, numbers);
        let placed = devices.place((numbers(embed_tokens), &layers, head))?;
        Self::on(whole.config, placed)
    }

    fn on(config: ModelConfig, placed: Placed) -> Result<Self> {
        let ops = best();
        let build = Build { config: &config, device: placed.last(), ops: &ops };
        let head = || build.linear(config.hidden_size, config.vocab_size, false);
        Ok(Self {
            model: Decoder::new(build, placed.clone()),
            lm_head: (!config.tie_word_embeddings).then(head),
            positions: Positions::new(&config, &placed)?,
            ops,
            interrupt: Interrupt::new(),
            upkeep: Upkeep::default(),
            placed,
            quantized_to: None,
            warnings: Vec::new(),
            config,
        })
    }

    /// The same model with one matrix for queries, keys and values, and one for both sides of a
    /// gated feed-forward network, where its layers have them apart: a decode step hands over fewer
    /// launches. [`load`](Self::load) returns such a model. Parameters no longer have the names
    /// they have in a checkpoint.
    #[must_use]
    pub fn merge_projections(self) -> Self {
        let model = Self { model: self.model.merge_projections(), ..self };
        // What lay apart goes.
        model.clean_up();
        model
    }

    /// The same model, whose linear layers have their weights output by output in memory (K-major)
    /// where its device's kernels [multiply faster so](briquette_ops::ModelOps::prefers_k_major).
    /// [`load`](Self::load) returns such a model. Shapes stay `[inputs, outputs]`.
    #[must_use]
    pub fn with_k_major_weights(mut self) -> Self {
        lay_out(self.projections());
        // What lay the other way goes.
        self.clean_up();
        self
    }

    /// Stops when the flag is set: every call that gives tokens to a cache is
    /// [`Error::Interrupted`] then, before it changes the cache.
    pub fn with_interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    /// The bits that [`quantize_weights`](Self::quantize_weights) brought its weights to: with its
    /// files and its type they say which numbers it computes.
    pub fn quantized_to(&self) -> Option<WeightBits> {
        self.quantized_to
    }

    /// Sentences about what its files contradict themselves in, and how they were read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The bytes of its weights.
    pub fn weight_bytes(&self) -> usize {
        self.placed.each().map(|device| self.weight_bytes_on(device)).sum()
    }

    /// The bytes of its weights on a device.
    pub fn weight_bytes_on(&self, device: &Device) -> usize {
        struct Bytes<'a>(&'a Device, usize);
        impl ModuleVisitor for Bytes<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let weight = param.val();
                if weight.device() == *self.0 {
                    self.1 += weight.dims().iter().product::<usize>() * weight.dtype().size();
                }
            }
        }
        let mut dense = Bytes(device, 0);
        self.visit(&mut dense);
        let mut model = self.clone();
        let of = |matrix: Option<&QuantizedMatrix>| {
            let here = matrix.filter(|matrix| matrix.device() == *device);
            here.map_or(0, QuantizedMatrix::bytes)
        };
        let projections = model.projections();
        let projections = projections.iter().map(|(_, one)| of(one.quantized())).sum::<usize>();
        dense.1 + projections + of(self.model.embed_tokens.quantized_weight())
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device it computes on. Of a model on [several](crate::DeviceMap) it is the first: tokens
    /// are given on it, and logits are returned there.
    pub fn device(&self) -> Device {
        self.model.embed_tokens.device()
    }

    /// The devices that it lies on.
    pub fn devices(&self) -> Vec<Device> {
        self.placed.each().cloned().collect()
    }

    /// The device of a layer, on which its queries, keys and values come.
    pub fn device_of(&self, layer: usize) -> &Device {
        self.placed.of(layer)
    }

    /// The device of each layer of a cache, where there are several.
    pub(crate) fn devices_of_cache(&self) -> Option<Arc<[Device]>> {
        self.placed.of_layers().map(|all| self.model.in_order_of_cache(all))
    }

    /// Gives back what its devices hold unused.
    pub fn clean_up(&self) {
        self.placed.each().for_each(Device::memory_cleanup);
    }

    /// The data type it computes in.
    pub fn dtype(&self) -> DType {
        self.model.embed_tokens.dtype()
    }

    /// The position encoding of a layer, which it hands to a cache with its queries and keys.
    pub fn position_encoding(&self, layer: usize) -> &dyn PositionEncoding {
        self.positions.of(layer)
    }

    /// Weights of the output projection of each layer of attention, `W_O`: `[query_heads *
    /// head_dim, hidden_size]`, without a bias; quantized ones are expanded. Those of latent
    /// attention are of the latent, `[query_heads * kv_lora_rank, hidden_size]`.
    pub fn output_projections(&self) -> Vec<Tensor<2>> {
        self.model.output_projections(self.dtype())
    }

    /// Its linear layers, by their paths.
    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let mut all = within("model", self.model.projections());
        all.extend(self.lm_head.as_mut().map(|head| ("lm_head".into(), head)));
        all
    }

    /// Numbers of layers and heads, and the width of a head, for a cache of this model.
    pub fn cache_shape(&self) -> CacheShape {
        self.config.cache_shape()
    }

    /// The most tokens a sequence may have on a cache of this policy: the positions the model
    /// knows, or no end (`None`) where positions are counted inside the cache and the policy holds
    /// fewer tokens, as StreamingLLM does, unless layers have a sliding window, in which positions
    /// are those that tokens were written at.
    pub fn context(&self, policy: &Policy) -> Option<usize> {
        let context = self.config.max_position_embeddings;
        match policy.positions() {
            PositionMode::InCache if self.config.sliding_window.is_none() => {
                let Some(slack) = policy.schedule().decode_every else { return Some(context) };
                if let Some(Budget::Ratio(ratio)) = policy.budget() {
                    return Some((context.saturating_sub(slack) as f64 / ratio) as usize);
                }
                let held = self.most_held(policy, usize::MAX).saturating_add(slack);
                (held > context).then_some(context)
            }
            PositionMode::Written | PositionMode::InCache | PositionMode::Deferred => Some(context),
        }
    }

    /// The most tokens that a compressed layer holds of a row that has seen `seen`.
    pub(crate) fn most_held(&self, policy: &Policy, seen: usize) -> usize {
        match policy.budget() {
            Some(Budget::Tokens(tokens)) => tokens.min(seen),
            Some(Budget::Ratio(ratio)) => (ratio * seen as f64) as usize,
            // A budget in bytes is for all layers; an entry takes its keys and values at least.
            Some(Budget::Bytes(bytes)) => {
                let entry = self.config.token_bytes(self.dtype());
                usize::try_from(bytes).unwrap_or(usize::MAX) / entry.max(1)
            }
            None => seen,
        }
    }

    /// An empty cache for this model, on its device and in its data type. Keys and values are
    /// checked for NaN in prompts only, since the check of a decoded token would wait for the
    /// device once per layer.
    ///
    /// # Errors
    /// [`Error::Cache`] if the policy is invalid, and as [`cache_config`](Self::cache_config).
    pub fn cache(&self, policy: Policy) -> Result<KvCache> {
        let config = self.cache_config(&policy)?;
        Ok(KvCache::with_config(self.cache_shape(), policy, config, &self.device())?)
    }

    /// The configuration that [`cache`](Self::cache) builds a cache with, for those who add to it.
    ///
    /// # Errors
    /// [`Error::NoLayerToCompress`] for a policy that compresses, of a model whose layers all hold
    /// a window and no more.
    pub fn cache_config(&self, policy: &Policy) -> Result<CacheConfig> {
        self.config.check_layers_to_compress(policy)?;
        let config = CacheConfig::default()
            .with_dtype(self.dtype())
            .with_input_check(InputCheck::Prompt)
            .with_ops(self.ops.clone());
        let mut config = self.config.with_attention(config);
        config.sinks = self.model.sinks().map(Into::into);
        config.devices = self.devices_of_cache();
        Ok(match policy.reads_output_weights() {
            true => config.with_output_weights(self.output_projections()),
            false => config,
        })
    }

    /// Number of times that tensor operations answered for a kernel in its layers and all its
    /// [caches](Self::cache), by operation, with the reasons.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.ops.fallbacks()
    }

    /// The logits after every token. A prompt that is padded, or comes in several calls, is
    /// declared to the cache first, with [`KvCache::begin_prompt`].
    ///
    /// # Shapes
    /// - `tokens`: `[batch, tokens]`
    /// - returns `[batch, tokens, vocab_size]`
    ///
    /// # Errors
    /// [`Error::CacheShape`] for the cache of another model, [`Error::TokenOutOfRange`], and
    /// [`Error::Cache`] for what the cache refuses. An error in the middle of the layers leaves the
    /// cache as it was before too ([`KvCache::transaction`]), except at a decoded token under a
    /// policy that compresses in decoding: to take that back costs a copy of the cache, so it is
    /// the caller's choice to run it in a transaction.
    pub fn forward(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        self.head(self.hidden_states(tokens, cache)?)
    }

    /// The logits after the last token of each row. The head is computed for that column only, so a
    /// long prompt needs no `[tokens, vocab_size]` tensor.
    ///
    /// # Shapes
    /// - `tokens`: `[batch, tokens]`
    /// - returns `[batch, vocab_size]`
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_last(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<2>> {
        let hidden = self.hidden_states(tokens, cache)?;
        self.last_logits(hidden)
    }

    /// As [`forward_last`](Self::forward_last), with any [`Attend`], such as one that observes the
    /// calls of a cache.
    ///
    /// # Errors
    /// As [`forward`](Self::forward). Layers that ran before an error in the middle of them are not
    /// taken back.
    pub fn forward_last_through(
        &self,
        tokens: Tensor<2, Int>,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<2>> {
        self.check_tokens(tokens.clone().try_into_vec_as::<i64>()?)?;
        Self::check_not_empty(&tokens)?;
        self.last_through(tokens, attend)
    }

    /// As [`forward_last_through`](Self::forward_last_through), of tokens checked before.
    pub(crate) fn last_through(
        &self,
        tokens: Tensor<2, Int>,
        attend: &mut dyn Attend,
    ) -> Result<Tensor<2>> {
        self.interrupt.check()?;
        self.upkeep.call_on(self.placed.each());
        self.last_logits(self.model.forward(tokens, &self.positions, attend, &self.interrupt)?)
    }

    /// As [`forward_last`](Self::forward_last), of tokens that are known to be in the vocabulary,
    /// as those are that an `argmax` over its logits chose: nothing is read back from the device.
    /// The result for another token depends on the backend. Such a step can be recorded, so it does
    /// not clean the device up, which all other calls do now and then: a loop of launched steps
    /// calls [`Upkeep`] itself.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), but for [`Error::TokenOutOfRange`].
    pub fn forward_last_of_known(
        &self,
        tokens: Tensor<2, Int>,
        cache: &mut KvCache,
    ) -> Result<Tensor<2>> {
        self.last_logits(self.layers(tokens, cache)?)
    }

    /// The normalised output of the last layer, before the head, on the device of that layer.
    ///
    /// # Shapes
    /// - `tokens`: `[batch, tokens]`
    /// - returns `[batch, tokens, hidden_size]`
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn hidden_states(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        // An unknown token panics or reads beyond the table, depending on the backend.
        self.check_tokens(tokens.clone().try_into_vec_as::<i64>()?)?;
        self.decode(tokens, cache)
    }

    /// As [`hidden_states`](Self::hidden_states), of tokens checked before.
    pub(crate) fn decode(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        self.upkeep.call_on(self.placed.each());
        self.layers(tokens, cache)
    }

    /// Runs tokens through the layers, which a recording may repeat.
    fn layers(&self, tokens: Tensor<2, Int>, cache: &mut KvCache) -> Result<Tensor<3>> {
        Self::check_not_empty(&tokens)?;
        self.check_cache(cache)?;
        self.interrupt.check()?;
        if tokens.dims()[1] == 1 && cache.transaction_copies() {
            return self.model.forward(tokens, &self.positions, cache, &Interrupt::new());
        }
        cache.try_transaction(|cache| {
            self.model.forward(tokens, &self.positions, cache, &self.interrupt)
        })
    }

    /// Runs tokens that were checked before through the layers, for the calls of `attend` that they
    /// make.
    pub(crate) fn pass(&self, tokens: Tensor<2, Int>, attend: &mut dyn Attend) -> Result<()> {
        self.model.forward(tokens, &self.positions, attend, &self.interrupt)?;
        Ok(())
    }

    /// [`Error::Interrupted`] if the model was told to stop.
    #[cfg(feature = "graph")]
    pub(crate) fn check_not_interrupted(&self) -> Result<()> {
        self.interrupt.check()
    }

    fn check_not_empty(tokens: &Tensor<2, Int>) -> Result<()> {
        match tokens.dims() {
            [rows, columns] if rows == 0 || columns == 0 => {
                Err(Error::EmptyPrompt { row: 0, rows })
            }
            _ => Ok(()),
        }
    }

    /// `[batch, tokens, hidden_size]` -> `[batch, vocab_size]`
    pub(crate) fn last_logits(&self, hidden: Tensor<3>) -> Result<Tensor<2>> {
        let last = hidden.dims()[1] - 1;
        Ok(self.head(hidden.narrow(1, last, 1))?.squeeze_dim(1))
    }

    pub(crate) fn check_cache(&self, cache: &KvCache) -> Result<()> {
        let (expected, found) = (self.cache_shape(), cache.shape());
        if expected != found {
            return Err(Error::CacheShape { expected, found });
        }
        self.config.check_attention(cache.config())
    }

    pub(crate) fn check_tokens(&self, tokens: impl IntoIterator<Item = i64>) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        let outside = |token: &i64| usize::try_from(*token).map_or(true, |id| id >= vocab_size);
        match tokens.into_iter().find(outside) {
            Some(token) => Err(Error::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// `[batch, tokens, hidden_size]` -> `[batch, tokens, vocab_size]`
    pub(crate) fn head(&self, hidden: Tensor<3>) -> Result<Tensor<3>> {
        let logits = self.uncapped(hidden)?;
        let logits = match self.config.logits_scaling {
            Some(divisor) => logits / divisor,
            None => logits,
        };
        let logits = match self.config.final_logit_softcapping {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        };
        Ok(on(logits, self.placed.first()))
    }

    fn uncapped(&self, hidden: Tensor<3>) -> Result<Tensor<3>> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => {
                let hidden = on(hidden, self.placed.first());
                self.model.embed_tokens.logits(hidden, self.ops.as_ref())
            }
        }
    }
}

/// Lays weights out as they are multiplied faster, but those that each head reads its part of.
pub(crate) fn lay_out(projections: Projections<'_>) {
    for (path, projection) in projections {
        if !path.ends_with(READ_BY_HEADS) {
            *projection = projection.clone().laid_out();
        }
    }
}

/// A tensor on a device, to which it moves if it is elsewhere.
fn on(x: Tensor<3>, device: &Device) -> Tensor<3> {
    if x.device() == *device { x } else { x.to_device(device) }
}
