use serde::{Deserialize, Serialize};

use super::{Reduced, Reducer};
use crate::{LayerView, Result};

/// Drops the entries that are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {}

impl Reducer for Evict {
    fn name(&self) -> &str {
        "evict"
    }

    fn drops_only(&self) -> bool {
        true
    }

    fn reduces_in_place(&self) -> bool {
        true
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let selection = view.select(keep)?;
        let entries = view.selected(&selection)?;
        Ok(Reduced::new(entries, selection.counts))
    }
}
