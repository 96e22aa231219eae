//! Tables of results, for a terminal and for programs.

use briquette_eval::stats::Mean;
use comfy_table::{
    Cell as Shown, CellAlignment, ColumnConstraint, Table, Width, presets::UTF8_FULL_CONDENSED,
};

use crate::{align::Align, markdown};

/// A form that tables are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Ruled lines of at most so many columns, where the table can be that narrow: cells are never
    /// broken. `None` shows all of it.
    Ruled(Option<u16>),
    /// A line per row, cells behind tabs.
    Tsv,
    /// A table of Markdown.
    Markdown,
}

/// The place of a column among those that a narrow terminal does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Goes first.
    Detail,
    /// Goes behind the intervals.
    Extra,
    /// Stays, as a heading of its rows.
    Heading,
    /// Stays.
    Needed,
}

/// The cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Text,
    Number,
    /// Numbers with the ends of their intervals behind them.
    Interval,
}

/// The heads and the place of a column.
#[derive(Clone, Debug)]
pub struct Column {
    head: String,
    content: Content,
    rank: Rank,
}

impl Column {
    /// A column of text that is always shown. The lines of its head are below each other.
    pub fn left(head: impl Into<String>) -> Self {
        Self { head: head.into(), content: Content::Text, rank: Rank::Needed }
    }

    /// A column of numbers that is always shown.
    pub fn right(head: impl Into<String>) -> Self {
        Self { content: Content::Number, ..Self::left(head) }
    }

    /// A column of [`interval`]s that is always shown. Where it is ruled the numbers stand below
    /// each other on the left, with an interval or without.
    pub fn interval(head: impl Into<String>) -> Self {
        Self { content: Content::Interval, ..Self::left(head) }
    }

    /// The same at another place.
    #[must_use]
    pub fn ranked(self, rank: Rank) -> Self {
        Self { rank, ..self }
    }

    /// The side of cells that are not ruled.
    fn align(&self) -> Align {
        match self.content {
            Content::Text => Align::Left,
            Content::Number | Content::Interval => Align::Right,
        }
    }

    /// The head on one line.
    fn name(&self) -> String {
        self.head.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The text of a cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    /// The text where there is no room for an interval.
    short: Option<String>,
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.to_string(), short: None }
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    /// The line on the intervals.
    intervals: Option<String>,
}

/// A choice of columns and cells that are shown.
#[derive(Clone, Copy)]
struct Layout {
    /// Columns of this rank and those above.
    from: Rank,
    headings: bool,
    short: bool,
}

/// Layouts from the widest on.
const LAYOUTS: [Layout; 5] = [
    Layout { from: Rank::Detail, headings: false, short: false },
    Layout { from: Rank::Detail, headings: true, short: false },
    Layout { from: Rank::Extra, headings: true, short: false },
    Layout { from: Rank::Extra, headings: true, short: true },
    Layout { from: Rank::Heading, headings: true, short: true },
];

