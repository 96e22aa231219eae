use super::{
    Allocator, ErrorAware, HeadAdaptive, HeadProfile, Preference, Pyramid, Uniform, VarianceShare,
};
use crate::spec::built_in;

built_in! {
    /// The allocators that have a file form.
    AllocatorSpec: Allocator {
        Uniform,
        Pyramid,
        Preference,
        VarianceShare,
        ErrorAware,
        HeadAdaptive,
        HeadProfile,
    }
}

impl Default for AllocatorSpec {
    fn default() -> Self {
        Self::Uniform(Uniform {})
    }
}
