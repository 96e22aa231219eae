use std::collections::BTreeSet;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Result,
    config::{given::Given, rope_keys::RopeParameters},
    json::parse,
    setting::{invalid, unsupported},
};

/// The one key every architecture has.
#[derive(Deserialize)]
pub(crate) struct Family {
    pub(crate) model_type: String,
}

/// A `config.json` as it is written.
pub(crate) struct Keys<'a> {
    pub(crate) shared: SharedKeys,
    text: &'a str,
    origin: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn parse(text: &'a str, origin: &'a str) -> Result<Self> {
        Ok(Self { shared: parse(text, origin)?, text, origin })
    }

    /// The same with other ones among the shared.
    pub(crate) fn with_shared(&self, shared: SharedKeys) -> Self {
        Self { shared, ..*self }
    }

    /// The keys that one architecture has.
    pub(crate) fn own<T: DeserializeOwned>(&self) -> Result<T> {
        parse(self.text, self.origin)
    }
}

/// The keys of several architectures that matter here.
#[derive(Clone, Deserialize)]
pub(crate) struct SharedKeys {
    pub(crate) vocab_size: Option<usize>,
    pub(crate) hidden_size: Option<usize>,
    pub(crate) intermediate_size: Option<usize>,
    pub(crate) num_hidden_layers: Option<usize>,
    pub(crate) num_attention_heads: Option<usize>,
    #[serde(default)]
    pub(crate) num_key_value_heads: Given<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) rms_norm_eps: Option<f64>,
    pub(crate) rope_theta: Option<f64>,
    #[serde(default)]
    pub(crate) partial_rotary_factor: Given<f64>,
    pub(crate) rope_scaling: Option<RopeParameters>,
    pub(crate) rope_parameters: Option<RopeParameters>,
    pub(crate) max_position_embeddings: Option<usize>,
    pub(crate) original_max_position_embeddings: Option<usize>,
    #[serde(default)]
    pub(crate) sliding_window: Given<usize>,
    pub(crate) use_sliding_window: Option<bool>,
    /// The kind of each layer, as newer files write it.
    pub(crate) layer_types: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) tie_word_embeddings: Given<bool>,
    #[serde(default)]
    pub(crate) attention_bias: Given<bool>,
    pub(crate) mlp_bias: Option<bool>,
    /// Whether tokens see those before them alone.
    #[serde(default)]
    pub(crate) is_causal: Given<bool>,
    /// Of a GGUF file, in which the output projection may have none beside the others.
    #[serde(rename = "blk.0.attn_output.bias")]
    pub(crate) output_bias: Option<bool>,
    pub(crate) hidden_act: Option<String>,
    pub(crate) hidden_activation: Option<String>,
    pub(crate) quantization_config: Option<Value>,
    pub(crate) bos_token_id: Option<i64>,
    pub(crate) eos_token_id: Option<TokenIds>,
    pub(crate) pad_token_id: Option<i64>,
}

impl SharedKeys {
    /// The same with the rotated part of a head that a file means which says none.
    pub(crate) fn partly_rotated(self, absent: f64) -> Self {
        let inside = [&self.rope_parameters, &self.rope_scaling].into_iter().flatten();
        let said = inside.filter_map(|parameters| parameters.partial_rotary_factor).count() > 0;
        let partial_rotary_factor = match self.partial_rotary_factor {
            Given::Absent if !said => Given::Value(absent),
            given => given,
        };
        Self { partial_rotary_factor, ..self }
    }

    /// The sliding window of a file, `absent` if it does not say.
    pub(crate) fn window(&self, absent: Option<usize>) -> Option<usize> {
        self.sliding_window.clone().or(absent)
    }

    /// The window of a model whose file says with `use_sliding_window` whether it has one.
    pub(crate) fn optional_window(&self, absent: Option<usize>) -> Option<usize> {
        self.window(absent).filter(|_| self.use_sliding_window.unwrap_or(false))
    }

    /// The layers with a sliding window: those that `layer_types` names, or that are so `otherwise`
    /// where it is not there.
    pub(crate) fn sliding_layers(
        &self,
        layers: usize,
        otherwise: impl Fn(&usize) -> bool,
    ) -> Result<BTreeSet<usize>> {
        let supported = "full_attention and sliding_attention";
        self.layers_of_kind(("sliding_attention", supported), layers, otherwise)
    }

    /// The layers that attend in chunks, likewise.
    pub(crate) fn chunked_layers(
        &self,
        layers: usize,
        otherwise: impl Fn(&usize) -> bool,
    ) -> Result<BTreeSet<usize>> {
        let supported = "full_attention and chunked_attention";
        self.layers_of_kind(("chunked_attention", supported), layers, otherwise)
    }

    /// The layers of the one kind that a family has beside full attention, with the text of both.
    pub(crate) fn layers_of_kind(
        &self,
        (kind, supported): (&str, &'static str),
        layers: usize,
        otherwise: impl Fn(&usize) -> bool,
    ) -> Result<BTreeSet<usize>> {
        let Some(types) = &self.layer_types else {
            return Ok((0..layers).filter(otherwise).collect());
        };
        if types.len() != layers {
            let must_be = format!("num_hidden_layers = {layers}");
            return Err(invalid("the length of layer_types", types.len(), must_be));
        }
        let mut found = BTreeSet::new();
        for (layer, named) in types.iter().enumerate() {
            if named == kind {
                found.insert(layer);
            } else if named != "full_attention" {
                return Err(unsupported("layer_types", named, supported));
            }
        }
        Ok(found)
    }
}

/// `eos_token_id` is a number or a list of them.
#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "eos_token_id must be a whole number or a list of them")]
pub(crate) enum TokenIds {
    One(i64),
    Many(Vec<i64>),
}

impl TokenIds {
    pub(crate) fn tokens(&self) -> Vec<u32> {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        };
        ids.iter().copied().filter_map(token).collect()
    }
}

/// Older files write −1 where there is no such token.
pub(crate) fn token(id: i64) -> Option<u32> {
    u32::try_from(id).ok()
}