impl Sheet {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new(), intervals: None }
    }

    /// The same with a line that says what its intervals are.
    #[must_use]
    pub fn with_intervals(self, line: impl Into<String>) -> Self {
        Self { intervals: Some(line.into()), ..self }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The line on the intervals, if the table shows any in this form.
    pub fn intervals(&self, form: Form) -> Option<&str> {
        let shows = match form {
            Form::Ruled(width) => {
                let (layout, _) = self.ruled(width);
                !layout.short && self.has_intervals(layout)
            }
            Form::Tsv | Form::Markdown => self.has_intervals(LAYOUTS[0]),
        };
        self.intervals.as_deref().filter(|_| shows)
    }

    /// The table in a form, and a line that names what was left out of it.
    pub fn write(&self, form: Form) -> String {
        match form {
            Form::Ruled(width) => {
                let (layout, text) = self.ruled(width);
                text + &self.left_out(layout)
            }
            Form::Tsv => {
                let heads = self.columns.iter().map(Column::name);
                let rows = self.rows.iter().map(|row| row.iter().map(|cell| flat(&cell.text)));
                let rows = rows.map(|cells| cells.collect::<Vec<_>>().join("\t") + "\n");
                heads.collect::<Vec<_>>().join("\t") + "\n" + &rows.collect::<String>()
            }
            Form::Markdown => {
                let heads = self.columns.iter().map(|column| (column.align(), column.name()));
                let heads: Vec<(Align, String)> = heads.collect();
                let rows = self.rows.iter().map(|row| {
                    row.iter().map(|cell| markdown::plain(&cell.text)).collect::<Vec<_>>()
                });
                markdown::table(&heads, &rows.collect::<Vec<_>>())
            }
        }
    }

    /// The first of the layouts that fits, or the narrowest, and the table in it.
    fn ruled(&self, width: Option<u16>) -> (Layout, String) {
        let fits = |text: &str| {
            let columns = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            width.is_none_or(|width| columns <= usize::from(width))
        };
        let [wider @ .., narrowest] = LAYOUTS;
        let mut laid_out = wider.into_iter().map(|layout| (layout, self.lay_out(layout)));
        let found = laid_out.find(|(_, text)| fits(text));
        found.unwrap_or_else(|| (narrowest, self.lay_out(narrowest)))
    }

    /// A table, or one below each heading, with columns of one width.
    fn lay_out(&self, layout: Layout) -> String {
        let is_heading = |column: usize| {
            layout.headings && self.columns[column].rank == Rank::Heading && self.rows.len() > 1
        };
        let shown =
            |column: &usize| self.columns[*column].rank >= layout.from && !is_heading(*column);
        let shown: Vec<usize> = (0..self.columns.len()).filter(shown).collect();
        let text = |row: &[Cell], column: usize| {
            let cell = &row[column];
            cell.short.as_ref().filter(|_| layout.short).unwrap_or(&cell.text).clone()
        };
        let heading = |row: &[Cell]| {
            let of = |column: usize| {
                let (column, text) = (&self.columns[column], row[column].text.as_str());
                match (text, column.content) {
                    // A text has no length, for one.
                    ("" | "-", _) => None,
                    (_, Content::Text) => Some(text.to_owned()),
                    (_, Content::Number | Content::Interval) => {
                        Some(format!("{} {text}", column.name()))
                    }
                }
            };
            let parts = (0..self.columns.len()).filter(|column| is_heading(*column));
            parts.filter_map(of).collect::<Vec<_>>().join(", ")
        };
        let blocks = self.rows.chunk_by(|a, b| heading(a) == heading(b));
        let blocks: Vec<&[Vec<Cell>]> =
            if self.rows.is_empty() { vec![&self.rows] } else { blocks.collect() };
        let widest = |column: &usize| {
            let cells = self.rows.iter().map(|row| text(row, *column).chars().count());
            cells.chain(self.columns[*column].head.lines().map(|line| line.chars().count())).max()
        };
        let widths: Vec<usize> =
            shown.iter().map(|column| widest(column).unwrap_or(0) + 2).collect();
        let tables = blocks.into_iter().map(|rows| {
            let mut table = Table::new();
            table.load_style(UTF8_FULL_CONDENSED);
            table.set_header(shown.iter().map(|column| &self.columns[*column].head));
            for row in rows {
                table.add_row(shown.iter().map(|column| {
                    let cell = Shown::new(text(row, *column));
                    match self.columns[*column].content {
                        Content::Number => cell.set_alignment(CellAlignment::Right),
                        Content::Text | Content::Interval => cell,
                    }
                }));
            }
            for (column, width) in table.column_iter_mut().zip(&widths) {
                let width = Width::Fixed(u16::try_from(*width).unwrap_or(u16::MAX));
                column.set_constraint(ColumnConstraint::LowerBoundary(width));
            }
            let heading = rows.first().map(|row| heading(row)).unwrap_or_default();
            let heading = if heading.is_empty() { heading } else { heading + "\n" };
            format!("{heading}{table}\n")
        });
        tables.collect::<Vec<_>>().join("\n")
    }

    /// Whether a column of a layout has intervals, shown or not.
    fn has_intervals(&self, layout: Layout) -> bool {
        let shown =
            |(cell, column): (&Cell, &Column)| column.rank >= layout.from && cell.short.is_some();
        self.rows.iter().any(|row| row.iter().zip(&self.columns).any(shown))
    }

    /// A line that names what a layout does without.
    fn left_out(&self, layout: Layout) -> String {
        let columns = self.columns.iter().filter(|column| column.rank < layout.from);
        let mut names: Vec<String> = columns.map(Column::name).collect();
        names.dedup();
        if layout.short && self.has_intervals(layout) {
            names.push("intervals".into());
        }
        match names.is_empty() {
            true => String::new(),
            false => format!("(--wide shows {} too)\n", names.join(", ")),
        }
    }
}

