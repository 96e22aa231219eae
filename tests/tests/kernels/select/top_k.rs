//! Any number of entries kept, ties, NaN, rows of different lengths, sizes that cross each tile of
//! the kernel.

use std::cmp::Ordering;

use briquette::ops::{OpError, Ops, Reference, SelectInput, SelectOps, Selection, Split};
use briquette_kernels::{Kernels, select, supports};
use briquette_tests::backends::{Backend, host};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{all_backends, answer, kernel_backends, wrong_value};

/// A call, on the host. Lists hold one number a batch row and head.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    entries: usize,
    scores: Vec<f32>,
    held: Vec<usize>,
    keep: Vec<usize>,
    sinks: usize,
    recent: Vec<usize>,
}

impl Case {
    fn new(batch: usize, heads: usize, scores: Vec<f32>, keep: usize) -> Self {
        let rows = batch * heads;
        let entries = scores.len() / rows;
        Self {
            batch,
            heads,
            entries,
            scores,
            held: vec![entries; rows],
            keep: vec![keep; rows],
            sinks: 0,
            recent: vec![0; rows],
        }
    }

    /// The columns each row keeps, by sorting all it chooses from.
    fn expected(&self) -> Vec<Vec<usize>> {
        let row = |(row, scores): (usize, &[f32])| {
            let held = self.entries - self.held[row]..self.entries;
            let keep = self.keep[row].min(self.held[row]);
            let sinks = self.sinks.min(keep);
            let recent = self.recent[row].min(keep - sinks);
            let mut kept: Vec<usize> = held.clone().take(sinks).collect();
            kept.extend(held.clone().rev().take(recent));
            let mut rest: Vec<usize> = held.filter(|column| !kept.contains(column)).collect();
            rest.sort_by(|&a, &b| match (scores[a].is_nan(), scores[b].is_nan()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => scores[b].total_cmp(&scores[a]),
            });
            kept.extend(rest.into_iter().take(keep - kept.len()));
            kept.sort_unstable();
            kept
        };
        self.scores.chunks(self.entries).enumerate().map(row).collect()
    }

    fn tensor(&self, device: &Device) -> Tensor<3> {
        let data = TensorData::new(self.scores.clone(), [self.batch, self.heads, self.entries]);
        Tensor::from_data(data, (device, DType::F32))
    }

    fn input<'a>(&'a self, scores: &'a Tensor<3>, check: bool) -> SelectInput<'a> {
        SelectInput {
            scores,
            lengths: &self.held,
            keep: &self.keep,
            sinks: self.sinks,
            recent: &self.recent,
            check,
        }
    }

    /// The kernel against the columns expected, with the scores as they are given.
    fn check(&self, scores: &Tensor<3>) {
        let expected = self.expected();
        let width = expected.iter().map(Vec::len).max().unwrap();
        poison([self.batch, self.heads, width], &scores.device());
        let found = select(&self.input(scores, false), true).unwrap();
        assert_eq!(found.indices.dims(), [self.batch, self.heads, width]);
        let columns = found.indices.try_into_vec_as::<i64>().unwrap();
        for (row, expected) in expected.iter().enumerate() {
            let columns = &columns[row * width..(row + 1) * width];
            let (padding, kept) = columns.split_at(width - expected.len());
            assert!(padding.iter().all(|&column| column == 0), "padding {padding:?}");
            assert!(
                kept.iter().zip(expected).all(|(&found, &expected)| found == expected as i64),
                "row {row} of {} entries keeps {kept:?}, expected {expected:?}",
                self.entries
            );
            assert_eq!(found.counts[row], expected.len());
        }
        // What is left, in the same way.
        let rest: Vec<Vec<usize>> = (self.held.iter().zip(&expected))
            .map(|(held, kept)| {
                (self.entries - held..self.entries)
                    .filter(|column| !kept.contains(column))
                    .collect()
            })
            .collect();
        let width = rest.iter().map(Vec::len).max().unwrap();
        let Some((found_rest, counts)) = found.rest else {
            assert_eq!(width, 0, "columns are left");
            return self.check_nan(found.nan);
        };
        assert_eq!(found_rest.dims(), [self.batch, self.heads, width]);
        assert_eq!(counts, rest.iter().map(Vec::len).collect::<Vec<_>>());
        let columns = found_rest.try_into_vec_as::<i64>().unwrap();
        for (found, expected) in columns.chunks(width).zip(&rest) {
            let mut padded = vec![0; width - expected.len()];
            padded.extend(expected.iter().map(|&column| column as i64));
            assert_eq!(found, padded);
        }
        self.check_nan(found.nan);
    }

