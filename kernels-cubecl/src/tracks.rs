//! What is counted of columns, f32, `[batch, n · heads, columns]` each: a kernel takes some of them, an operation of a backend
//! always as many.

use burn::tensor::Shape;

/// The shape of a track of so many columns, or of one that is not there: a buffer of nothing is not one.
pub(crate) fn shape(of: &Shape, columns: usize, is: bool) -> Shape {
    match is {
        true => Shape::from([of[0], of[1], columns]),
        false => Shape::from([1, 1, 1]),
    }
}

/// Tracks a kernel takes at most.
pub const MOST_TRACKS: usize = 4;
