use std::path::Path;

use briquette::files;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Refuses what is no regular file.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    let failed = |source| Error::Read { path: path.into(), source };
    files::regular(path).map(|_| ()).map_err(failed)
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    files::read_text(path).map_err(|source| Error::Read { path: path.into(), source })
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| Error::Json { origin: origin.into(), source })
}
