use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result};

/// Gives every layer and head the same number of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uniform {}

impl Allocator for Uniform {
    fn name(&self) -> &str {
        "uniform"
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        Ok(Allocation::Rows(view.budget.to_vec()))
    }
}
