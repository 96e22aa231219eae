//! Hot operations, behind one trait: [`Ops`], from the crate `briquette-ops`. Policies never name a
//! backend.

use std::sync::Arc;

pub use briquette_ops::*;

/// Returns the fastest operations of this build: kernels on the devices that have them, tensor
/// operations elsewhere.
pub fn best() -> Arc<dyn Ops> {
    #[cfg(feature = "kernels")]
    return Arc::new(briquette_kernels::Kernels::default());
    #[cfg(not(feature = "kernels"))]
    return Arc::new(Reference);
}
