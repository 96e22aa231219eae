/// The first that occurs a second time.
pub(super) fn twice<T: PartialEq>(values: &[T]) -> Option<&T> {
    values
        .iter()
        .enumerate()
        .find(|(i, value)| values[..*i].contains(value))
        .map(|(_, value)| value)
}
