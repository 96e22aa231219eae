use std::{fs, path::Path};

use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Refuses what is no regular file: a named pipe would be waited for.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    let failed = |source| Error::Read { path: path.into(), source };
    match fs::metadata(path).map_err(failed)?.is_file() {
        true => Ok(()),
        false => Err(failed(std::io::Error::other("it is no regular file"))),
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    check_regular(path)?;
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| Error::Json { origin: origin.into(), source })
}
