use serde::{Deserialize, Serialize};

/// When the question comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// In the prompt: the cache is compressed knowing what is asked.
    Before,
    /// After the context was compressed, as a second prompt: the harder case, and the one of a long
    /// conversation.
    After,
}
