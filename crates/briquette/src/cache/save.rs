//! Saves a cache to a file, and loads it again.

use std::{collections::BTreeMap, path::Path};

use burn::tensor::Device;

use super::{
    CacheConfig, KvCache,
    call::store_guard::drop_free_slots,
    ceiling,
    kv_cache::measures_of,
    layer::LayerCache,
    progress::Progress,
    queries::{log::QueryLog, window::QueryWindow},
    recurrent::RecurrentLayer,
};
use crate::{
    CacheShape, Error, Policy, Prefix, Result,
    prefix::{Header, Parts, PrefixError, fingerprint},
    store::{StoreOptions, restore},
    view::Measure,
};

impl KvCache {
    /// Writes the cache to a file. A cache that [`load`](Self::load) reads from it continues as
    /// this one would, bit for bit.
    ///
    /// The file is safetensors. It has keys, values and statistics as the stores hold them, and a
    /// header with a version, a checksum, and the identity of model and policy. It is first written
    /// to disk beside `path`, and then moved into place.
    ///
    /// # Errors
    /// [`Error::Prefix`] if it has seen nothing, if a step has not gone through all layers, if its
    /// store has no file form or the file cannot be written; [`Error::PromptUnfinished`];
    /// [`Error::Execution`] if the device failed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with_metadata(path, BTreeMap::new())
    }

    /// Saves as [`save`](Self::save) does, with texts that describe the prompt.
    /// [`Prefix::metadata`] returns them; nothing else reads them.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_with_metadata(
        &self,
        path: impl AsRef<Path>,
        metadata: BTreeMap<String, String>,
    ) -> Result<()> {
        self.check_complete()?;
        let layers = 0..self.layers.len();
        let mut parts = Parts::default();
        for (number, layer) in self.layers.iter().enumerate() {
            parts.put_parts(&format!("layer.{number}"), layer.save(self.policy_of(number))?);
        }
        for (number, layer) in self.recurrent.iter().enumerate() {
            parts.put_parts(&format!("recurrent.{number}"), layer.save()?);
        }
        let [values, layer_shapes] = self.config.shape_texts();
        let header = Header {
            model: self.config.model.clone(),
            shape: self.shape,
            policy: self.policy.name().to_owned(),
            budget: self.policy.budget().map(|budget| budget.to_string()),
            policy_fingerprint: fingerprint(&self.policy),
            policy_file: self.policy.to_toml().ok(),
            dtype: format!("{:?}", self.dtype()),
            softmax_scale: self.config.softmax_scale.map(|scale| scale.to_string()),
            softcap: self.config.softcap.map(|cap| cap.to_string()),
            windows: self.config.windows.as_ref().map(|windows| format!("{windows:?}")),
            values,
            layer_shapes,
            recurrent_layers: self.config.recurrent_text(),
            tokens_seen: self.tokens_seen(),
            tokens_kept: layers.map(|layer| self.tokens_kept(layer)).collect::<Result<_>>()?,
            bytes_held: self.bytes_held(),
            metadata,
            numbers: Default::default(),
        };
        Prefix::write(path.as_ref(), header, parts)
    }

    /// Sets the identity of the model, as [`CacheConfig::with_model`] does, after the cache was
    /// made. It may take a while to compute, and only files need it.
    pub fn name_model(&mut self, model: impl Into<String>) {
        self.config.model = Some(model.into());
    }

    /// Loads a cache that was [saved](Self::save), on any device. Shape, policy, configuration and
    /// the [name of the model](CacheConfig::with_model) must be those it was saved with.
    ///
    /// # Errors
    /// [`Error::Prefix`] for a file that is cut off, altered, or of another model or policy; what
    /// [`with_config`](Self::with_config) refuses.
    pub fn load(
        path: impl AsRef<Path>,
        shape: CacheShape,
        policy: Policy,
        config: CacheConfig,
        device: &Device,
    ) -> Result<Self> {
        Self::from_prefix(Prefix::read(path)?, shape, policy, config, device)
    }

    /// Loads as [`load`](Self::load) does, from a file that has been read already, for example to
    /// look up its [policy](Prefix::policy).
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn from_prefix(
        prefix: Prefix,
        shape: CacheShape,
        policy: Policy,
        config: CacheConfig,
        device: &Device,
    ) -> Result<Self> {
        let Prefix { header, mut parts, .. } = prefix;
        check(&header, shape, &policy, &config)?;
        let dtype = header.data_type()?;
        let seen = header.tokens_seen;
        let mut cache = Self::with_config(shape, policy, config, device)?;
        cache.first_dtype = Some(dtype);
        for layer in 0..shape.layers {
            let of_layer = parts.take_parts(&format!("layer.{layer}"));
            let options = cache.context_between_calls(layer).store_options(seen.len());
            cache.layers[layer] =
                LayerCache::restore(of_layer, &seen, cache.policy_of(layer), options)?;
        }
        for (number, shape) in cache.config.recurrent_shapes().iter().enumerate() {
            let of_layer = parts.take_parts(&format!("recurrent.{number}"));
            let device = cache.devices.of(cache.place_of_state(number));
            cache.recurrent[number] = RecurrentLayer::restore(of_layer, &seen, *shape, device)?;
        }
        parts.finish()?;
        cache.measures = measures_of(&cache.layers);
        cache.batch = Some(seen.len());
        ceiling::check(cache.config.memory_ceiling, 0, cache.bytes_held())?;
        Ok(cache)
    }

    /// Checks that every layer has seen the same tokens, and the whole of the last prompt.
    pub(super) fn check_complete(&self) -> Result<()> {
        let Some(first) = self.layers.first().map(|layer| layer.progress().seen()) else {
            return Err(PrefixError::Empty.into());
        };
        for (layer, cache) in self.layers.iter().enumerate() {
            if let Some((arrived, declared)) = cache.progress().unfinished() {
                return Err(Error::PromptUnfinished { layer, arrived, declared });
            }
            let found = cache.progress().seen();
            if found != first {
                let (found, first) = (found.to_vec(), first.to_vec());
                return Err(PrefixError::LayersApart { layer, found, first }.into());
            }
        }
        if first.is_empty() {
            return Err(PrefixError::Empty.into());
        }
        self.check_recurrent_in_step()
    }
}

