use std::{fs, path::Path};

use serde::de::DeserializeOwned;

use crate::{Error, Result};

pub(crate) fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| Error::Json { origin: origin.into(), source })
}
