use serde::{Deserialize, Deserializer};

/// A key of a file for which absence and `null` are two things: an absent one has its default,
/// `null` is none.
#[derive(Clone, Debug, Default)]
pub(crate) enum Given<T> {
    #[default]
    Absent,
    Null,
    Value(T),
}

impl<T> Given<T> {
    /// The value, or that of an absent key.
    pub(crate) fn or(self, absent: Option<T>) -> Option<T> {
        match self {
            Self::Absent => absent,
            Self::Null => None,
            Self::Value(value) => Some(value),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
