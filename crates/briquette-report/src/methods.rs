use briquette::policy::MethodInfo;
use comfy_table::Table;

use super::table;

/// Terminals below this have the first columns only.
const ALL_FIT: u16 = 200;

/// Whether so many columns are too few for all of the table.
pub fn methods_are_cut(width: Option<u16>) -> bool {
    width.is_some_and(|width| width < ALL_FIT)
}

/// The table of methods, stage by stage. Where it would not fit, the columns that differ least are
/// left out.
pub fn methods(methods: &[MethodInfo], width: Option<u16>) -> Table {
    let mut table = table::new(width);
    let header = [
        "name",
        "score",
        "allocate",
        "reduce",
        "store",
        "method",
        "protect",
        "schedule",
        "positions",
    ];
    let shown = if methods_are_cut(width) { 5 } else { header.len() };
    table.set_header(header.into_iter().take(shown));
    for method in methods {
        let row = [
            method.name.clone(),
            method.score.clone(),
            method.allocate.clone(),
            method.reduce.clone(),
            method.store.clone(),
            format!("{}\n{}", method.title, method.paper),
            method.protect.clone(),
            method.schedule.clone(),
            method.positions.clone(),
        ];
        table.add_row(row.into_iter().take(shown));
    }
    table
}
