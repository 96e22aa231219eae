//! One call of [`KvCache::attend`](super::KvCache::attend) in one layer: one file per step.

pub(super) mod answer;
pub(super) mod append;
pub(super) mod attend;
pub(super) mod cache_positions;
pub(super) mod capacity;
pub(super) mod compress;
pub(super) mod cross_layer;
pub(super) mod in_place;
pub(super) mod input;
mod pages;
pub(super) mod statistics;
pub(super) mod store_guard;
pub(super) mod turn_back;
pub(super) mod update;
pub(super) mod working_set;
