use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reduced, Reducer};
use crate::{Result, ops::select_entries};

/// Drops the rest.
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

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced> {
        let selection = input.select()?;
        let entries = select_entries(input.entries, &selection, input.ops)?;
        Ok(Reduced { entries, counts: selection.counts, state: None })
    }
}
