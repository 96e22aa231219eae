//! The commands, a file each.

pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod compress;
pub(crate) mod devices;
pub(crate) mod fidelity;
pub(crate) mod generate;
pub(crate) mod man;
pub(crate) mod mask_heads;
pub(crate) mod merge;
pub(crate) mod models;
pub(crate) mod needle;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod tune;
