//! What the stages see of a layer.

mod layer_view;
mod measures;
mod moments;
mod window;

pub use layer_view::LayerView;
pub use measures::{Bounds, Measures};
pub use moments::{Wanted, WindowMoments};
pub(crate) use window::Window;
