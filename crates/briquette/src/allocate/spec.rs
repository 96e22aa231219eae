use super::{
    AboveThreshold, Allocator, Composite, ErrorAware, HeadAdaptive, HeadProfile, LayerRatios,
    LazyLayers, OneThreshold, Preference, Pyramid, StreamingHeads, Uniform, VarianceShare,
};
use crate::stage::built_in;

built_in! {
    /// Allocators that have a file form.
    AllocatorSpec: Allocator {
        Uniform,
        Pyramid,
        Preference,
        VarianceShare,
        ErrorAware,
        HeadAdaptive,
        HeadProfile,
        LayerRatios,
        AboveThreshold,
        LazyLayers,
        OneThreshold,
        Composite,
        StreamingHeads,
    }
}

impl Default for AllocatorSpec {
    fn default() -> Self {
        Self::Uniform(Uniform {})
    }
}
