//! A step of a model, which is taken back whole if it fails.

use super::{KvCache, before::Before};

impl KvCache {
    /// Runs the calls of one step, such as those of all layers for one token or one chunk of a prompt, and takes all of
    /// them back if it fails: the cache then goes on as if the step had never been, in the layers before the one that failed
    /// too.
    ///
    /// The remembered layers share their buffers with the cache until the step ends. A call that only appends costs nothing
    /// more. One that compresses costs a copy of what its layer held, and until the step ends that copy; a layer that is
    /// called twice in one step is copied too. Room that was made for tokens of a failed step may stay.
    ///
    /// # Errors
    /// The error of `calls`.
    pub fn step<T, E>(
        &mut self,
        calls: impl FnOnce(&mut Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let before = Before::new(&self.layers, self.measures.clone(), self.batch);
        let outer = self.under_way.begin(before);
        let result = calls(self);
        if let Some(before) = self.under_way.end(outer) {
            match (&result, self.under_way.before()) {
                (Err(_), _) => (self.measures, self.batch) = before.restore(&mut self.layers),
                (Ok(_), Some(outer)) => outer.absorb(*before),
                (Ok(_), None) => {}
            }
        }
        result
    }
}
