use crate::state::StateVisitor;

/// A store whose decode steps can be captured and replayed, see [`Replay`](crate::state::Replay).
pub trait ReplayStore {
    /// Visits all that a decode step changes or depends on, see
    /// [`Replay::visit_state`](crate::state::Replay::visit_state).
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor);

    /// Makes room for `more` columns, and lets the device count the index of the next one, so that
    /// all steps are alike. Returns `false` if the store cannot.
    fn begin_device_indexing(&mut self, more: usize) -> bool {
        let _ = more;
        false
    }

    /// Lets the host count the index of the next column again.
    fn end_device_indexing(&mut self) {}

    /// Whether the device counts the index of the next column.
    fn indexes_on_device(&self) -> bool {
        false
    }

    /// Number of columns that are still free since [device indexing
    /// began](Self::begin_device_indexing), 0 if it has not; `None` if the store cannot index on
    /// the device.
    fn open_columns(&self) -> Option<usize> {
        None
    }

    /// Whether keys can be encoded in every call while the device counts.
    fn encodes_what_it_counts(&self) -> bool {
        false
    }

    /// Counts a column that a replayed step has written.
    fn advance(&mut self) {}

    /// Whether the next decoded token differs from others, because entries move into another form
    /// with it.
    fn is_next_apart(&self) -> bool {
        false
    }
}