/// Checks that a prefix is of this model, policy and configuration.
fn check(header: &Header, shape: CacheShape, policy: &Policy, config: &CacheConfig) -> Result<()> {
    if header.shape != shape {
        return Err(PrefixError::OtherShape { found: header.shape, given: shape }.into());
    }
    if header.model != config.model {
        let (found, given) = (header.model.clone(), config.model.clone());
        return Err(PrefixError::OtherModel { found, given }.into());
    }
    if !header.is_of(policy) {
        let (found, given) = (header.policy.clone(), policy.name().to_owned());
        return Err(PrefixError::OtherPolicy { found, given }.into());
    }
    let [scale, cap] =
        [config.softmax_scale, config.softcap].map(|it| it.map(|number| number.to_string()));
    let windows = config.windows.as_ref().map(|windows| format!("{windows:?}"));
    let [values, layer_shapes] = config.shape_texts();
    let dtype = config.dtype.map(|dtype| format!("{dtype:?}"));
    for (what, found, given) in [
        ("the type", Some(header.dtype.clone()), dtype.or_else(|| Some(header.dtype.clone()))),
        ("the softmax scale", header.softmax_scale.clone(), scale),
        ("the softcap", header.softcap.clone(), cap),
        ("the windows of layers", header.windows.clone(), windows),
        ("the value_dim", header.values.clone(), values),
        ("the shapes of layers", header.layer_shapes.clone(), layer_shapes),
        ("the recurrent layers", header.recurrent_layers.clone(), config.recurrent_text()),
    ] {
        if found != given {
            let [found, given] = [found, given].map(|it| it.unwrap_or_else(|| "none".to_owned()));
            return Err(PrefixError::OtherConfig { what, found, given }.into());
        }
    }
    Ok(())
}

impl LayerCache {
    fn save(&self, policy: &Policy) -> Result<Parts> {
        // A layer of which all has come has no snapshot.
        let Self {
            progress,
            store,
            window,
            log,
            held,
            measure,
            state,
            local_queries,
            share: _,
            growth: _,
            snapshot: _,
            second_pass,
            fixed,
            mark: _,
        } = self;
        let mut parts = Parts::default();
        parts.put_numbers("columns", progress.columns());
        parts.put_numbers("decoded", [progress.decoded()]);
        parts.put_numbers("local-queries", [*local_queries]);
        parts.put_numbers("held", &held[..]);
        parts.put_numbers("fixed", [*fixed]);
        parts.put_numbers("second-pass", [usize::from(*second_pass)]);
        parts.put_numbers("numbers-of-state", [state.as_ref().map_or(0, |x| x.dims()[1])]);
        if let Some(state) = state {
            parts.put("state", state.as_ref())?;
        }
        if let Some(measure) = measure {
            parts.put_exact("measure", measure.of_rows.clone());
            parts.put_numbers("measured-at", &measure.seen[..]);
        }
        parts.put_parts("window", window.save()?);
        parts.put_parts("log", log.save()?);
        let none = || PrefixError::Store { store: policy.store().name().to_owned() };
        let mut store = store.clone().ok_or_else(none)?;
        drop_free_slots(store.as_mut(), held)?;
        let saved = store.save()?;
        parts.put_parts("store", saved.ok_or_else(none)?);
        Ok(parts)
    }

    fn restore(
        mut parts: Parts,
        seen: &[usize],
        policy: &Policy,
        options: StoreOptions,
    ) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = options;
        let empty = Self::new(observes);
        let queries = [batch, shape.query_heads, empty.window.size(), shape.head_dim];
        let numbers = parts.take_number("numbers-of-state")?;
        let state = || parts.take_float("state", [batch, numbers], device).map(Box::new);
        let state = (numbers > 0).then(state).transpose()?;
        let measure = parts.holds("measure").then(|| -> Result<_> {
            let of_rows = parts.take_exact("measure", batch)?;
            Ok(Measure { of_rows, seen: parts.take_list("measured-at", batch)? })
        });
        let mut layer = Self {
            progress: Progress::after(
                seen.to_vec(),
                parts.take_list("columns", batch)?,
                parts.take_number("decoded")?,
            ),
            window: QueryWindow::restore(parts.take_parts("window"), queries, device)?,
            log: QueryLog::restore(
                parts.take_parts("log"),
                [batch, shape.query_heads, shape.head_dim],
                device,
            )?,
            held: parts.take_list("held", batch * shape.kv_heads)?,
            measure: measure.transpose()?,
            state,
            local_queries: parts.take_number("local-queries")?,
            fixed: parts.take_number("fixed")?,
            second_pass: parts.take_number("second-pass")? == 1,
            ..empty
        };
        let store = policy.store();
        let none = || PrefixError::Store { store: store.name().to_owned() };
        let restored = restore(store, options, parts.take_parts("store"))?.ok_or_else(none)?;
        parts.finish()?;
        if let Some(held) = layer.held.iter().find(|&&held| held > restored.columns()) {
            let reason = format!("is {held} of {} columns", restored.columns());
            return Err(PrefixError::contents("held", reason).into());
        }
        layer.store = Some(restored);
        Ok(layer)
    }
}
