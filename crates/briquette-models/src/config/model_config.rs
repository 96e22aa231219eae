#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::{collections::BTreeSet, path::Path};

use briquette::{CacheShape, ops::Window};

use crate::{
    Activation, Architecture, AttnTemperature, DeltaNetConfig, Error, ExpertsConfig, LatentConfig,
    Result,
    architecture::Defaults,
    checkpoint::{
        gguf::{self, Gguf},
        source::{Source, original_format},
    },
    config::{
        activation,
        generation::GenerationKeys,
        keys::{Family, Keys, TokenIds, token},
        quantization,
        rope::RopeConfig,
        rope_keys::RopeKeys,
        text_part,
    },
    json::{parse, read_text},
    setting::{check_positive, check_positive_number, invalid, unsupported},
    shown::shown,
};

/// What is normalised of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkNorm {
    /// Each head by itself (Qwen3, Gemma 3).
    Heads,
    /// All heads of a token together (OLMo 2).
    All,
    /// Each head by itself, without weights, in layers that encode positions (Llama 4).
    Unweighted,
}

/// The dimensions and settings of a model: what `config.json` says, with the defaults of its
/// architecture filled in and everything checked. Fields carry the names of the file where it has
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture.
    pub architecture: Architecture,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels inside the feed-forward network.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads per layer.
    pub num_attention_heads: usize,
    /// Key-value heads per layer.
    pub num_key_value_heads: usize,
    /// Channels per head; of latent attention those that are rotated.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm, to the variance in LayerNorm.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The rotary position embedding of the layers in `sliding_layers`, if it is another (Gemma 3).
    pub local_rope: Option<RopeConfig>,
    /// The layers that do not encode positions (SmolLM3, Llama 4).
    pub layers_without_rope: BTreeSet<usize>,
    /// Tokens of context: that of the file, or the context of the first training where frequencies
    /// change beyond it. [`with_context`](Self::with_context) chooses another.
    pub max_position_embeddings: usize,
    /// The tokens that a query of a windowed layer sees; `None` if no layer has a window.
    pub sliding_window: Option<Window>,
    /// The layers that have the window. Where a file names a window that no layer of the
    /// architecture has, this is empty and texts end with the window.
    pub sliding_layers: BTreeSet<usize>,
    /// Whether the head is the transposed token embedding.
    pub tie_word_embeddings: bool,
    /// Whether the query, key and value projections have a bias.
    pub attention_bias: bool,
    /// Whether the output projection of the attention has a bias.
    pub output_bias: bool,
    /// Whether the projections of the feed-forward network have a bias.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised before positions are encoded.
    pub qk_norm: Option<QkNorm>,
    /// The function inside the feed-forward network.
    pub hidden_act: Activation,
    /// Bound of both sides of the feed-forward network (gpt-oss).
    pub swiglu_limit: Option<f64>,
    /// The feed-forward networks of a mixture, if it is one.
    pub experts: Option<ExpertsConfig>,
    /// Latent attention, if it has that.
    pub latent: Option<LatentConfig>,
    /// Layers of linear attention, if it has some.
    pub delta_net: Option<DeltaNetConfig>,
    /// What scales the queries of layers that do not encode positions.
    pub attn_temperature: Option<AttnTemperature>,
    /// Factor of query-key products; `None` is `1 / √head_dim`.
    pub softmax_scale: Option<f64>,
    /// Factor of the embeddings (Gemma, Granite).
    pub embedding_multiplier: Option<f64>,
    /// Factor of what a block adds to the residual stream (Granite).
    pub residual_multiplier: Option<f64>,
    /// Divisor of the logits (Granite).
    pub logits_scaling: Option<f64>,
    /// Bound of the scores, which become `cap · tanh(scores / cap)` (Gemma 2).
    pub attn_logit_softcapping: Option<f64>,
    /// Bound of the logits, which become `cap · tanh(logits / cap)`.
    pub final_logit_softcapping: Option<f64>,
    /// The token a text begins with.
    pub bos_token_id: Option<u32>,
    /// Whether it is the text part of a model that sees more than text, whose other tensors are
    /// left out.
    pub is_text_part: bool,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The token that fills a padded column.
    pub pad_token_id: Option<u32>,
}

