//! Tables for a paper.

use super::align::Align;

/// A table with the rules of `booktabs`, from the same cells as that of
/// [`markdown`](crate::markdown::table).
pub(super) fn table(header: &[(Align, String)], rows: &[Vec<String>]) -> String {
    let column = |(align, _): &(Align, String)| match align {
        Align::Left => 'l',
        Align::Right => 'r',
    };
    let columns: String = header.iter().map(column).collect();
    let line = |cells: &[String]| format!("{} \\\\\n", cells.join(" & "));
    let heads: Vec<String> = header.iter().map(|(_, head)| head.clone()).collect();
    let mut text = format!("\\begin{{tabular}}{{{columns}}}\n\\toprule\n{}", line(&heads));
    text += "\\midrule\n";
    for row in rows {
        text += &line(row);
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
    use super::Align;

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
        let rows = [["a", "1", "", "b"].map(str::to_owned).to_vec()];
        let expected = "\
\\begin{tabular}{lrrl}
\\toprule
policy & 64 & 25\\% & paper \\\\
\\midrule
a & 1 &  & b \\\\
\\bottomrule
\\end{tabular}
";
        let header = [
            (Align::Left, "policy"),
            (Align::Right, "64"),
            (Align::Right, "25\\%"),
            (Align::Left, "paper"),
        ];
        let header = header.map(|(align, head)| (align, head.to_owned()));
        assert_eq!(super::table(&header, &rows), expected);
    }
}
