use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cell::refuse;
use crate::{Result, files, tasks::haystack::Haystack};

/// The text that fills a prompt: `built-in`, `noise`, `needles`, or a folder. A folder of such a
/// name is `./noise`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Source {
    /// The prose built into the program.
    #[default]
    BuiltIn,
    /// RULER's repeated line.
    Noise,
    /// Further needles (RULER's "needle" haystack).
    Needles,
    /// All `*.txt` files of a folder.
    Folder(PathBuf),
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        match text.as_str() {
            "built-in" => Self::BuiltIn,
            "noise" => Self::Noise,
            "needles" => Self::Needles,
            _ => Self::Folder(text.into()),
        }
    }
}

impl From<Source> for String {
    fn from(source: Source) -> Self {
        match source {
            Source::BuiltIn => "built-in".into(),
            Source::Noise => "noise".into(),
            Source::Needles => "needles".into(),
            Source::Folder(dir) => files::name(dir),
        }
    }
}

impl Source {
    pub(super) fn resolve(&mut self, base: &Path) {
        if let Self::Folder(dir) = self {
            *dir = files::joined(base, dir);
        }
    }

    /// The end of a label, which names it: nothing for the built-in prose, the name of a folder.
    pub(super) fn suffix(&self) -> String {
        match self {
            Self::BuiltIn => String::new(),
            Self::Noise => "-noise".into(),
            Self::Needles => "-needles".into(),
            Self::Folder(dir) => format!("-{}", files::last(dir)),
        }
    }

    /// The text, for tasks that cannot make needles of it.
    pub(super) fn load(&self, task: &'static str) -> Result<Haystack> {
        match self {
            Self::BuiltIn => Ok(Haystack::built_in()),
            Self::Noise => Ok(Haystack::noise()),
            Self::Needles => refuse(task, "haystack", "this task cannot be hidden in `needles`"),
            Self::Folder(dir) => Haystack::from_dir(dir),
        }
    }

    /// Prose, for tasks that take no sentence twice.
    pub(super) fn load_prose(&self, task: &'static str) -> Result<Haystack> {
        match self {
            Self::Noise => refuse(task, "haystack", "`noise` has a single sentence"),
            _ => self.load(task),
        }
    }

    /// Whether it comes in lines, and not in paragraphs of sentences.
    pub(super) fn in_lines(&self) -> bool {
        matches!(self, Self::Noise | Self::Needles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_word_or_a_folder() {
        for text in ["built-in", "noise", "needles", "./noise", "../books"] {
            assert_eq!(String::from(Source::from(text.to_owned())), text);
        }
        let mut folder = Source::from("../books".to_owned());
        assert_eq!(folder.suffix(), "-books");
        folder.resolve(Path::new("/runs"));
        assert_eq!(folder, Source::Folder("/books".into()));
        folder.resolve(Path::new("/elsewhere"));
        assert_eq!(folder, Source::Folder("/books".into()));
    }
}
