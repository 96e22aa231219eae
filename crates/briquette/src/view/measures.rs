use std::sync::{Mutex, MutexGuard, PoisonError};

/// Measure of a layer, made by an allocator when the prompt was complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// One number per batch row.
    pub of_rows: Vec<f64>,
    /// Tokens that each batch row had seen.
    pub seen: Vec<usize>,
}

/// Measures of the layers of a prompt, by which an allocator shares its budget out among them, and
/// the latest shares.
///
/// A row's shares are computed once for all layers, and again only when their inputs have changed.
/// So a decode step looks them up.
#[derive(Debug, Default)]
pub struct Measures {
    /// `None` for layers of a prompt that have not arrived yet.
    layers: Vec<Option<Measure>>,
    /// The latest shares of each batch row.
    shares: Mutex<Vec<Option<Shares>>>,
}

/// Tokens to be shared out among layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Number of tokens of all layers together.
    pub total: usize,
    /// Minimum number of tokens of a layer.
    pub least: usize,
    /// Maximum number of tokens of a layer.
    pub most: usize,
}

#[derive(Debug)]
struct Shares {
    bounds: Bounds,
    of_layers: Vec<usize>,
}

impl Shares {
    /// Whether the shares are the same under `bounds`. The upper bound does not matter while no
    /// share reaches it.
    fn hold(&self, bounds: Bounds) -> bool {
        let largest = self.of_layers.iter().copied().max().unwrap_or(0);
        let free = largest < self.bounds.most && largest < bounds.most;
        Bounds { most: self.bounds.most, ..bounds } == self.bounds
            && (free || bounds.most == self.bounds.most)
    }
}

impl Measures {
    /// Measures of these layers; `None` for layers that have not arrived yet.
    pub fn new(layers: Vec<Option<Measure>>) -> Self {
        Self { layers, shares: Mutex::default() }
    }

    /// The measure of a batch row in a layer, if it has one.
    pub fn get(&self, layer: usize, row: usize) -> Option<f64> {
        self.layers.get(layer)?.as_ref()?.of_rows.get(row).copied()
    }

    /// Tokens that a batch row had seen when a layer was measured, at the end of the last prompt.
    pub fn seen(&self, layer: usize, row: usize) -> Option<usize> {
        self.layers.get(layer)?.as_ref()?.seen.get(row).copied()
    }

    /// Returns the share of a layer in a batch row; `None` if it was not measured there.
    /// `share_out` gets the measures of the measured layers, in order, and returns as many shares,
    /// none of them above `bounds.most`.
    pub(crate) fn share(
        &self,
        layer: usize,
        row: usize,
        bounds: Bounds,
        share_out: impl FnOnce(&[f64]) -> Vec<usize>,
    ) -> Option<usize> {
        self.get(layer, row)?;
        let place = (0..layer).filter(|&layer| self.get(layer, row).is_some()).count();
        let mut all = self.shares();
        if all.len() <= row {
            all.resize_with(row + 1, || None);
        }
        let last = all.get_mut(row)?;
        if !last.as_ref().is_some_and(|last| last.hold(bounds)) {
            let known: Vec<f64> =
                (0..self.layers.len()).filter_map(|layer| self.get(layer, row)).collect();
            *last = Some(Shares { bounds, of_layers: share_out(&known) });
        }
        last.as_ref()?.of_layers.get(place).copied()
    }

    fn shares(&self) -> MutexGuard<'_, Vec<Option<Shares>>> {
        // Shares are put in whole: one who panicked has left those before.
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_worked_out_when_something_has_changed() {
        let measure = |of_rows: [f64; 2]| Measure { of_rows: of_rows.to_vec(), seen: vec![9, 9] };
        let measures =
            Measures::new(vec![Some(measure([1.0, 2.0])), None, Some(measure([3.0, 4.0]))]);
        let calls = std::cell::Cell::new(0);
        let share = |layer, row, bounds| {
            measures.share(layer, row, bounds, |known| {
                calls.set(calls.get() + 1);
                known.iter().map(|&x| (x as usize).min(bounds.most)).collect()
            })
        };
        let bounds = Bounds { total: 9, least: 0, most: 8 };
        assert_eq!((share(0, 1, bounds), share(2, 1, bounds)), (Some(2), Some(4)));
        assert_eq!((share(1, 1, bounds), share(0, 2, bounds)), (None, None));
        assert_eq!(calls.get(), 1);
        assert_eq!(share(2, 0, bounds), Some(3));
        assert_eq!(calls.get(), 2);
        // An upper bound nobody reaches, and one that somebody does.
        assert_eq!(share(2, 0, Bounds { most: 5, ..bounds }), Some(3));
        assert_eq!(calls.get(), 2);
        assert_eq!(share(2, 0, Bounds { most: 3, ..bounds }), Some(3));
        assert_eq!(share(2, 0, bounds), Some(3));
        assert_eq!(calls.get(), 4);
        assert_eq!(share(2, 0, Bounds { total: 10, ..bounds }), Some(3));
        assert_eq!(calls.get(), 5);
    }
}
