//! Tables for a paper.

/// A table with the rules of `booktabs`, from the same cells as that of
/// [`markdown`](crate::markdown::table). Every column but the first is aligned to the right.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = "r".repeat(header.len().saturating_sub(1));
    let line = |cells: &[&str]| format!("{} \\\\\n", cells.join(" & "));
    let mut text = format!("\\begin{{tabular}}{{l{columns}}}\n\\toprule\n{}", line(header));
    text += "\\midrule\n";
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text + "\\bottomrule\n\\end{tabular}\n"
}

/// A text as LaTeX shows it: on one line, without commands. The sign of a number is no hyphen.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(char) = chars.next() {
        let number = !before.is_alphanumeric() && chars.peek().is_some_and(char::is_ascii_digit);
        match char {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => plain.extend(['\\', char]),
            '\\' => plain += "\\textbackslash{}",
            '~' => plain += "\\textasciitilde{}",
            '^' => plain += "\\textasciicircum{}",
            '<' => plain += "$<$",
            '>' => plain += "$>$",
            '|' => plain += "$|$",
            '‖' => plain += "$\\|$",
            '-' if number => plain += "$-$",
            char if char.is_control() => plain.push(' '),
            char => plain.push(char),
        }
        before = char;
    }
    plain
}

/// The same as code.
pub(super) fn code(text: &str) -> String {
    format!("\\texttt{{{}}}", plain(text))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_said_is_no_command() {
        assert_eq!(
            super::plain("25% of a_b & {#1} $x\\y^2~\n<c> 3-4 -0.5 [-1, |"),
            "25\\% of a\\_b \\& \\{\\#1\\} \\$x\\textbackslash{}y\\textasciicircum{}2\
             \\textasciitilde{} $<$c$>$ 3-4 $-$0.5 [$-$1, $|$"
        );
        assert_eq!(super::code("snapkv:a_b=1"), "\\texttt{snapkv:a\\_b=1}");
    }

    #[test]
    fn rules_are_those_of_booktabs() {
        let rows = [vec!["a".to_owned(), "1".to_owned(), String::new()]];
        let expected = "\
\\begin{tabular}{lrr}
\\toprule
policy & 64 & 25\\% \\\\
\\midrule
a & 1 &  \\\\
\\bottomrule
\\end{tabular}
";
        assert_eq!(super::table(&["policy", "64", "25\\%"], &rows), expected);
    }
}
