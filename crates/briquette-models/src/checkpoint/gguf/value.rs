/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<i64>),
    Floats(Vec<f64>),
    /// An array of this many truth values, which nothing reads.
    Other(u64),
}

impl Value {
    pub(crate) fn unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(number) => Some(*number),
            Self::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A finite number.
    pub(crate) fn float(&self) -> Option<f64> {
        match self {
            Self::Float(number) if number.is_finite() => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = self { Some(*truth) } else { None }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn texts(&self) -> Option<&[String]> {
        if let Self::Texts(texts) = self { Some(texts) } else { None }
    }

    pub(crate) fn numbers(&self) -> Option<&[i64]> {
        if let Self::Numbers(numbers) = self { Some(numbers) } else { None }
    }

    pub(crate) fn floats(&self) -> Option<&[f64]> {
        if let Self::Floats(floats) = self { Some(floats) } else { None }
    }

    /// The value as messages show it.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Unsigned(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(truth) => truth.to_string(),
            Self::Text(text) => format!("`{}`", text.chars().take(40).collect::<String>()),
            Self::Texts(texts) => format!("a list of {} texts", texts.len()),
            Self::Numbers(numbers) => format!("a list of {} numbers", numbers.len()),
            Self::Floats(floats) => format!("a list of {} floats", floats.len()),
            Self::Other(length) => format!("a list of {length} values"),
        }
    }
}
