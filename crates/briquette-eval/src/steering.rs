//! Characters that steer what shows them.

/// Whether a character steers a terminal or the direction of the text around it, rather than being
/// shown: control characters, the end of a line and the tab among them, and Unicode's marks of
/// direction.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the fault of a name in results: it is empty, or holds a character that [`steers`].
pub(crate) fn fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("it is empty".into());
    }
    let c = name.chars().find(|c| steers(*c))?;
    let kind = if c.is_control() { "a control character" } else { "a mark of direction" };
    Some(format!("it holds {kind}, U+{:04X}", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_of_text() {
        for name in ["snapkv:kernel=15", "modèle", "模型 7B", "نموذج", "👩\u{200d}🔬"] {
            assert_eq!(fault(name), None, "{name}");
        }
        for (name, reason) in [
            ("", "empty"),
            ("a\nb", "a control character, U+000A"),
            ("\u{1b}[31m", "U+001B"),
            ("\u{9b}1m", "U+009B"),
            ("a\u{202e}b", "a mark of direction, U+202E"),
            ("\u{2066}", "U+2066"),
            ("\u{200f}", "U+200F"),
        ] {
            let found = fault(name).unwrap();
            assert!(found.contains(reason), "{name:?}: {found}");
        }
    }
}
