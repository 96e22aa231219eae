//! The sentences of the form that the embedded model was trained on.

/// Noun for the values that these needles hide.
pub(crate) const NOUN: &str = "number";

/// Text before the haystack. `noun` names the hidden values, as `number`.
pub(crate) fn introduction(noun: &str) -> String {
    format!(
        "\nSome special magic {noun}s are hidden within the following text. Make sure to memorize them. I will quiz \
         you about the {noun}s afterwards.\n"
    )
}

pub(crate) fn needle(noun: &str, key: &str, value: &str) -> String {
    format!("\nOne of the special magic {noun}s is {key}:{value}.")
}

pub(crate) fn question(noun: &str, key: &str) -> String {
    format!(
        "\nWhat is the special magic {noun} for {key} mentioned in the provided text? The special magic {noun} is \
         {key}:"
    )
}
