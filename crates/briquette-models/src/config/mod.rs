//! The configuration of a model: the checked keys of a `config.json`, and the rotary embeddings
//! that they describe.

pub(crate) mod activation;
pub(crate) mod attn_temperature;
pub(crate) mod cache_attention;
pub(crate) mod delta_net_config;
pub(crate) mod experts_config;
pub(crate) mod generation;
pub(crate) mod given;
pub(crate) mod keys;
pub(crate) mod latent_config;
pub(crate) mod model_config;
pub(crate) mod partial_rotary;
pub(crate) mod quantization;
pub(crate) mod rope;
pub(crate) mod rope_keys;
pub(crate) mod rope_scaling;
pub(crate) mod routing;
pub(crate) mod sizes;
pub(crate) mod text_part;
