use serde::{Deserialize, Deserializer, Serialize};

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

/// Reads one time, or a list of them.
pub(crate) fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Question>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "\"before\", \"after\" or a list of them")]
    enum Form {
        One(Question),
        More(Vec<Question>),
    }
    Ok(match Form::deserialize(from)? {
        Form::One(question) => vec![question],
        Form::More(questions) => questions,
    })
}
