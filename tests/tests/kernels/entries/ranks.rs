//! Ranks of tokens that lie in any order, with one gap between first and last ones, with many, and
//! with padding anywhere.

use briquette_kernels::ranks;
use briquette_ops::EntryOps;
use burn::tensor::{Int, Tensor};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::common::{RefusedBy, all_backends, answer, integers, kernel_backends, whole_numbers};

/// Batch rows, heads, columns.
const CASES: [[usize; 3]; 5] = [[1, 1, 1], [2, 3, 5], [1, 2, 256], [3, 2, 257], [2, 2, 900]];

/// Positions of the tokens of a head.
enum Held {
    /// The first so many, and the last of those seen.
    Ends { first: usize, seen: usize },
    /// Any of those seen.
    Some { seen: usize },
}

impl Held {
    fn positions(&self, tokens: usize, rng: &mut ChaCha8Rng) -> Vec<i64> {
        let mut all: Vec<i64> = match *self {
            Self::Ends { first, seen } => {
                let first = first.min(tokens);
                (0..first).chain(seen - (tokens - first)..seen).map(|at| at as i64).collect()
            }
            Self::Some { seen } => {
                let mut all: Vec<i64> = (0..seen as i64).collect();
                all.shuffle(rng);
                all.truncate(tokens);
                all
            }
        };
        all.shuffle(rng);
        all
    }
}

fn of_head(positions: &[i64]) -> Vec<i64> {
    let before = |own: i64| positions.iter().filter(move |other| (0..own).contains(*other)).count();
    positions.iter().map(|&own| if own < 0 { -1 } else { before(own) as i64 }).collect()
}

#[test]
fn ranks_are_those_of_the_positions() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for backend in all_backends() {
        for dims @ [batch, heads, columns] in CASES {
            for sinks in [0, 1, 4, 3000] {
                for first in [0, 3, 4] {
                    let mut positions = Vec::new();
                    for head in 0..batch * heads {
                        // A head of few tokens or none, one with one gap, with none, with many.
                        let seen = 2 * columns + 1000;
                        let (tokens, held) = match head % 4 {
                            0 => (rng.random_range(0..=columns), Held::Ends { first, seen }),
                            1 => (columns, Held::Ends { first, seen }),
                            2 => (columns, Held::Ends { first, seen: columns }),
                            _ => (columns - columns / 3, Held::Some { seen }),
                        };
                        let mut of_head = held.positions(tokens, &mut rng);
                        of_head.resize(columns, -1);
                        of_head.shuffle(&mut rng);
                        positions.extend(of_head);
                    }
                    let expected: Vec<i64> = positions.chunks(columns).flat_map(of_head).collect();
                    let positions = integers(&positions, dims, &backend.device);
                    let found = answer(&backend, "ranks", |ops| ops.ranks(positions, sinks));
                    assert_eq!(found.dims(), dims);
                    assert_eq!(whole_numbers(found), expected, "{dims:?}, {sinks}");
                }
            }
        }
    }
}

#[test]
fn views_are_read_as_they_lie() {
    for backend in all_backends() {
        let positions = integers(&[9, 2, 5, 7, 0, 1, -1, 3], [1, 2, 4], &backend.device);
        let found = answer(&backend, "ranks", |ops| ops.ranks(positions.narrow(2, 0, 3), 1));
        assert_eq!(whole_numbers(found), [2, 0, 1, 0, 1, -1]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for backend in kernel_backends() {
        let none = Tensor::<3, Int>::zeros([0, 2, 3], &backend.device);
        let expected = RefusedBy("ranks").value("batch", 0, "1 or more");
        assert_eq!(ranks(none, 4).unwrap_err(), expected);
    }
}