/// A text on one line and in one cell.
fn flat(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// A share in percent.
pub fn share(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A mean with its standard error, if it has one.
pub(crate) fn with_error(mean: Mean, digits: usize) -> String {
    beside_error(format!("{:.digits$}", mean.mean), mean, digits)
}

/// A mean that is a difference, likewise.
pub(crate) fn difference(mean: Mean, digits: usize) -> String {
    beside_error(format!("{:+.digits$}", mean.mean), mean, digits)
}

fn beside_error(number: String, Mean { error, .. }: Mean, digits: usize) -> String {
    match error {
        Some(error) => format!("{number} ± {error:.digits$}"),
        None => number,
    }
}

/// A number with the ends of its interval, if it has one.
pub fn interval(mean: f64, ends: Option<[f64; 2]>, digits: usize) -> Cell {
    let short = format!("{mean:.digits$}");
    match ends {
        Some([low, high]) => {
            let text = format!("{short} [{low:.digits$}, {high:.digits$}]");
            Cell { text, short: Some(short) }
        }
        None => short.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores() -> Sheet {
        let mut sheet = Sheet::new([
            Column::left("task").ranked(Rank::Heading),
            Column::right("length").ranked(Rank::Heading),
            Column::left("policy"),
            Column::interval("score"),
            Column::interval("right\ntokens").ranked(Rank::Detail),
            Column::right("spare").ranked(Rank::Extra),
        ]);
        for (length, policy) in [(128, "full"), (128, "snapkv"), (1024, "full")] {
            let score = interval(0.5, Some([0.25, 0.75]), 2);
            sheet.row([
                "needle".into(),
                length.into(),
                policy.into(),
                score.clone(),
                score,
                "7 %".into(),
            ]);
        }
        sheet
    }

    #[test]
    fn what_matters_least_goes_first_and_no_cell_is_broken() {
        let sheet = scores();
        let at = |width| sheet.write(Form::Ruled(width));
        let whole = at(None);
        assert!(whole.contains("needle ┆    128 ┆ full") && !whole.contains("--wide"), "{whole}");
        let widths = [60, 40, 30, 20, 10].map(|width| at(Some(width)));
        for (text, width) in widths.iter().zip([60, 40, 30, 20]) {
            let widest = text.lines().filter(|line| !line.starts_with('('));
            assert!(widest.map(|line| line.chars().count()).max() <= Some(width), "{text}");
        }
        let [headings, detail, intervals, extra, narrowest] = widths;
        assert!(headings.contains("\nneedle, length 1024\n┌"), "{headings}");
        assert!(headings.contains("tokens") && !headings.contains("--wide"), "{headings}");
        assert!(
            detail.contains("[0.25, 0.75]") && detail.contains("(--wide shows right tokens too)")
        );
        assert!(intervals.contains("7 %") && intervals.contains("right tokens, intervals too"));
        assert!(!extra.contains("7 %") && extra.contains("right tokens, spare, intervals too"));
        assert_eq!(extra, narrowest);
        // What is said of the intervals is said where they are.
        let told = scores().with_intervals("by hand");
        let said = [None, Some(40), Some(30), Some(20)].map(|width| {
            let said = told.intervals(Form::Ruled(width));
            assert_eq!(said.is_some(), at(width).contains('['), "{width:?}");
            said
        });
        assert_eq!(said, [Some("by hand"), Some("by hand"), None, None]);
        assert_eq!([Form::Tsv, Form::Markdown].map(|form| told.intervals(form)), [said[0]; 2]);
        assert_eq!(sheet.intervals(Form::Tsv), None);
        // Columns of all blocks are as wide.
        let ruled: Vec<&str> = headings.lines().filter(|line| line.starts_with('┌')).collect();
        assert!(ruled.len() == 2 && ruled[0] == ruled[1], "{headings}");
    }

    #[test]
    fn a_heading_names_what_there_is() {
        let mut sheet = Sheet::new([
            Column::left("task").ranked(Rank::Heading),
            Column::right("length").ranked(Rank::Heading),
            Column::left("policy"),
        ]);
        sheet.row(["needle", "128", "full"]);
        sheet.row(["questions of a book", "-", "full"]);
        sheet.row(["all", "", ""]);
        let text = sheet.write(Form::Ruled(Some(20)));
        let headings: Vec<&str> =
            text.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
        assert_eq!(headings, ["needle, length 128", "questions of a book", "all"], "{text}");
    }

    #[test]
    fn programs_get_all_of_it() {
        let mut sheet = scores();
        sheet.rows.truncate(1);
        assert_eq!(
            sheet.write(Form::Tsv),
            "task\tlength\tpolicy\tscore\tright tokens\tspare\n\
             needle\t128\tfull\t0.50 [0.25, 0.75]\t0.50 [0.25, 0.75]\t7 %\n"
        );
        let markdown = sheet.write(Form::Markdown);
        assert!(markdown.starts_with("| task   | length | policy |"), "{markdown}");
        assert!(markdown.contains(r"0.50 \[0.25, 0.75\]"), "{markdown}");
        // Text left, numbers right.
        let rule = markdown.lines().nth(1).unwrap().replace(['-', ' '], "");
        assert_eq!(rule, "||:||:|:|:|");
    }
}
