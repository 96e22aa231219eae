use super::{kernel::LinearGroupsBlueprint, settings::LINEAR_SETTINGS, table::TABLE};

/// Rows from which on this is faster than a kernel whose cubes have all rows in registers.
pub(in super::super) const FEWEST_ROWS: usize = 9;

/// The blueprint for a product of these sizes, rows of `x`, inputs and outputs: that of the nearest
/// product that was timed, by ratios.
pub(in super::super) fn choose(sizes: [usize; 3]) -> LinearGroupsBlueprint {
    let distance = |timed: &[usize; 3]| -> f64 {
        timed.iter().zip(sizes).map(|(&a, b)| (a as f64 / b as f64).ln().abs()).sum()
    };
    let nearest = TABLE.iter().min_by(|a, b| distance(&a.0).total_cmp(&distance(&b.0)));
    LinearGroupsBlueprint::new(nearest.map_or(LINEAR_SETTINGS[0], |(_, setting)| *setting))
}
