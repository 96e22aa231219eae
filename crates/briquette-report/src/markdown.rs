/// A table, its columns padded to one width. Every column but the first is aligned to the right.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count(), 4]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let mut line = String::from("|");
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            line += &match column {
                0 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            };
        }
        line + "\n"
    };
    let mut text = line(header);
    let rules: Vec<String> =
        widths
            .iter()
            .enumerate()
            .map(|(column, width)| {
                if column == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) }
            })
            .collect();
    text += &line(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// A text that a file or a command line said, as Markdown shows it: on one line, without HTML,
/// links or cells of its own.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '<' | '>' | '[' | ']' | '|' | '`' | '\\' | '&' => plain.extend(['\\', char]),
            char if char.is_control() => plain.push(' '),
            char => plain.push(char),
        }
    }
    plain
}

/// The same as code in a cell: a backtick would end the code, and a bar the cell.
pub(super) fn code(text: &str) -> String {
    let clean = |char: char| match char {
        '`' => '\'',
        '|' => '│',
        char if char.is_control() => ' ',
        char => char,
    };
    format!("`{}`", text.chars().map(clean).collect::<String>())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_said_stays_in_its_place() {
        let said = "a|b\n<script>x</script> [y](javascript:z) `c`";
        let plain = r"a\|b \<script\>x\</script\> \[y\](javascript:z) \`c\`";
        assert_eq!(super::plain(said), plain);
        assert_eq!(super::code(said), "`a│b <script>x</script> [y](javascript:z) 'c'`");
    }

    #[test]
    fn columns_are_aligned() {
        let row = |name: &str, number: &str| vec![name.to_owned(), number.to_owned()];
        let rows = [row("`a`", "1"), row("`policy`", "1234 é")];
        let expected = "\
| name     |   long |
| -------- | -----: |
| `a`      |      1 |
| `policy` | 1234 é |
";
        assert_eq!(super::table(&["name", "long"], &rows), expected);
    }
}
