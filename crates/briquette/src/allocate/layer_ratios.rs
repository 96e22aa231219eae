use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result, check};

/// Layer budgets as given shares of the tokens seen: PerLayerCompressionPress of kvpress. The
/// policy's budget does not matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRatios {
    /// Share that each layer keeps, from 0 to 1; at least the protected entries are kept.
    pub ratios: Vec<f64>,
}

impl Allocator for LayerRatios {
    fn name(&self) -> &str {
        "layer-ratios"
    }

    fn summary(&self) -> String {
        format!("{} {:?}", self.name(), self.ratios)
    }

    fn check(&self) -> Result<()> {
        self.ratios.iter().try_for_each(|ratio| check::share("allocate.ratios", *ratio))
    }

    fn spans_layers(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let (given, layers) = (self.ratios.len(), view.shape.layers);
        let ratio = self.ratios.get(view.layer).filter(|_| given == layers);
        let Some(ratio) = ratio else {
            let must_be = format!("one for each of {layers} layers");
            return check::refuse("allocate.ratios", format!("{given} numbers"), must_be);
        };
        let least = view.protect.least().max(1);
        let keep = |seen: &usize| ((*seen as f64 * ratio) as usize).max(least);
        Ok(Allocation::Rows(view.seen.iter().map(keep).collect()))
    }
}
