use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Result, checkpoint::part::Part};

/// Whether a path has the ending of a GGUF file, in any case.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

/// The files of a model that is one file: itself, or all parts of a GGUF file that was split.
pub fn parts_of(path: &Path) -> Vec<PathBuf> {
    match Part::of(path).filter(|_| is_gguf(path)) {
        Some(part) => (1..=part.count).map(|number| part.path(number)).collect(),
        None => vec![path.into()],
    }
}

/// The files of weights of a Hugging Face folder, one or the index of several, in the order in
/// which `transformers` looks for them.
pub(crate) const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

/// The error of a folder that holds weights in the format of their authors alone.
pub(crate) fn original_format(dir: &Path) -> Option<Error> {
    let names = ["consolidated.safetensors", "consolidated.00.pth", "consolidated.00.safetensors"];
    let path = names.iter().map(|name| dir.join(name)).find(|path| path.exists())?;
    Some(Error::OriginalFormat { path })
}

/// Folder or file of a model.
pub(crate) enum Source {
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// A GGUF file, or the first part of one that was split: named, or the only one in a folder
    /// that is not a whole Hugging Face folder.
    Gguf(PathBuf),
}

impl Source {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Ok(match is_gguf(path) {
                true => Self::Gguf(Part::first(path)),
                false => Self::Folder(path.into()),
            });
        }
        // Beside a GGUF file there may be a configuration, which says less than the file.
        let whole = path.join("config.json").exists()
            && WEIGHTS.iter().any(|name| path.join(name).exists());
        if whole {
            return Ok(Self::Folder(path.into()));
        }
        let io = |source| Error::Read { path: path.into(), source };
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if is_gguf(&path) {
                found.push(Part::first(&path));
            }
        }
        found.sort();
        found.dedup();
        match found.len() {
            0 => Ok(Self::Folder(path.into())),
            1 => Ok(Self::Gguf(found.remove(0))),
            count => Err(Error::SeveralGguf { dir: path.into(), count, first: found.remove(0) }),
        }
    }
}
