//! White space, digits, words and lines as Python's `str` and `re` define them.

use std::{borrow::Cow, ops::Range};

use super::pattern;

/// White space of `str.split`: Unicode's, and four separators that only Python counts.
pub(in crate::metrics) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `str.split()`.
pub(in crate::metrics) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// The decimal digits of every script as those of ASCII: what `\d` matches, and `int` and `float`
/// read.
pub(in crate::metrics) fn ascii_digits(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return text.into();
    }
    let is_digit = |c: char| pattern!(r"\A\p{Nd}\z").is_match(c.encode_utf8(&mut [0; 4]));
    let ascii = |c: char| {
        if c.is_ascii() || !is_digit(c) {
            return c;
        }
        // They stand in rows of ten, from zero to nine.
        let before = (1..).map_while(|back| char::from_u32(u32::from(c) - back));
        let value = before.take_while(|c| is_digit(*c)).count() % 10;
        char::from_digit(value as u32, 10).unwrap_or(c)
    };
    text.chars().map(ascii).collect::<String>().into()
}

/// Words that `\b\w+\b` finds: letters, numbers and `_`.
pub(in crate::metrics) fn word_runs(text: &str) -> impl Iterator<Item = Range<usize>> {
    pattern!(r"[\p{L}\p{N}_]+").find_iter(text).map(|word| word.range())
}

/// `text.lstrip('\n').split('\n')[0]`.
pub(in crate::metrics) fn first_line(text: &str) -> &str {
    text.trim_start_matches('\n').split('\n').next().unwrap_or_default()
}

/// Sets a space in the place of these characters.
pub(in crate::metrics) fn space_out(text: &str, characters: &[char]) -> String {
    text.replace(characters, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_pythons() {
        let words: Vec<&str> = split(" a\u{a0}b\x1fc\u{3000}d\u{200b}e\n").collect();
        assert_eq!(words, ["a", "b", "c", "d\u{200b}e"]);
    }

    #[test]
    fn digits_are_pythons() {
        // Arabic, Bengali, full width, mathematical bold and double-struck; a superscript is no
        // decimal digit.
        let text = "٠٩ ১২ ５0 𝟎𝟗 𝟘𝟡 ² ½";
        assert_eq!(ascii_digits(text), "09 12 50 09 09 ² ½");
        assert!(matches!(ascii_digits("12"), Cow::Borrowed("12")));
    }

    #[test]
    fn words_are_pythons() {
        let text = "a_1 b-c é² \u{300}";
        let words: Vec<&str> = word_runs(text).map(|range| &text[range]).collect();
        assert_eq!(words, ["a_1", "b", "c", "é²"]);
    }

    #[test]
    fn the_first_line_is_behind_empty_ones() {
        assert_eq!(first_line("\n\n \nb"), " ");
        assert_eq!(first_line("a\r\nb"), "a\r");
        assert_eq!(first_line("\n"), "");
    }
}
