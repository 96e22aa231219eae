use super::align::Align;

/// A table, its columns padded to one width.
pub(super) fn table(header: &[(Align, String)], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].1.chars().count(), 4]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut line = String::from("|");
        for ((cell, width), (align, _)) in cells.iter().zip(&widths).zip(header) {
            line += &match align {
                Align::Left => format!(" {cell:<width$} |"),
                Align::Right => format!(" {cell:>width$} |"),
            };
        }
        line + "\n"
    };
    let heads: Vec<String> = header.iter().map(|(_, head)| head.clone()).collect();
    let rule = |((align, _), width): (&(Align, String), &usize)| match align {
        Align::Left => "-".repeat(*width),
        Align::Right => format!("{}:", "-".repeat(width - 1)),
    };
    let rules: Vec<String> = header.iter().zip(&widths).map(rule).collect();
    let lines = [&heads, &rules].into_iter().chain(rows);
    lines.map(|cells| line(cells)).collect()
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
    use super::Align;

    #[test]
    fn what_was_said_stays_in_its_place() {
        let said = "a|b\n<script>x</script> [y](javascript:z) `c`";
        let plain = r"a\|b \<script\>x\</script\> \[y\](javascript:z) \`c\`";
        assert_eq!(super::plain(said), plain);
        assert_eq!(super::code(said), "`a│b <script>x</script> [y](javascript:z) 'c'`");
    }

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["`a`", "1", "b"]), row(["`policy`", "1234 é", "paper"])];
        let expected = "\
| name     |   long | from  |
| -------- | -----: | ----- |
| `a`      |      1 | b     |
| `policy` | 1234 é | paper |
";
        let header = [(Align::Left, "name"), (Align::Right, "long"), (Align::Left, "from")];
        let header = header.map(|(align, head)| (align, head.to_owned()));
        assert_eq!(super::table(&header, &rows), expected);
    }
}
