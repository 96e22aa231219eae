//! The cache that a model calls: [`KvCache`].

mod call;
mod ceiling;
mod config;
mod context;
mod draft;
mod forecast;
mod fork;
mod free_slots;
mod growth;
mod inspect;
mod kv_cache;
mod layer;
mod layer_handle;
mod layer_shapes;
mod mark;
mod progress;
mod prompt;
mod queries;
mod read;
mod replay;
mod rollback;
mod rows;
mod save;
mod second_pass;
mod shared_attention;
mod shared_prefill;
mod transaction;
mod truncate;
mod update;

pub use call::answer::VisibleEntries;
pub use config::{CacheConfig, InputCheck};
pub use kv_cache::KvCache;
pub use layer_handle::CacheLayer;
pub use prompt::Prompt;
pub use second_pass::Reconstruction;
pub use shared_prefill::{SharedPrefill, SharedTimes};
