//! The cache a model calls: [`KvCache`].

mod among_layers;
mod append;
mod attend;
mod compress;
mod config;
mod context;
mod entries;
mod input;
mod inspect;
mod kv_cache;
mod layer;
mod observe;
mod outcome;
mod place;
mod progress;
mod prompt;
mod query_window;
mod ranks;
mod room;
pub(crate) mod sharing;
mod tracks;

pub use config::{CacheConfig, InputCheck};
pub use entries::Entries;
pub use kv_cache::KvCache;
pub use prompt::Prompt;
pub use sharing::Sharing;
pub use tracks::{Track, Tracks};

pub use crate::store;
