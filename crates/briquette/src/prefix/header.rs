use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Policy, shape::CacheShape};

/// What stands at the head of a prefix, as JSON: all of it but the tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Header {
    /// What tells the model from others of its shape.
    pub(crate) model: Option<String>,
    pub(crate) shape: CacheShape,
    /// The name of the policy.
    pub(crate) policy: String,
    /// The budget of the policy, as text.
    pub(crate) budget: Option<String>,
    /// What tells the policy from others of its name.
    pub(crate) policy_fingerprint: String,
    /// The policy as TOML, which keeps numbers exactly; `None` if a stage of it is a user's own.
    pub(crate) policy_file: Option<String>,
    /// The type of keys and values.
    pub(crate) dtype: String,
    /// What query-key products are multiplied by, if it is not `1 / √head_dim`.
    pub(crate) softmax_scale: Option<String>,
    /// Tokens seen, one number a batch row.
    pub(crate) tokens_seen: Vec<usize>,
    /// Tokens kept, `[layer][row]`, those of the longest head.
    pub(crate) tokens_kept: Vec<Vec<usize>>,
    /// Bytes the cache held on the device.
    pub(crate) bytes_held: usize,
    /// Texts of whoever saved it, by name; older files have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
    /// The numbers of the layers and their stores, by name.
    pub(crate) numbers: BTreeMap<String, Vec<usize>>,
}

/// Differs between policies, in anything that is a part of them.
pub(crate) fn fingerprint(policy: &Policy) -> String {
    let text = policy.to_toml().unwrap_or_else(|_| format!("{policy:?}"));
    blake3::hash(text.as_bytes()).to_hex().chars().take(32).collect()
}
