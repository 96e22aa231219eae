use serde::Deserialize;

use crate::config::given::Given;

/// `rope_scaling`, or `rope_parameters` as newer files write it.
#[derive(Clone, Default, PartialEq, Deserialize)]
pub(crate) struct RopeParameters {
    pub(crate) rope_type: Option<String>,
    /// The older name of `rope_type`; some files hold both.
    pub(crate) r#type: Option<String>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    pub(crate) factor: Option<f64>,
    pub(crate) low_freq_factor: Option<f64>,
    pub(crate) high_freq_factor: Option<f64>,
    pub(crate) original_max_position_embeddings: Option<usize>,
    pub(crate) beta_fast: Option<f64>,
    pub(crate) beta_slow: Option<f64>,
    #[serde(default)]
    pub(crate) truncate: Given<bool>,
    pub(crate) attention_factor: Option<f64>,
    pub(crate) mscale: Option<f64>,
    pub(crate) mscale_all_dim: Option<f64>,
    pub(crate) short_factor: Option<Vec<f64>>,
    pub(crate) long_factor: Option<Vec<f64>>,
    /// Those of layers of one kind, where kinds differ (Gemma 3).
    pub(crate) full_attention: Option<Box<RopeParameters>>,
    pub(crate) sliding_attention: Option<Box<RopeParameters>>,
}

/// Keys of a file for its rotary embedding.
#[derive(Default)]
pub(crate) struct RopeKeys {
    /// `rope_theta`.
    pub(crate) theta: Option<f64>,
    /// The base where no key says one.
    pub(crate) default_theta: f64,
    /// `partial_rotary_factor`.
    pub(crate) partial: Option<f64>,
    /// `max_position_embeddings`.
    pub(crate) context: usize,
    /// `original_max_position_embeddings`.
    pub(crate) original: Option<usize>,
    /// `rope_scaling`, which goes before `rope_parameters`.
    pub(crate) scaling: Option<RopeParameters>,
    /// `rope_parameters`.
    pub(crate) parameters: Option<RopeParameters>,
}
