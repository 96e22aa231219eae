//! How much memory a cache takes.

use briquette::KvCache;
use serde::{Deserialize, Serialize};

/// Bytes of a cache, of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheBytes {
    /// Bytes of all its buffers, with the room for tokens to come.
    pub bytes: usize,
    /// Free bytes among them, the room for tokens to come; `None` in results of older versions,
    /// which do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<usize>,
    /// Bytes the keys and values of all tokens seen would take.
    pub full: usize,
}

impl CacheBytes {
    /// Bytes of a cache, all rows together.
    pub fn of(cache: &KvCache) -> Self {
        Self {
            bytes: cache.bytes_held(),
            spare: Some(cache.bytes_spare()),
            full: cache.bytes_full(),
        }
    }

    /// Bytes without the spare room; with it where that is not told.
    pub fn kept(self) -> usize {
        self.bytes.saturating_sub(self.spare.unwrap_or(0))
    }

    /// Kept bytes over those of the full cache.
    pub fn kept_of_full(self) -> f64 {
        self.kept() as f64 / self.full.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_older_versions_tell_no_spare_room() {
        let old: CacheBytes = serde_json::from_str(r#"{"bytes":3,"full":2}"#).unwrap();
        assert_eq!(old, CacheBytes { bytes: 3, spare: None, full: 2 });
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"bytes":3,"full":2}"#);
        let new = CacheBytes { spare: Some(1), ..old };
        assert_eq!(serde_json::to_string(&new).unwrap(), r#"{"bytes":3,"spare":1,"full":2}"#);
    }
}
