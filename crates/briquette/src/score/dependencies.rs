/// What the scores of a decode step depend on, besides positions and attention statistics. The
/// less, the more a cache may do: leave entries out of order, copy no keys, replay recorded steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dependencies {
    /// The host: numbers that it reads from the device, or launches that differ between steps.
    /// Such steps are not recorded.
    pub host: bool,
    /// The order of the entries. Without it they come in any order in decode steps, each with its
    /// own position; a policy may then [decode in place](crate::store::SlotStore), if steps do not
    /// depend on the host either.
    pub order: bool,
    /// The [budget](crate::LayerView::budget), or the numbers of entries
    /// [held](crate::LayerView::lengths) or of tokens [seen](crate::LayerView::seen). Such steps
    /// are not recorded under a budget that grows with the tokens seen.
    pub budget: bool,
    /// Keys or values. Without it the view has arbitrary numbers in their place in decode steps.
    pub rows: bool,
}

impl Dependencies {
    /// All of them: the default of a scorer.
    pub const fn all() -> Self {
        Self { host: true, order: true, budget: true, rows: true }
    }

    /// None of them: scores come from positions and attention statistics alone.
    pub const fn none() -> Self {
        Self { host: false, order: false, budget: false, rows: false }
    }
}
