use std::sync::OnceLock;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// The columns that tables are to fit into.
static WIDTH: OnceLock<u16> = OnceLock::new();

/// The fewest columns that a table is fitted into: narrower ones would have a letter a line.
const NARROWEST: u16 = 40;

/// Makes all tables that come fit into so many columns, by breaking the lines of their cells.
pub(crate) fn fit(width: Option<u16>) {
    if let Some(width) = width {
        let _ = WIDTH.set(width.max(NARROWEST));
    }
}

/// The columns that tables are to fit into; `None` if they may be as wide as they are.
pub(crate) fn width() -> Option<u16> {
    WIDTH.get().copied()
}

/// A table in the style of all tables here.
pub(crate) fn new() -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    if let Some(width) = width() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table
}

pub(crate) fn left(text: impl ToString) -> Cell {
    Cell::new(text)
}

pub(crate) fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A share in percent.
pub(crate) fn share(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A number with the ends of its interval, if it has one.
pub(super) fn interval(mean: f64, ends: Option<[f64; 2]>, digits: usize) -> String {
    match ends {
        Some([low, high]) => format!("{mean:.digits$} [{low:.digits$}, {high:.digits$}]"),
        None => format!("{mean:.digits$}"),
    }
}
