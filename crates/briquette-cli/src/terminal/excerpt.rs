//! Error messages that show the line of a file, however long that line is.

/// Characters around the place that a message points at.
const AROUND: usize = 200;
/// Characters of any other line of a message.
const LONGEST: usize = 2000;

/// Shortens the lines of a message: where carets in the next line point at a place, to 200
/// characters around it; others beyond 2,000 characters in their middle.
pub(crate) fn short(message: &str) -> String {
    let lines: Vec<&str> = message.split('\n').collect();
    let line = |(number, line): (usize, &&str)| match pointed_at(line) {
        Some(place) => around(line, place, ' '),
        None => match lines.get(number.saturating_add(1)).and_then(|next| pointed_at(next)) {
            Some(place) => around(line, place, '…'),
            None => middle(line),
        },
    };
    lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// The place of the first caret, if there is nothing else in a line but a bar before it.
fn pointed_at(line: &str) -> Option<usize> {
    let (before, carets) = line.split_at(line.find('^')?);
    let is_marks = before.trim() == "|" && carets.chars().all(|c| c == '^');
    is_marks.then(|| before.chars().count())
}

fn around(line: &str, place: usize, left_out: char) -> String {
    let start = place.saturating_sub(AROUND / 2);
    let rest = line.chars().skip(start);
    let mut shown: String = match start {
        0 => rest.take(AROUND).collect(),
        _ => [left_out, ' '].into_iter().chain(rest.take(AROUND)).collect(),
    };
    if line.chars().nth(start.saturating_add(AROUND)).is_some() && left_out == '…' {
        shown += " …";
    }
    shown
}

fn middle(line: &str) -> String {
    let characters = line.chars().count();
    if characters <= LONGEST {
        return line.to_owned();
    }
    let tail = LONGEST / 4;
    let head: String = line.chars().take(LONGEST - tail).collect();
    let end: String = line.chars().skip(characters.saturating_sub(tail)).collect();
    format!("{head} … {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_shown_around_its_place() {
        let seeds = |count: usize| {
            let seeds: Vec<String> = (0..count).map(|seed| seed.to_string()).collect();
            format!("name = \"n\"\nseeds = [{}, x]\n", seeds.join(","))
        };
        let error = |text: &str| toml::from_str::<toml::Table>(text).unwrap_err().to_string();
        let few = error(&seeds(3));
        assert_eq!(short(&few), few);
        let many = error(&seeds(100_000));
        assert!(many.len() > 500_000);
        let shown = short(&many);
        assert!(shown.len() < 600, "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("TOML parse error at line 2, column 5"), "{shown}");
        // The caret is below the letter, and the message stays.
        let caret = lines[3].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[2].chars().nth(caret), Some('x'), "{shown}");
        assert!(lines[2].starts_with("… ") && lines[2].contains("99999, x]"), "{shown}");
        assert_eq!(
            shown.lines().skip(4).collect::<Vec<_>>(),
            many.lines().skip(4).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_long_message_keeps_both_ends() {
        let long = format!("unknown variant `{}`, expected `gelu` or `silu`", "é".repeat(100_000));
        let shown = short(&long);
        assert_eq!(shown.chars().count(), LONGEST + 3);
        assert!(shown.starts_with("unknown variant `é"), "{shown}");
        assert!(shown.ends_with("expected `gelu` or `silu`"), "{shown}");
        for text in ["", "a\nb\n", "  |  ^ no marks"] {
            assert_eq!(short(text), text);
        }
    }
}
