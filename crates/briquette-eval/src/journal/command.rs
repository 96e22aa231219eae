//! The command that wrote a journal, by its first line.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// The command whose settings name several models.
pub(crate) const RUN: &str = "run";

/// The command that writes such settings; `None` for those of an older version, which do not say.
pub(super) fn written_by(settings: &Value) -> Option<&str> {
    match settings.get("models") {
        Some(_) => Some(RUN),
        None => settings.get("command").and_then(Value::as_str),
    }
}

/// Refuses the settings of another command than `given`.
pub(crate) fn check_command(path: &Path, settings: &Value, given: &str) -> Result<()> {
    match written_by(settings) {
        Some(found) if found != given => Err(Error::OtherCommand {
            path: path.into(),
            found: found.to_owned(),
            given: given.to_owned(),
        }),
        _ => Ok(()),
    }
}
