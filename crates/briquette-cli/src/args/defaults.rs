//! Policies and budgets of commands where none are named.

use briquette::Budget;

/// Budgets of a policy given by name when no budget is given.
pub(crate) const BUDGETS: [Budget; 2] = [Budget::Tokens(128), Budget::Tokens(256)];

/// The policy where none is named. A pooling kernel of 15 keeps answers of that many tokens whole,
/// SnapKV's 5 does not.
pub(crate) const POLICY: &str = "snapkv:kernel=15";
/// The policy where none is named and questions come after the compression: of those that keep one
/// prompt in one pass, it finds most then.
pub(crate) const LATER: &str = "compactor";
/// The policies that are compared where none are named.
pub(crate) const POLICIES: &str = "streaming-llm,h2o,snapkv:kernel=15";
/// The policies that memory is planned for where none are named.
pub(crate) const PLANNED: &str =
    "full,local-window,streaming-llm,h2o,tova,snapkv,pyramidkv,adakv,d2o,ems,kivi,fp8";
