use std::{io::Read, path::Path};

use briquette::files;
use serde::de::DeserializeOwned;

use crate::{Error, Result, shown::shown};

/// Refuses what is no regular file, and pointers of Git LFS, which stand in a clone for files that
/// were not fetched. Every file of a model passes here before it is read.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
    let failed = |source| Error::Read { path: path.into(), source };
    let file = files::open(path).map_err(failed)?;
    let mut begin = Vec::with_capacity(POINTER.len());
    file.file().take(POINTER.len() as u64).read_to_end(&mut begin).map_err(failed)?;
    match begin == POINTER {
        true => Err(Error::LfsPointer { path: path.into() }),
        false => Ok(()),
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    check_regular(path)?;
    files::read_text(path).map_err(|source| Error::Read { path: path.into(), source })
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    refuse_mark(text.as_bytes(), origin)?;
    let failed = |message| Error::Json { origin: origin.into(), message };
    // A list would be taken for the values of an object, in their order.
    if text.trim_start().starts_with('[') {
        return Err(failed("it is a list, but must be an object".into()));
    }
    serde_json::from_str(text).map_err(|error| failed(in_words(&error)))
}

/// What is wrong with a JSON file, without the names that types have here.
fn in_words(error: &serde_json::Error) -> String {
    let text = shown(error);
    let Some((found, rest)) = text.split_once("expected ") else { return text };
    let (expected, place) = match rest.rfind(" at line ") {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let expected = match expected {
        "u8" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{found}expected {expected}{place}")
}

/// Refuses what begins with a byte order mark.
pub(crate) fn refuse_mark(text: &[u8], origin: &str) -> Result<()> {
    match text.starts_with("\u{feff}".as_bytes()) {
        true => Err(Error::ByteOrderMark { origin: origin.into() }),
        false => Ok(()),
    }
}
