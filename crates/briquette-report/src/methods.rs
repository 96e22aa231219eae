use briquette::policy::MethodInfo;

use super::table::{Column, Rank, Sheet};

/// Methods with what they keep and their papers.
pub fn methods(methods: &[MethodInfo]) -> Sheet {
    let paper = Column::left("paper").ranked(Rank::Extra);
    let mut sheet = Sheet::new([Column::left("name"), Column::left("keeps"), paper]);
    for method in methods {
        sheet.row([&method.name, &method.keeps, &method.paper]);
    }
    sheet
}
