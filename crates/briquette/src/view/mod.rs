//! What the stages see of a layer.

mod layer_view;
mod mean;
mod moments;
mod window;

pub use layer_view::LayerView;
pub(crate) use mean::group_mean;
pub use moments::{Wanted, WindowMoments};
pub(crate) use window::Window;
