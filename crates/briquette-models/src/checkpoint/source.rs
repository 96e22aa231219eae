use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// Whether a path has the ending of a GGUF file, in any case.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

/// Folder or file of a model.
pub(crate) enum Source {
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// A GGUF file: named, or the only one in a folder without `config.json`.
    Gguf(PathBuf),
}

impl Source {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Ok(match is_gguf(path) {
                true => Self::Gguf(path.into()),
                false => Self::Folder(path.into()),
            });
        }
        if path.join("config.json").exists() {
            return Ok(Self::Folder(path.into()));
        }
        let io = |source| Error::Read { path: path.into(), source };
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if is_gguf(&path) {
                found.push(path);
            }
        }
        found.sort();
        match found.len() {
            0 => Ok(Self::Folder(path.into())),
            1 => Ok(Self::Gguf(found.remove(0))),
            count => Err(Error::SeveralGguf { dir: path.into(), count, first: found.remove(0) }),
        }
    }
}
