use std::path::Path;

use serde::Deserialize;

use briquette::CacheShape;

use crate::{
    Error, Result,
    json::{parse, read_text},
    rope::{RopeConfig, RopeParameters},
    setting::{invalid, unsupported},
};

/// The dimensions and settings of a Llama model: what `config.json` says, with defaults filled in and
/// everything checked. Fields carry the names of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels inside the feed-forward network.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads a layer.
    pub num_attention_heads: usize,
    /// Key-value heads a layer.
    pub num_key_value_heads: usize,
    /// Channels a head.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Tokens of context.
    pub max_position_embeddings: usize,
    /// Whether the head is the transposed token embedding.
    pub tie_word_embeddings: bool,
    /// Whether the query, key, value and output projections have a bias.
    pub attention_bias: bool,
    /// Whether the projections of the feed-forward network have a bias.
    pub mlp_bias: bool,
    /// The token a text begins with.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The token that fills a padded column.
    pub pad_token_id: Option<u32>,
}

impl LlamaConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json), and [`Error::Read`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::parse(&read_text(path)?, &path.display().to_string())
    }

    /// Reads the text of a `config.json`. Keys that do not change the computation are ignored.
    ///
    /// # Errors
    /// [`Error::Json`] if the text is not JSON or lacks a key, [`Error::ModelType`] for another family,
    /// [`Error::UnsupportedSetting`] and [`Error::InvalidSetting`] for values this implementation would
    /// compute wrongly.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::parse(text, "config.json")
    }

    /// What a cache for this model looks like.
    pub fn cache_shape(&self) -> CacheShape {
        CacheShape {
            layers: self.num_hidden_layers,
            query_heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
        }
    }

    fn parse(text: &str, origin: &str) -> Result<Self> {
        // The family comes first: another one need not have the keys read below.
        let Family { model_type } = parse(text, origin)?;
        if model_type != "llama" {
            return Err(Error::ModelType { found: model_type });
        }
        let file: ConfigFile = parse(text, origin)?;
        if file.hidden_act != "silu" {
            return Err(unsupported("hidden_act", file.hidden_act, "silu"));
        }
        if let Some(quantization) = file.quantization_config {
            return Err(unsupported(
                "quantization_config",
                quantization.to_string(),
                "plain weights",
            ));
        }
        let positive = [
            ("vocab_size", file.vocab_size),
            ("hidden_size", file.hidden_size),
            ("intermediate_size", file.intermediate_size),
            ("num_hidden_layers", file.num_hidden_layers),
            ("num_attention_heads", file.num_attention_heads),
            ("num_key_value_heads", file.num_key_value_heads.unwrap_or(1)),
            ("max_position_embeddings", file.max_position_embeddings),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(invalid(key, 0, "at least 1"));
            }
        }
        let heads = file.num_attention_heads;
        let kv_heads = file.num_key_value_heads.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let must_be = format!("a multiple of num_key_value_heads = {kv_heads}");
            return Err(invalid("num_attention_heads", heads, must_be));
        }
        let head_dim = match file.head_dim {
            Some(head_dim) => head_dim,
            None if file.hidden_size.is_multiple_of(heads) => file.hidden_size / heads,
            None => {
                let must_be =
                    format!("a multiple of num_attention_heads = {heads} without head_dim");
                return Err(invalid("hidden_size", file.hidden_size, must_be));
            }
        };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(invalid("head_dim", head_dim, "even and at least 2"));
        }
        if !(file.rms_norm_eps.is_finite() && file.rms_norm_eps > 0.0) {
            return Err(invalid("rms_norm_eps", file.rms_norm_eps, "a positive number"));
        }
        let rope = RopeConfig::from_parameters(
            file.rope_theta,
            file.partial_rotary_factor,
            file.rope_parameters.or(file.rope_scaling),
        )?;
        Ok(Self {
            vocab_size: file.vocab_size,
            hidden_size: file.hidden_size,
            intermediate_size: file.intermediate_size,
            num_hidden_layers: file.num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            rms_norm_eps: file.rms_norm_eps,
            rope,
            max_position_embeddings: file.max_position_embeddings,
            tie_word_embeddings: file.tie_word_embeddings,
            attention_bias: file.attention_bias,
            mlp_bias: file.mlp_bias,
            bos_token_id: file.bos_token_id.and_then(token),
            eos_token_ids: file.eos_token_id.map_or_else(Vec::new, TokenIds::into_vec),
            pad_token_id: file.pad_token_id.and_then(token),
        })
    }
}

/// The one key every family has.
#[derive(Deserialize)]
struct Family {
    model_type: String,
}

/// The keys of `config.json` that matter here, with the defaults `transformers` gives them.
#[derive(Deserialize)]
struct ConfigFile {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "default_activation")]
    hidden_act: String,
    quantization_config: Option<serde_json::Value>,
    bos_token_id: Option<i64>,
    eos_token_id: Option<TokenIds>,
    pad_token_id: Option<i64>,
}

fn default_eps() -> f64 {
    1e-6
}

fn default_context() -> usize {
    2048
}

fn default_activation() -> String {
    "silu".into()
}

/// `eos_token_id` is a number or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(i64),
    Many(Vec<i64>),
}

impl TokenIds {
    fn into_vec(self) -> Vec<u32> {
        let ids = match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        };
        ids.into_iter().filter_map(token).collect()
    }
}

/// Older files write −1 where there is no such token.
fn token(id: i64) -> Option<u32> {
    u32::try_from(id).ok()
}