    /// The operation where there are no kernels, and the reference, which take no NaN.
    fn check_without_kernels(&self, backend: &Backend) {
        let kept = self.expected();
        let rest: Vec<Vec<usize>> = (self.held.iter().zip(&kept))
            .map(|(held, kept)| {
                (self.entries - held..self.entries)
                    .filter(|column| kept.binary_search(column).is_err())
                    .collect()
            })
            .collect();
        let scores = self.tensor(&backend.device);
        let held = self.scores.chunks(self.entries).zip(&self.held);
        let mut held = held.flat_map(|(row, held)| &row[self.entries - held..]);
        if held.any(|score| score.is_nan()) {
            let error = Reference.split(self.input(&scores, true)).unwrap_err();
            return assert!(matches!(error, OpError::NotANumber { operation: "select", .. }));
        }
        let input = || self.input(&scores, true);
        let counted = answer(backend, "select", |kernels| kernels.split(input()));
        for found in [counted, Reference.split(input()).unwrap()] {
            for (found, lists) in [(found.kept, &kept), (found.rest, &rest)] {
                let expected = Selection::of_heads(lists, self.heads, &backend.device);
                assert_eq!(found.counts, expected.counts);
                assert_eq!(found.indices.into_data(), expected.indices.into_data());
            }
        }
    }

    fn check_nan(&self, found: Tensor<1, Int>) {
        let nan: Vec<i64> = (self.scores.chunks(self.entries).zip(&self.held))
            .map(|(row, held)| {
                row[self.entries - held..].iter().filter(|x| x.is_nan()).count() as i64
            })
            .collect();
        assert_eq!(found.try_into_vec_as::<i64>().unwrap(), nan);
    }
}

/// Leaves garbage in buffers that the next ones may lie in.
fn poison(shape: [usize; 3], device: &Device) {
    let garbage = Tensor::<3>::full(shape, f32::NAN, (device, DType::F32));
    garbage.clone().sum().try_into_vec_as::<f32>().unwrap();
}

fn noise(seed: u64, numbers: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // As attention weights are: over many orders of magnitude.
    (0..numbers).map(|_| (rng.random_range(-20.0_f32..0.0)).exp()).collect()
}

fn sprinkle(scores: &mut [f32], numbers: &[f32], every: usize) {
    for (index, score) in scores.iter_mut().enumerate().filter(|(index, _)| index % every == 0) {
        *score = numbers[index / every % numbers.len()];
    }
}

