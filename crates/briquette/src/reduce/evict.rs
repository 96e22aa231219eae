use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reducer};
use crate::{Result, cache::Entries};

/// Drops the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {}

impl Reducer for Evict {
    fn name(&self) -> &str {
        "evict"
    }

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Entries> {
        Ok(input.entries.select(input.selection, input.ops))
    }
}
