use std::path::{Path, PathBuf};

use crate::Error;

/// A part of a GGUF file that was split, by its name: `NAME-00002-of-00003.gguf`, as llama.cpp
/// writes it.
pub(crate) struct Part {
    /// The path up to the number.
    before: String,
    /// The place of the part, from 1 on.
    pub(crate) number: u64,
    /// Number of parts.
    pub(crate) count: u64,
    ending: String,
}

impl Part {
    /// `None` for the name of a whole file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let (stem, ending) = path.to_str()?.rsplit_once('.')?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (before, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| match text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())
        {
            true => text.parse().ok(),
            false => None,
        };
        let (number, count) = (digits(number)?, digits(count)?);
        if !(1..=count).contains(&number) {
            return None;
        }
        Some(Self { before: before.into(), number, count, ending: ending.into() })
    }

    /// The path of the part of this number.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        let Self { before, count, ending, .. } = self;
        format!("{before}-{number:05}-of-{count:05}.{ending}").into()
    }

    /// The error of a file without the part of this number.
    pub(crate) fn missing(&self, number: u64) -> Error {
        Error::MissingPart { part: self.path(number), number, count: self.count }
    }

    /// The first part of the file, which has its metadata; a file that was not split itself.
    pub(crate) fn first(path: &Path) -> PathBuf {
        Self::of(path).map_or_else(|| path.into(), |part| part.path(1))
    }
}
