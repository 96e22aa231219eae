use std::sync::OnceLock;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use crate::{grid::Summary, stats::Proportion};

/// Policy, budget, needles, length.
type Key = (String, String, usize, usize);

pub(super) fn needle(rows: &[(Key, Summary)], show_needles: bool) -> String {
    let mut table = new();
    let mut header = vec!["policy", "budget", "length"];
    if show_needles {
        header.push("needles");
    }
    header.extend([
        "question before\nexact",
        "\nper token",
        "question after\nexact",
        "\nper token",
    ]);
    header.extend(MEMORY);
    table.set_header(header);
    for ((policy, budget, needles, length), summary) in rows {
        let mut row = vec![Cell::new(policy), right(budget), right(length)];
        if show_needles {
            row.push(right(needles));
        }
        for accuracy in [&summary.before, &summary.after] {
            row.extend(
                [&accuracy.exact, &accuracy.per_token].map(|share| Cell::new(interval(share))),
            );
        }
        let Summary { bytes_held, bytes_spare, bytes_full, .. } = summary;
        row.extend(memory(*bytes_held, *bytes_spare, *bytes_full));
        table.add_row(row);
    }
    table.to_string()
}

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

/// The heads of the cells of [`memory`].
pub(super) const MEMORY: [&str; 3] = ["held\nKiB", "\nof full", "spare\nKiB"];

/// KiB of what is kept, its share of a full cache, and KiB of free room. Where that is not known
/// apart, it is in what is held.
pub(super) fn memory(held: f64, spare: Option<f64>, full: f64) -> [Cell; 3] {
    let kept = held - spare.unwrap_or(0.0);
    let kib = |bytes: f64| format!("{:.0}", bytes / 1024.0);
    [
        right(kib(kept)),
        right(share(kept / full.max(1.0))),
        right(spare.map_or_else(|| "-".into(), kib)),
    ]
}

/// A share in percent.
pub(crate) fn share(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub(super) fn interval(Proportion { rate, low, high, .. }: &Proportion) -> String {
    format!("{rate:.2} [{low:.2}, {high:.2}]")
}
