//! The view of a layer that is lent to the stages.

mod held_queries;
mod layer_view;
mod measures;
mod moments;
mod positions;
mod reach;
mod window;

pub use held_queries::HeldQueries;
pub use layer_view::LayerView;
pub use measures::{Bounds, Measure, Measures};
pub use moments::{Moments, WindowMoments};
pub(crate) use positions::Encoded;
pub(crate) use reach::reach;
pub(crate) use window::{Known, Window};
