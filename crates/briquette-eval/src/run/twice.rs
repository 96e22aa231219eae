use std::collections::BTreeSet;

/// The first that occurs a second time.
pub(super) fn twice<T: Ord>(values: &[T]) -> Option<&T> {
    let mut known = BTreeSet::new();
    values.iter().find(|value| !known.insert(*value))
}
