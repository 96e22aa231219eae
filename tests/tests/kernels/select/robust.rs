//! Mean attention, raised for the entries with the highest deviations, of entries in any order with
//! padding anywhere.

use briquette::ops::OpError;
use briquette_kernels::robust_scores;
use briquette_ops::{RobustInput, SelectOps};
use burn::tensor::{Device, Tensor};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::common::{RefusedBy, all_backends, answer, floats, integers, kernel_backends, numbers};

/// Batch rows, kv heads, query heads of each that have statistics, entries.
const CASES: [[usize; 4]; 5] =
    [[1, 1, 1, 1], [2, 3, 1, 7], [2, 2, 4, 256], [1, 2, 7, 300], [3, 1, 2, 1000]];

/// Statistics of a layer on the host.
struct Layer {
    dims: [usize; 4],
    sums: Vec<f32>,
    squares: Vec<f32>,
    positions: Vec<i64>,
    seen: Vec<usize>,
}

impl Layer {
    /// Every third entry is padding with `padded`; every fifth has the deviation of others.
    fn new(dims: [usize; 4], padded: bool) -> Self {
        let [batch, heads, group, entries] = dims;
        let mut rng = ChaCha8Rng::seed_from_u64(entries as u64);
        let seen: Vec<usize> = (0..batch).map(|row| 2 * entries + 5 + row).collect();
        let mut layer =
            Self { dims, sums: vec![], squares: vec![], positions: vec![], seen: seen.clone() };
        for seen in seen {
            for _ in 0..heads {
                let mut positions: Vec<i64> = (0..seen as i64 - 1).collect();
                positions.shuffle(&mut rng);
                positions.truncate(entries);
                if padded {
                    positions.iter_mut().step_by(3).skip(1).for_each(|position| *position = -1);
                }
                // The last token of the row is there.
                positions[0] = seen as i64 - 1;
                for _ in 0..group {
                    for (entry, &position) in positions.iter().enumerate() {
                        let queries = (seen as i64 - position) as f64;
                        let mean = rng.random_range(0.0..0.5);
                        let deviation: f64 = match entry % 5 {
                            4 => 0.0,
                            _ => rng.random_range(0.1..1.0),
                        };
                        let mean = if deviation == 0.0 { 0.0 } else { mean };
                        let square = mean * mean + deviation * deviation;
                        layer.sums.push((queries * mean) as f32);
                        layer.squares.push((queries * square) as f32);
                    }
                }
                layer.positions.extend(positions);
            }
        }
        layer
    }

    /// Scores at entries, none at padding.
    fn expected(&self, keep: &[usize]) -> Vec<Option<f64>> {
        let [_, heads, group, entries] = self.dims;
        let mut scores = Vec::new();
        for (list, positions) in self.positions.chunks(entries).enumerate() {
            let seen = self.seen[list / heads] as i64;
            let of = |entry: usize| -> Option<(f64, f64)> {
                let position = positions[entry];
                let of_one = |one: usize| {
                    let place = (list * group + one) * entries + entry;
                    let queries = (seen - position) as f64;
                    let mean = f64::from(self.sums[place]) / queries;
                    let square = f64::from(self.squares[place]) / queries;
                    (mean, (square - mean * mean).max(0.0).sqrt())
                };
                let all = (0..group).map(of_one);
                let sum = all.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                (position >= 0).then_some((sum.0 / group as f64, sum.1 / group as f64))
            };
            let both: Vec<_> = (0..entries).map(of).collect();
            let mut deviations: Vec<f64> = both.iter().flatten().map(|(_, own)| *own).collect();
            deviations.sort_by(|a, b| b.total_cmp(a));
            let last = match keep[list] {
                0 => f64::INFINITY,
                keep => deviations.get(keep - 1).copied().unwrap_or(-1.0),
            };
            let above = |(mean, own): (f64, f64)| mean + if own >= last { 2.0 } else { 0.0 };
            scores.extend(both.into_iter().map(|both| both.map(above)));
        }
        scores
    }

    fn floats(&self, x: &[f32], device: &Device) -> Tensor<3> {
        let [batch, heads, group, entries] = self.dims;
        floats(x, [batch, heads * group, entries], device)
    }

    fn input<'a>(&'a self, keep: &'a [usize], is_told: bool, device: &Device) -> RobustInput<'a> {
        let [batch, heads, _, entries] = self.dims;
        RobustInput {
            sums: self.floats(&self.sums, device),
            squares: self.floats(&self.squares, device),
            positions: integers(&self.positions, [batch, heads, entries], device),
            seen: is_told.then_some(&self.seen),
            keep,
        }
    }
}

#[test]
fn the_unsteadiest_come_first() {
    for backend in all_backends() {
        for dims in CASES {
            for padded in [false, true] {
                let layer = Layer::new(dims, padded);
                let [batch, heads, _, entries] = dims;
                for share in [0, 1, entries / 4, entries, 2 * entries] {
                    let keep: Vec<usize> =
                        (0..batch * heads).map(|list| share.saturating_sub(list % 3)).collect();
                    let expected = layer.expected(&keep);
                    for is_told in [false, true] {
                        let input = layer.input(&keep, is_told, &backend.device);
                        let found =
                            answer(&backend, "robust_scores", |ops| ops.robust_scores(input));
                        assert_eq!(found.dims(), [batch, heads, entries]);
                        let found = numbers(found);
                        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                            let Some(expected) = expected else { continue };
                            assert!(
                                (f64::from(*found) - expected).abs() < 1e-5,
                                "{}, {dims:?}, {keep:?}, {place}: {found}, expected {expected}",
                                backend.name
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for backend in kernel_backends() {
        let layer = Layer::new([2, 3, 2, 7], false);
        let refuses = |change: fn(&mut RobustInput<'_>), expected: OpError| {
            let keep = [1; 6];
            let mut input = layer.input(&keep, true, &backend.device);
            change(&mut input);
            assert_eq!(robust_scores(input).unwrap_err(), expected);
        };
        let by = RefusedBy("robust_scores");
        refuses(|input| input.keep = &[1], by.value("the length of keep", 1, "6"));
        refuses(|input| input.seen = Some(&[1]), by.value("the length of seen", 1, "2"));
        let expected = by.shape("squares", &[2, 6, 6], &[2, 6, 7]);
        refuses(|input| input.squares = input.squares.clone().narrow(2, 0, 6), expected);
        let expected = by.value("the heads of sums", 5, "a multiple of 3");
        refuses(|input| input.sums = input.sums.clone().narrow(1, 0, 5), expected);
    }
}
