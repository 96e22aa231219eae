use std::cmp::Ordering;

/// The order people expect of text with numbers in it: `item 2` before `item 10`.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    loop {
        let (Some(first_a), Some(first_b)) = (rest_a.chars().next(), rest_b.chars().next()) else {
            // Texts that differ in leading zeros only are not equal.
            return rest_a.len().cmp(&rest_b.len()).then_with(|| a.cmp(b));
        };
        let order;
        if first_a.is_ascii_digit() && first_b.is_ascii_digit() {
            let (number_a, number_b);
            (number_a, rest_a) = number(rest_a);
            (number_b, rest_b) = number(rest_b);
            order = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
        } else {
            order = first_a.cmp(&first_b);
            rest_a = &rest_a[first_a.len_utf8()..];
            rest_b = &rest_b[first_b.len_utf8()..];
        }
        if order.is_ne() {
            return order;
        }
    }
}

/// The digits a text begins with, without leading zeros, and what follows them.
fn number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count() {
        let mut texts = ["b", "a10", "a2", "a", "a02", "é1", "a2b", "10", "9", ""];
        texts.sort_by(|a, b| compare(a, b));
        assert_eq!(texts, ["", "9", "10", "a", "a02", "a2", "a2b", "a10", "b", "é1"]);
    }
}
