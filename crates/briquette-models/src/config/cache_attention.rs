use std::fmt::Debug;

use briquette::{CacheConfig, Policy, ops::Window};
use burn::tensor::DType;

use crate::{Error, ModelConfig, Result};

/// How a model's attention differs from the usual, as its caches must know.
impl ModelConfig {
    /// The tokens that a query of a layer sees; `None` is all of the context.
    pub fn window(&self, layer: usize) -> Option<Window> {
        let hides = |window: &Window| window.size() < self.max_position_embeddings;
        self.sliding_window.filter(hides).filter(|_| self.sliding_layers.contains(&layer))
    }

    /// Whether a layer has a window within the context.
    fn has_windows(&self) -> bool {
        (0..self.num_hidden_layers).any(|layer| self.window(layer).is_some())
    }

    /// Checks that a policy has a layer to compress, if it compresses: those with a window hold
    /// what their next token sees.
    pub(crate) fn check_layers_to_compress(&self, policy: &Policy) -> Result<()> {
        let windows: Option<Vec<Window>> =
            (0..self.num_hidden_layers).map(|layer| self.window(layer)).collect();
        match windows.as_deref() {
            Some(&[window, ..]) if policy.budget().is_some() => {
                let (policy, window) = (policy.name().to_owned(), window.size());
                Err(Error::NoLayerToCompress { policy, window })
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the keys and values of a token in all layers, in this data type.
    pub fn token_bytes(&self, dtype: DType) -> usize {
        let apart = self.cache_shape().token_bytes(dtype);
        // Of the latent there is one, which is both.
        if self.latent.is_some() { apart / 2 } else { apart }
    }

    /// Channels of keys that are values, if values lie in keys.
    fn values_in_keys(&self) -> Option<usize> {
        self.latent.map(|latent| latent.kv_lora_rank)
    }

    pub(crate) fn with_attention(&self, mut config: CacheConfig) -> CacheConfig {
        if let Some(channels) = self.values_in_keys() {
            config = config.with_values_in_keys(channels);
        }
        if let Some(delta_net) = &self.delta_net {
            let states = vec![delta_net.state(); delta_net.layers.len()];
            config = config.with_recurrent_layers(states);
        }
        config.softmax_scale = self.softmax_scale;
        config.softcap = self.attn_logit_softcapping;
        if self.has_windows() {
            let windows = (0..self.num_hidden_layers).map(|layer| self.window(layer));
            config.windows = Some(windows.collect());
        }
        config
    }

    /// Checks that a cache was built with [`with_attention`](Self::with_attention), and has sinks
    /// if the model has; their numbers are not compared.
    pub(crate) fn check_attention(&self, config: &CacheConfig) -> Result<()> {
        same("softmax_scale", self.softmax_scale, config.softmax_scale)?;
        same("softcap", self.attn_logit_softcapping, config.softcap)?;
        let found = config.value_dim.filter(|_| config.values_in_keys);
        same("values_in_keys", self.values_in_keys(), found)?;
        let states = self.delta_net.as_ref().map(|own| vec![own.state(); own.layers.len()]);
        let found = config.recurrent_layers.as_ref().map(|all| all.to_vec());
        same("recurrent_layers", states, found)?;
        let layers = self.num_hidden_layers;
        let sinks = self.architecture.has_sinks().then_some(layers);
        same("sinks", sinks, config.sinks.as_ref().map(|all| all.len()))?;
        (0..layers).try_for_each(|layer| {
            let found = config.windows.as_ref().and_then(|all| all.get(layer).copied().flatten());
            same("windows", self.window(layer), found)
        })
    }
}

fn same<T: PartialEq + Debug>(
    setting: &'static str,
    expected: Option<T>,
    found: Option<T>,
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let shown = |number: Option<T>| number.map_or_else(|| "none".into(), |it| format!("{it:?}"));
    Err(Error::CacheAttention { setting, expected: shown(expected), found: shown(found) })
}
