//! One cube per row, however many rows.

use cubecl::prelude::CubeCount;

/// Cubes along one axis that every device takes.
const MOST: usize = 65_535;

/// Number of cubes along each axis for so many rows: at least as many, numbered by `CUBE_POS`.
pub(crate) fn cubes_of_rows(rows: usize) -> [usize; 3] {
    let along_y = rows.div_ceil(MOST);
    [rows.div_ceil(along_y.max(1)), along_y, 1]
}

pub(crate) fn cube_count(rows: usize) -> CubeCount {
    let [x, y, z] = cubes_of_rows(rows).map(|count| count as u32);
    CubeCount::Static(x, y, z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_cube_for_each_row() {
        for rows in [1, 2, MOST, MOST + 1, 3 * MOST, 1_000_003] {
            let [x, y, z] = cubes_of_rows(rows);
            assert!(x * y * z >= rows && x * y * z < rows + y && x <= MOST, "{rows}");
        }
    }
}