#[test]
fn select_keeps_the_best() {
    let mut cases = Vec::new();
    // Lengths around a load, a tile and two of 256, 512 and 1024 units.
    let lengths: [usize; 16] =
        [1, 2, 31, 255, 256, 257, 1024, 1025, 2049, 8191, 8193, 16385, 32767, 32768, 33001, 65537];
    for (seed, entries) in lengths.into_iter().enumerate() {
        let some = entries.div_ceil(3);
        for keep in [1, some, entries.max(2) - 1, entries, entries + 5] {
            cases.push(Case::new(1, 1, noise(seed as u64, entries), keep));
        }
    }
    for (seed, keep) in [0, 7, 40, 256, 1000].into_iter().enumerate() {
        // Rows of their own lengths and numbers to keep, with protected ones.
        let mut case = Case::new(2, 3, noise(100 + seed as u64, 6 * 1100), keep);
        case.held = vec![1100, 1, 0, 512, 1099, 33];
        case.keep = (0..6).map(|row| keep / (row + 1) + 1).collect();
        case.sinks = seed;
        case.recent = vec![0, 3, 5, keep, 2 * keep, 1];
        cases.push(case);
    }
    // Few different scores, so that ties are cut; all equal; all kinds of numbers.
    let mut ties = Case::new(2, 2, noise(7, 4 * 3000), 700);
    ties.scores.iter_mut().for_each(|x| *x = (x.ln() / 5.0).floor());
    cases.push(ties.clone());
    ties.held = vec![3000, 2999, 1500, 700];
    ties.sinks = 2;
    ties.recent = vec![100; 4];
    cases.push(ties);
    cases.push(Case::new(1, 2, vec![0.25; 2 * 40_000], 12_345));
    let kinds = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        f32::MAX,
        f32::MIN,
    ];
    for keep in [1, 50, 300, 800, 990, 1200] {
        let mut case = Case::new(1, 2, noise(9, 2 * 1300), keep);
        case.scores.iter_mut().step_by(2).for_each(|x| *x = -*x);
        sprinkle(&mut case.scores, &kinds, 3);
        case.held[1] = 1234;
        cases.push(case);
    }
    for backend in all_backends() {
        for case in &cases {
            match supports(&backend.device) {
                true => case.check(&case.tensor(&backend.device)),
                false => case.check_without_kernels(&backend),
            }
        }
    }
}

/// Rows so long that several cubes share one.
#[test]
fn select_from_long_rows() {
    let mut cases = vec![
        Case::new(1, 1, noise(1, 65_537), 1),
        Case::new(1, 1, noise(2, 200_001), 200_000),
        Case::new(1, 2, noise(3, 2 * 100_000), 5_000),
        // All equal, and equal in all but the last digit.
        Case::new(1, 2, vec![1.5; 2 * 70_000], 33_333),
    ];
    let mut close = Case::new(1, 3, vec![0.0; 3 * 90_000], 20_000);
    for (index, score) in close.scores.iter_mut().enumerate() {
        *score = f32::from_bits(0.7_f32.to_bits() + (index * 7919 % 611) as u32);
    }
    cases.push(close.clone());
    // Protected entries and padding over several parts, ties across them, NaN in each.
    close.held = vec![90_000, 40_000, 5];
    close.keep = vec![60_000, 20_000, 7];
    close.sinks = 30_001;
    close.recent = vec![20_000, 5_000, 1];
    sprinkle(&mut close.scores, &[f32::NAN, 0.7, f32::INFINITY], 97);
    cases.push(close);
    for backend in all_backends() {
        for case in &cases {
            match supports(&backend.device) {
                true => case.check(&case.tensor(&backend.device)),
                false => case.check_without_kernels(&backend),
            }
        }
    }
}

#[test]
fn select_takes_scores_as_they_lie() {
    for Backend { ref device, .. } in kernel_backends() {
        let case = Case::new(2, 3, noise(1, 6 * 700), 99);
        let scores = case.tensor(device);
        let wide = Tensor::cat(vec![scores.zeros_like(), scores.clone(), scores.ones_like()], 2);
        case.check(&wide.narrow(2, 700, 700));
        let turned = scores.clone().permute([2, 1, 0]).add_scalar(0.0).permute([2, 1, 0]);
        case.check(&turned);
        let one_head = Case { batch: 2, heads: 1, ..case.clone() };
        let one_head = Case {
            scores: [0, 3].map(|row| case.scores[row * 700..][..700].to_vec()).concat(),
            held: vec![700, 600],
            keep: vec![99, 1],
            recent: vec![0, 0],
            ..one_head
        };
        one_head.check(&scores.narrow(1, 0, 1));
        // Scores in half precision have more ties.
        let mut half = case.clone();
        half.scores.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
        if device.supports_dtype(DType::F16) {
            half.check(&half.tensor(device).cast(DType::F16));
        }
    }
}

