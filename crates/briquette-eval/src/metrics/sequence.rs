//! Longest common subsequences.

/// Lengths of the longest common subsequences of all beginnings of two sequences.
pub(super) struct Lcs<'a, T> {
    a: &'a [T],
    b: &'a [T],
    /// `[a.len() + 1][b.len() + 1]`, row after row.
    lengths: Vec<u32>,
}

impl<'a, T: PartialEq> Lcs<'a, T> {
    pub(super) fn new(a: &'a [T], b: &'a [T]) -> Self {
        let columns = b.len() + 1;
        let mut lengths = vec![0; (a.len() + 1) * columns];
        for (i, x) in a.iter().enumerate() {
            for (j, y) in b.iter().enumerate() {
                let at = (i + 1) * columns + j + 1;
                lengths[at] = if x == y {
                    lengths[at - columns - 1] + 1
                } else {
                    lengths[at - columns].max(lengths[at - 1])
                };
            }
        }
        Self { a, b, lengths }
    }

    /// The length for the first `i` and the first `j`.
    fn at(&self, i: usize, j: usize) -> u32 {
        self.lengths[i * (self.b.len() + 1) + j]
    }

    pub(super) fn len(&self) -> usize {
        self.at(self.a.len(), self.b.len()) as usize
    }

    /// The places in `a` of one longest common subsequence, from its end. There may be several:
    /// from the ends of both sequences, where neither step shortens it, the step goes back in `a`
    /// or in `b`.
    pub(super) fn places(&self, tie: Tie) -> Vec<usize> {
        let (mut i, mut j) = (self.a.len(), self.b.len());
        let mut places = Vec::new();
        while i > 0 && j > 0 {
            let (without_a, without_b) = (self.at(i - 1, j), self.at(i, j - 1));
            if self.a[i - 1] == self.b[j - 1] {
                (i, j) = (i - 1, j - 1);
                places.push(i);
            } else if without_a > without_b || (without_a == without_b && tie == Tie::A) {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        places
    }
}

/// Step back to take when neither step shortens the subsequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tie {
    A,
    B,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_choose_between_subsequences() {
        let (a, b) = (['x', 'y'], ['y', 'x']);
        let lcs = Lcs::new(&a, &b);
        assert_eq!(lcs.len(), 1);
        assert_eq!(lcs.places(Tie::A), [0]);
        assert_eq!(lcs.places(Tie::B), [1]);
        assert_eq!(Lcs::new(&a, &[]).len(), 0);
    }
}
