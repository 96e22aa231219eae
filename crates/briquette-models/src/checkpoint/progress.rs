use std::collections::BTreeMap;

/// Tells how many of how many bytes of a checkpoint are read.
pub(crate) struct Progress<'a> {
    /// Bytes of the tensors that are not read yet, by the paths of their parameters.
    unread: BTreeMap<String, u64>,
    read: u64,
    all: u64,
    tell: &'a mut dyn FnMut(u64, u64),
}

impl<'a> Progress<'a> {
    pub(crate) fn new(unread: BTreeMap<String, u64>, tell: &'a mut dyn FnMut(u64, u64)) -> Self {
        let all = unread.values().fold(0, |all: u64, bytes| all.saturating_add(*bytes));
        Self { unread, read: 0, all, tell }
    }

    /// Counts the tensor of a parameter, once.
    pub(crate) fn count(&mut self, path: &str) {
        if let Some(bytes) = self.unread.remove(path) {
            self.read = self.read.saturating_add(bytes);
            (self.tell)(self.read, self.all);
        }
    }
}
