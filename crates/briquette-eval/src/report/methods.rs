use briquette::policy::MethodInfo;
use comfy_table::{ContentArrangement, Table};

use super::table;

/// The table of methods, stage by stage.
pub(crate) fn methods(methods: &[MethodInfo]) -> Table {
    let mut table = table::new();
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "name",
        "method",
        "score",
        "protect",
        "allocate",
        "reduce",
        "store",
        "schedule",
        "positions",
    ]);
    for method in methods {
        table.add_row([
            method.name.clone(),
            format!("{}\n{}", method.title, method.paper),
            method.score.clone(),
            method.protect.clone(),
            method.allocate.clone(),
            method.reduce.clone(),
            method.store.clone(),
            method.schedule.clone(),
            method.positions.clone(),
        ]);
    }
    table
}