#[test]
fn select_is_the_same_every_time_and_everywhere() {
    for backend in all_backends() {
        let device = backend.device.clone();
        let mut case = Case::new(2, 4, noise(3, 8 * 5000), 611);
        sprinkle(&mut case.scores, &[0.5, 0.5, 1e-6], 4);
        case.held[3] = 77;
        let scores = case.tensor(&device);
        let lists =
            |found: Selection| (found.indices.try_into_vec_as::<i64>().unwrap(), found.counts);
        let input = || case.input(&scores, true);
        let run = || lists(answer(&backend, "select", |kernels| kernels.select(input())));
        let first = run();
        assert_eq!(first, run());
        assert_eq!(first, lists(Reference.select(input()).unwrap()));
        let both = |found: Split| (lists(found.kept), lists(found.rest));
        let split = both(answer(&backend, "select", |kernels| kernels.split(input())));
        assert_eq!(split.0, first);
        assert_eq!(split, both(Reference.split(input()).unwrap()));
    }
}

#[test]
fn select_finds_nan_when_asked() {
    for Backend { ref device, .. } in kernel_backends() {
        let mut case = Case::new(1, 3, noise(5, 3 * 400), 20);
        case.held = vec![400, 300, 400];
        for place in [0, 399, 400, 480, 850, 851, 1199] {
            case.scores[place] = f32::NAN;
        }
        // Row 1 has two before its entries, which do not matter.
        case.scores[0] = 1.0;
        case.scores[399] = 1.0;
        let scores = case.tensor(device);
        let kernels = Kernels::default();
        let error = OpError::NotANumber { operation: "select", count: 3 };
        assert_eq!(kernels.select(case.input(&scores, true)).unwrap_err(), error);
        assert_eq!(kernels.split(case.input(&scores, true)).unwrap_err(), error);
        assert_eq!(Reference.select(case.input(&scores, true)).unwrap_err(), error);
        let found = kernels.select(case.input(&scores, false)).unwrap();
        assert_eq!(kernels.fallbacks(), Vec::new());
        let expected: Vec<i64> =
            case.expected().concat().into_iter().map(|column| column as i64).collect();
        assert_eq!(found.indices.try_into_vec_as::<i64>().unwrap(), expected);
    }
}

/// Where nothing is to be kept there is no kernel to run, and the operation answers all the same.
#[test]
fn select_of_nothing() {
    for Backend { ref device, .. } in all_backends() {
        let mut case = Case::new(2, 2, noise(1, 4 * 5), 0);
        let scores = case.tensor(device);
        for keep in [0, 3] {
            case.keep = vec![keep; 4];
            case.held = vec![if keep == 0 { 5 } else { 0 }; 4];
            let kernels = Kernels::default();
            let found = kernels.select(case.input(&scores, true)).unwrap();
            assert_eq!(kernels.fallbacks(), Vec::new());
            assert_eq!((found.indices.dims(), found.counts), ([2, 2, 0], vec![0; 4]));
        }
    }
}

#[test]
fn select_refuses_what_does_not_fit() {
    let four = [1_usize; 4];
    for Backend { ref device, .. } in kernel_backends() {
        let scores = Tensor::<3>::zeros([2, 2, 8], (device, DType::F32));
        let value = |what, found, expected| wrong_value("select", what, found, expected);
        let call = |lengths, keep, recent| {
            let scores = &scores;
            let input = SelectInput { scores, lengths, keep, sinks: 0, recent, check: false };
            select(&input, false).unwrap_err()
        };
        assert_eq!(call(&four[..3], &four, &four), value("the number of lengths", 3, "4"));
        assert_eq!(call(&four, &four[..2], &four), value("the length of keep", 2, "4"));
        assert_eq!(call(&four, &four, &[]), value("the length of recent", 0, "4"));
        assert_eq!(call(&[1, 9, 1, 1], &four, &four), value("length", 9, "at most 8"));
        assert_eq!(call(&four, &[0; 4], &four), value("the most entries kept", 0, "at least 1"));
        assert_eq!(call(&[0; 4], &four, &four), value("the most entries kept", 0, "at least 1"));
    }
    let scores = Tensor::<3>::zeros([2, 2, 8], (&host(), DType::F32));
    let (scores, lengths, keep, recent) = (&scores, &four, &four, &four);
    let input = SelectInput { scores, lengths, keep, sinks: 0, recent, check: false };
    assert_eq!(select(&input, true).unwrap_err(), OpError::Device { operation: "select" });
}
