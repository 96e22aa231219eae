use serde::{Deserialize, Deserializer};

/// A key of a file for which absence and `null` are two things: an absent one has its default,
/// `null` is none.
#[derive(Clone, Debug, Default, PartialEq)]
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

impl Given<bool> {
    /// Whether a flag is on, `absent` if a file does not say: `null` is off, as in Python.
    pub(crate) fn is_on(&self, absent: bool) -> bool {
        self.clone().or(Some(absent)).unwrap_or(false)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
