/// The side that the cells of a column stand at: text left, numbers right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}