impl ModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json), and [`Error::Read`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::parse(&read_text(path)?, &path.display().to_string())
    }

    /// Reads the metadata of a GGUF file, or `config.json` of a folder, and the tokens that end a
    /// text from `generation_config.json` if there is one that names some: it is what
    /// `transformers` stops at, and often names more.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file); [`Error::NoSuchModel`], [`Error::NoModel`] and
    /// [`Error::OriginalFormat`] for a path without a model that is read; [`Error::Gguf`],
    /// [`Error::SeveralGguf`], [`Error::MissingPart`], [`Error::BlockType`] and
    /// [`Error::Truncated`] for GGUF files.
    pub fn from_folder(dir: impl AsRef<Path>) -> Result<Self> {
        let path = dir.as_ref();
        if !path.exists() {
            return Err(Error::NoSuchModel { path: path.into() });
        }
        let dir = match Source::of(path)? {
            Source::Folder(dir) if !dir.join("config.json").exists() => {
                return Err(original_format(&dir).unwrap_or(Error::NoModel { path: dir }));
            }
            Source::Folder(dir) => dir,
            Source::Gguf(path) => {
                let file = Gguf::open(&path)?;
                let text = gguf::config_json(&file, |name| file.numbers(name))?;
                return Self::parse(&text, &path.display().to_string());
            }
        };
        let mut config = Self::from_file(dir.join("config.json"))?;
        let generation = GenerationKeys::of_folder(&dir)?;
        if let Some(ids) = generation.and_then(|keys| keys.eos_token_id) {
            config.eos_token_ids = ids.tokens();
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`. Keys that do not change the computation are ignored.
    ///
    /// # Errors
    /// [`Error::Json`] if the text is not JSON or lacks a key, [`Error::ModelType`] for an
    /// architecture that is not known, [`Error::QuantizedWeights`] for weights that another program
    /// has quantized, [`Error::UnsupportedSetting`] and [`Error::InvalidSetting`] for values this
    /// implementation would compute wrongly.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::parse(text, "config.json")
    }

    /// The configuration for texts of up to `context` tokens. It is chosen before the first token
    /// because frequencies may depend on it (dynamic scaling, LongRoPE), and keys in a cache are
    /// not rotated again: a text that ends within the context of the first training is computed as
    /// `transformers` does with one choice, a longer one with the other.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for 0, or more than the model can have.
    pub fn with_context(mut self, context: usize) -> Result<Self> {
        let longest = self.longest_context();
        if !(1..=longest).contains(&context) {
            return Err(invalid("context", context, format!("from 1 to {longest}")));
        }
        self.max_position_embeddings = context;
        Ok(self)
    }

    /// The most tokens that a text can have, by [`with_context`](Self::with_context) too.
    pub fn longest_context(&self) -> usize {
        let longest = self.rope.scaling.longest().unwrap_or(self.max_position_embeddings);
        longest.min(self.last_window().unwrap_or(usize::MAX))
    }

    /// Why a text ends with the context where the file says more, and what allows a longer one.
    pub fn beyond_context(&self) -> Option<String> {
        let (context, longest) = (self.max_position_embeddings, self.longest_context());
        if longest > context {
            return Some(format!(
                "up to {longest} fit with --context N (ModelConfig::with_context), which chooses their frequencies"
            ));
        }
        let window = self.last_window().filter(|window| *window == context)?;
        Some(format!(
            "the configuration names a window of {window} tokens that not every layer has, behind which transformers \
             hides other tokens in a prompt than it forgets later"
        ))
    }

    /// The error of tokens that do not fit into a context.
    pub(crate) fn too_long(&self, tokens: usize, context: usize) -> Error {
        Error::PromptTooLong { tokens, context, why: self.beyond_context() }
    }

    /// The window that texts end with, if layers do not have it.
    fn last_window(&self) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers.is_empty()).map(Window::size)
    }

    /// Numbers of layers and heads, and the width of a head, for a cache of this model. Layers are
    /// those of attention: recurrent ones are counted beside them.
    pub fn cache_shape(&self) -> CacheShape {
        let recurrent = self.delta_net.as_ref().map_or(0, |delta_net| delta_net.layers.len());
        CacheShape {
            layers: self.num_hidden_layers.saturating_sub(recurrent),
            query_heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.latent.map_or(self.head_dim, |latent| latent.key_dim()),
        }
    }

    fn parse(text: &str, origin: &str) -> Result<Self> {
        // The architecture comes first: another one need not have the keys read below.
        let Family { model_type } = parse(text, origin)?;
        if let Some(architecture) = Architecture::of_text_in(&model_type) {
            let text = text_part::keys_of(architecture, text, origin)?;
            let origin = format!("{origin}, text_config");
            let config = architecture.read(&Keys::parse(&text, &origin)?)?;
            config.check()?;
            return Ok(Self { is_text_part: true, ..config });
        }
        let Some(architecture) = Architecture::named(&model_type) else {
            let found = shown(model_type);
            return Err(Error::ModelType { found, known: Architecture::names() });
        };
        let config = architecture.read(&Keys::parse(text, origin)?)?;
        config.check()?;
        Ok(config)
    }

    /// Reads the keys that architectures share; each adds its own.
    pub(crate) fn shared(
        architecture: Architecture,
        keys: &Keys,
        defaults: Defaults,
    ) -> Result<Self> {
        let file = &keys.shared;
        quantization::check(file.quantization_config.as_ref(), architecture)?;
        let vocab_size = file.vocab_size.unwrap_or(defaults.vocabulary);
        let hidden_size = file.hidden_size.unwrap_or(defaults.hidden);
        let layers = file.num_hidden_layers.unwrap_or(defaults.layers);
        let heads = file.num_attention_heads.unwrap_or(defaults.heads);
        let kv_heads = file.num_key_value_heads.clone();
        let kv_heads = kv_heads.or(defaults.kv_heads).unwrap_or(heads);
        let context = file.max_position_embeddings.unwrap_or(defaults.context);
        let positive = [
            ("vocab_size", vocab_size),
            ("hidden_size", hidden_size),
            ("num_hidden_layers", layers),
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
            ("max_position_embeddings", context),
        ];
        for (key, value) in positive {
            check_positive(key, value)?;
        }
        if !file.is_causal.is_on(true) {
            return Err(unsupported("is_causal", false, "true"));
        }
        // Lists of layers are made of this before the rest is checked.
        let most = 1 << 16;
        if layers > most {
            return Err(invalid("num_hidden_layers", layers, format!("at most {most}")));
        }
        let shared = hidden_size.checked_div(heads);
        let shared = shared.filter(|_| hidden_size.is_multiple_of(heads));
        let head_dim = match file.head_dim.or(defaults.head_dim).or(shared) {
            Some(head_dim) => head_dim,
            None => {
                let must_be =
                    format!("a multiple of num_attention_heads = {heads} without head_dim");
                return Err(invalid("hidden_size", hidden_size, must_be));
            }
        };
        let rope = RopeConfig::from_keys(&RopeKeys {
            theta: file.rope_theta,
            default_theta: defaults.theta,
            partial: file.partial_rotary_factor.clone().or(None),
            context,
            original: file.original_max_position_embeddings,
            scaling: file.rope_scaling.clone(),
            parameters: file.rope_parameters.clone(),
        })?;
        if rope.partial_rotary_factor < 1.0 && !architecture.rotates_partly() {
            let found = rope.partial_rotary_factor;
            return Err(unsupported("partial_rotary_factor", found, "1 for this model type"));
        }
        let act = ("hidden_act", file.hidden_act.as_deref());
        let activation = ("hidden_activation", file.hidden_activation.as_deref());
        let (own, other) = match architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => (activation, act),
            _ => (act, activation),
        };
        Ok(Self {
            architecture,
            vocab_size,
            hidden_size,
            intermediate_size: file.intermediate_size.unwrap_or(defaults.inner),
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            rms_norm_eps: file.rms_norm_eps.unwrap_or(defaults.epsilon),
            max_position_embeddings: rope.scaling.context(context),
            rope,
            local_rope: None,
            layers_without_rope: BTreeSet::new(),
            sliding_window: None,
            sliding_layers: BTreeSet::new(),
            tie_word_embeddings: file.tie_word_embeddings.is_on(defaults.tied),
            attention_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: None,
            hidden_act: activation::of_keys(own, other, defaults.activation)?,
            swiglu_limit: None,
            experts: None,
            latent: None,
            delta_net: None,
            attn_temperature: None,
            softmax_scale: None,
            embedding_multiplier: None,
            residual_multiplier: None,
            logits_scaling: None,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            is_text_part: false,
            bos_token_id: file.bos_token_id.and_then(token),
            eos_token_ids: file.eos_token_id.as_ref().map_or_else(Vec::new, TokenIds::tokens),
            pad_token_id: file.pad_token_id.and_then(token),
        })
    }

    /// Gives these layers a sliding window.
    pub(crate) fn with_window(
        self,
        window: Option<usize>,
        sliding_layers: BTreeSet<usize>,
    ) -> Result<Self> {
        match window {
            Some(0) => return Err(invalid("sliding_window", 0, "at least 1")),
            None if !sliding_layers.is_empty() => {
                let must_be = "given and in use where layer_types names layers that have one";
                return Err(invalid("sliding_window", "none", must_be));
            }
            _ => {}
        }
        let sliding_window = window.filter(|_| !sliding_layers.is_empty()).map(Window::Sliding);
        Ok(Self { sliding_window, sliding_layers, ..self })
    }

    /// The configuration of a family without windows. If a file names one, texts end with it:
    /// `transformers` hides nothing in a prompt, and yet its cache forgets what has left it.
    pub(crate) fn without_windows(self, keys: &Keys) -> Result<Self> {
        let window = keys.shared.window(None);
        let config = self.with_window_of_layers(keys, window, |_| window.is_some())?;
        Ok(config.within_window())
    }

    /// The same with texts that end with the window, within which no layer needs one.
    fn within_window(self) -> Self {
        let longest = self.sliding_window.map_or(usize::MAX, Window::size);
        Self {
            max_position_embeddings: self.max_position_embeddings.min(longest),
            sliding_layers: BTreeSet::new(),
            ..self
        }
    }

    /// Gives a window to the layers that `layer_types` names, or that have one `otherwise`.
    pub(crate) fn with_window_of_layers(
        self,
        keys: &Keys,
        window: Option<usize>,
        otherwise: impl Fn(&usize) -> bool,
    ) -> Result<Self> {
        let sliding = keys.shared.sliding_layers(self.num_hidden_layers, otherwise)?;
        self.with_window(window, sliding)
    }

    /// Gives a window to all layers, whatever `layer_types` says of them.
    pub(crate) fn with_window_of_all(self, keys: &Keys, window: Option<usize>) -> Result<Self> {
        let layers = self.num_hidden_layers;
        let sliding = keys.shared.sliding_layers(layers, |_| window.is_some())?;
        let named = sliding.len();
        let all = if window.is_some() { (0..layers).collect() } else { sliding };
        let config = self.with_window(window, all)?;
        // `transformers` hides and forgets by different keys: both are the same up to the window.
        Ok(if named < layers { config.within_window() } else { config })
    }

    /// Reads whether projections of the attention have biases.
    pub(crate) fn with_biases(self, keys: &Keys) -> Self {
        let bias = keys.shared.attention_bias.is_on(false);
        let output_bias = keys.shared.output_bias.unwrap_or(bias);
        Self { attention_bias: bias, output_bias, ..self }
    }

    fn check(&self) -> Result<()> {
        self.check_limits()?;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        check_positive("intermediate_size", self.intermediate_size)?;
        if !heads.is_multiple_of(kv_heads) {
            let must_be = format!("a multiple of num_key_value_heads = {kv_heads}");
            return Err(invalid("num_attention_heads", heads, must_be));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(invalid("head_dim", self.head_dim, "even and at least 2"));
        }
        let positive = [
            ("rms_norm_eps", Some(self.rms_norm_eps)),
            ("the factor of query-key products", self.softmax_scale),
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
            ("swiglu_limit", self.swiglu_limit),
            ("embedding_multiplier", self.embedding_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("logits_scaling", self.logits_scaling),
        ];
        for (key, value) in positive {
            value.map_or(Ok(()), |value| check_positive_number(key, value))?;
        }
        self.rope.check(self.head_dim)?;
        self.local_rope.as_ref().map_or(Ok(()), |rope| rope.check(self.head_dim))
    }
}
