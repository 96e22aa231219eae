/// The positions that a query sees where it does not see all up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The last ones: so many, its own among them.
    Sliding(usize),
    /// Those up to its own in its chunk, of so many: chunks begin at multiples (Llama 4).
    Chunk(usize),
}

impl Window {
    /// Returns the most positions that a query sees.
    pub fn size(self) -> usize {
        match self {
            Self::Sliding(size) | Self::Chunk(size) => size,
        }
    }

    /// Returns the first position that a query at this one sees.
    pub fn first_seen(self, query: i64) -> i64 {
        let size = i64::try_from(self.size()).unwrap_or(i64::MAX);
        match self {
            Self::Sliding(_) => query.saturating_add(1).saturating_sub(size),
            Self::Chunk(_) => query.saturating_sub(query.rem_euclid(size.max(1))),
        }
    }
}

/// A sliding window.
impl From<usize> for Window {
    fn from(size: usize) -> Self {
        Self::Sliding(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_begins_at_a_multiple_and_a_sliding_window_anywhere() {
        let first = |window: Window| [0, 3, 4, 7, 8].map(|query| window.first_seen(query));
        assert_eq!(first(Window::Chunk(4)), [0, 0, 4, 4, 8]);
        assert_eq!(first(4.into()), [-3, 0, 1, 4, 5]);
        assert_eq!(first(Window::Chunk(1)), [0, 3, 4, 7, 8]);
        assert_eq!(first(Window::Chunk(usize::MAX)), [0; 5]);
    }
}
