/// Settings that the table of [`linear`](crate::linear) chooses from where Hopper's tensor cores
/// multiply: groups of 128 units, outputs of a tile, and stages in shared memory, as many as there
/// is room for, or half of them for two cubes.
pub const LINEAR_SETTINGS: [[usize; 3]; 11] = [
    [2, 256, 4],
    [2, 224, 5],
    [2, 192, 5],
    [2, 128, 6],
    [2, 128, 3],
    [1, 192, 6],
    [1, 128, 8],
    [1, 128, 4],
    [1, 64, 12],
    [1, 48, 12],
    [1, 32, 16],
];
