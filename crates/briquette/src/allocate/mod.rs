//! Stage two: how many entries each layer or head keeps.

mod above_threshold;
mod allocator;
mod apportion;
mod composite;
mod error_aware;
mod head_adaptive;
mod head_profile;
mod layer_ratios;
mod lazy_layers;
mod one_threshold;
mod preference;
mod pyramid;
mod spec;
mod streaming_heads;
mod uniform;
mod variance_share;

pub use above_threshold::AboveThreshold;
pub use allocator::{Allocation, Allocator};
pub use composite::Composite;
pub use error_aware::ErrorAware;
pub use head_adaptive::HeadAdaptive;
pub use head_profile::HeadProfile;
pub use layer_ratios::LayerRatios;
pub use lazy_layers::LazyLayers;
pub use one_threshold::OneThreshold;
pub use preference::Preference;
pub use pyramid::Pyramid;
pub(crate) use spec::AllocatorSpec;
pub use streaming_heads::StreamingHeads;
pub use uniform::Uniform;
pub use variance_share::{Share, VarianceShare};

pub use crate::view::{Bounds, Measure, Measures};
