use std::collections::BTreeMap;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::PrefixError;
use crate::{Policy, Result, shape::CacheShape};

/// Header of a prefix, as JSON: everything but the tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Header {
    /// The identity of the model among others of its shape.
    pub(crate) model: Option<String>,
    pub(crate) shape: CacheShape,
    pub(crate) policy: String,
    pub(crate) budget: Option<String>,
    /// The fingerprint of the policy, which differs between policies of one name.
    pub(crate) policy_fingerprint: String,
    /// The policy as TOML, which keeps numbers exactly; `None` if a stage of it is a user's own.
    pub(crate) policy_file: Option<String>,
    /// The type of keys and values.
    pub(crate) dtype: String,
    /// The factor of query-key products, if it is not `1 / √head_dim`.
    pub(crate) softmax_scale: Option<String>,
    /// The limit of attention scores, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) softcap: Option<String>,
    /// The windows of the layers, if some have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) windows: Option<String>,
    /// The channels of values, if they are not those of keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) values: Option<String>,
    /// The dimensions of the layers, if they are not those of the shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer_shapes: Option<String>,
    /// The dimensions of the states of recurrent layers, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recurrent_layers: Option<String>,
    pub(crate) tokens_seen: Vec<usize>,
    /// Tokens kept, `[layer][row]`, those of the longest head.
    pub(crate) tokens_kept: Vec<Vec<usize>>,
    /// Bytes the cache held on the device.
    pub(crate) bytes_held: usize,
    /// Texts by name, given when it was saved; older files have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
    /// The numbers of the layers and their stores, by name.
    pub(crate) numbers: BTreeMap<String, Vec<usize>>,
}

impl Header {
    /// The type of keys and values.
    pub(crate) fn data_type(&self) -> Result<DType> {
        let types = [DType::F32, DType::F16, DType::BF16];
        let found = types.into_iter().find(|dtype| format!("{dtype:?}") == self.dtype);
        found.ok_or_else(|| {
            PrefixError::contents(
                "dtype",
                format!("is `{}`, expected F32, F16 or BF16", self.dtype),
            )
            .into()
        })
    }

    /// Whether it was saved under this policy. Compares its fingerprint, or else that of the policy
    /// read from its text, which may lack what was the only choice in an older version.
    pub(crate) fn is_of(&self, policy: &Policy) -> bool {
        let given = fingerprint(policy);
        let read = || self.policy_file.as_ref().and_then(|text| Policy::from_toml(text).ok());
        self.policy_fingerprint == given || read().is_some_and(|read| fingerprint(&read) == given)
    }
}

/// Fingerprint of a policy, which differs with any part of it.
pub(crate) fn fingerprint(policy: &Policy) -> String {
    let text = policy.to_toml().unwrap_or_else(|_| format!("{policy:?}"));
    blake3::hash(text.as_bytes()).to_hex().chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn a_prefix_of_an_older_version_is_known_by_the_text_of_its_policy() {
        let policy = Policy::keydiff(Budget::Tokens(64));
        let text = policy.to_toml().unwrap();
        let old = text.replace("[store]\nkind = \"dense\"\n", "");
        assert_ne!(old, text);
        let header = Header {
            model: None,
            shape: CacheShape { layers: 1, query_heads: 2, kv_heads: 1, head_dim: 8 },
            policy: policy.name().to_owned(),
            budget: None,
            policy_fingerprint: "that of another version".to_owned(),
            policy_file: Some(old),
            dtype: String::new(),
            softmax_scale: None,
            softcap: None,
            windows: None,
            values: None,
            layer_shapes: None,
            recurrent_layers: None,
            tokens_seen: Vec::new(),
            tokens_kept: Vec::new(),
            bytes_held: 0,
            metadata: BTreeMap::new(),
            numbers: BTreeMap::new(),
        };
        assert!(header.is_of(&policy));
        assert!(!header.is_of(&Policy::keydiff(Budget::Tokens(65))));
        assert!(!Header { policy_file: None, ..header }.is_of(&policy));
    }
}
