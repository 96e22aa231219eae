//! The cache a model calls: [`KvCache`].

mod among_layers;
mod append;
mod attend;
mod before;
mod ceiling;
mod chunks;
mod compress;
mod config;
mod context;
mod fork;
mod input;
mod inspect;
mod kv_cache;
mod layer;
mod observe;
mod outcome;
mod pages;
mod place;
mod progress;
mod prompt;
mod query_log;
mod query_window;
mod ranks;
mod reconstruct;
mod rescore;
mod room;
mod saved;
mod steady;
mod step;

pub use config::{CacheConfig, InputCheck};
pub use kv_cache::KvCache;
pub use prompt::Prompt;
pub use reconstruct::Reconstruction;

pub use crate::{
    ops::{AttentionStatistics, Entries, Sharing, Statistic},
    store,
};
