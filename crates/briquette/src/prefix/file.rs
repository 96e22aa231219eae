use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Header, Parts, PrefixError, container};
use crate::{CacheShape, Error, Policy, Result};

/// Prefix read from its file, its checksum verified, before it is on a device.
///
/// The tensors stay in host memory until [`KvCache::from_prefix`](crate::KvCache::from_prefix)
/// loads it.
#[derive(Clone, Debug)]
pub struct Prefix {
    path: PathBuf,
    pub(crate) header: Header,
    pub(crate) parts: Parts,
}

impl Prefix {
    /// Reads a file that [`KvCache::save`](crate::KvCache::save) wrote.
    ///
    /// # Errors
    /// [`Error::Prefix`] for a file that is cut off, altered, of another version, or none of ours.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (header, tensors) = container::read(path)?;
        let mut header: Header = serde_json::from_str(&header)
            .map_err(|error| PrefixError::contents("the header", error.to_string()))?;
        let parts = Parts { numbers: std::mem::take(&mut header.numbers), tensors };
        Ok(Self { path: path.into(), header, parts })
    }

    /// Writes what a cache holds.
    pub(crate) fn write(path: &Path, mut header: Header, parts: Parts) -> Result<()> {
        header.numbers = parts.numbers;
        let failed = |reason| PrefixError::Write { path: path.into(), reason };
        let header = serde_json::to_string(&header).map_err(|error| failed(error.to_string()))?;
        Ok(container::write(path, header, &parts.tensors)?)
    }

    /// The policy it was made under.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] if a stage of it is a user's own: the file does not hold it.
    pub fn policy(&self) -> Result<Policy> {
        match &self.header.policy_file {
            Some(text) => Policy::from_toml(text),
            None => Err(Error::NotSerializable {
                policy: self.header.policy.clone(),
                stage: "stage",
                name: self.path.display().to_string(),
            }),
        }
    }

    /// The identity of its model, as it was [given](crate::CacheConfig::with_model) to the cache.
    pub fn model(&self) -> Option<&str> {
        self.header.model.as_deref()
    }

    /// The dimensions of its cache.
    pub fn shape(&self) -> CacheShape {
        self.header.shape
    }

    /// The budget of its policy, as text.
    pub fn budget(&self) -> Option<&str> {
        self.header.budget.as_deref()
    }

    /// Tokens it has seen per batch row.
    pub fn tokens_seen(&self) -> &[usize] {
        &self.header.tokens_seen
    }

    /// Tokens it keeps, `[layer][row]`, those of the longest head.
    pub fn tokens_kept(&self) -> &[Vec<usize>] {
        &self.header.tokens_kept
    }

    /// Bytes its cache held on the device.
    pub fn bytes_held(&self) -> usize {
        self.header.bytes_held
    }

    /// Texts that were [saved with it](crate::KvCache::save_with_metadata), by name.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }
}
