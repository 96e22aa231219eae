use std::path::{self, Path, PathBuf};

use anyhow::{Context, Result};

use crate::error::Error;

/// The path from the root on, as a run file has it.
///
/// # Errors
/// [`Error::PathNotText`].
pub(crate) fn absolute(path: &Path) -> Result<String> {
    let whole = path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
    let text = whole.into_os_string().into_string();
    Ok(text.map_err(|path| Error::PathNotText { path: path.into() })?)
}

/// Where results wait for what a command writes at its end.
pub(crate) fn partial(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
