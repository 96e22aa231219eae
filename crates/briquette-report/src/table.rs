//! The style of tables in a terminal.

use briquette_eval::stats::Mean;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// The fewest columns that a table is fitted into: narrower ones would have a letter a line.
const NARROWEST: u16 = 40;

/// A table in the style of all tables here, in lines of at most `width` columns: longer cells are
/// broken. `None` lets it be as wide as it is.
pub fn new(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    fit(&mut table, width);
    table
}

/// Breaks the lines of its cells so that it has at most `width` columns.
pub(crate) fn fit(table: &mut Table, width: Option<u16>) {
    if let Some(width) = width {
        let width = width.max(NARROWEST);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
}

/// A cell of text.
pub fn left(text: impl ToString) -> Cell {
    Cell::new(text)
}

/// A cell of a number.
pub fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
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
pub fn interval(mean: f64, ends: Option<[f64; 2]>, digits: usize) -> String {
    match ends {
        Some([low, high]) => format!("{mean:.digits$} [{low:.digits$}, {high:.digits$}]"),
        None => format!("{mean:.digits$}"),
    }
}
