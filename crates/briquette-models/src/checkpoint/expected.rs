use std::collections::BTreeMap;

/// The tensors the model needs, by their names in a checkpoint.
pub(crate) type Expected = BTreeMap<String, Slot>;

/// Destination of a tensor.
pub(crate) struct Slot {
    /// The path of the parameter.
    pub(crate) path: String,
    /// The shape that a checkpoint stores.
    pub(crate) shape: Vec<usize>,
}
