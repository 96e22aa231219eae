//! Any number of entries kept, ties, NaN, rows of different lengths, sizes that cross each tile of
//! the kernel.

use std::cmp::Ordering;

use briquette::ops::{OpError, Ops, Reference, SelectInput, Selection, Split};
use briquette_kernels::{Kernels, select, supports};
use briquette_ops::SelectOps;
use briquette_tests::backends::{Backend, host};
use burn::tensor::{DType, Device, Int, Tensor, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, floats, kernel_backends, poison, turned, whole_numbers,
};

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
        floats(&self.scores, [self.batch, self.heads, self.entries], device)
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

    /// The columns that each row leaves.
    fn rest(&self, kept: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let row = |(held, kept): (&usize, &Vec<usize>)| {
            let columns = self.entries - held..self.entries;
            columns.filter(|column| kept.binary_search(column).is_err()).collect()
        };
        self.held.iter().zip(kept).map(row).collect()
    }

    /// Compares lists of columns with those expected, behind zeros.
    fn check_lists(&self, indices: Tensor<3, Int>, counts: &[usize], expected: &[Vec<usize>]) {
        let width = expected.iter().map(Vec::len).max().unwrap();
        assert_eq!(indices.dims(), [self.batch, self.heads, width]);
        assert_eq!(counts, expected.iter().map(Vec::len).collect::<Vec<_>>());
        let columns = whole_numbers(indices);
        for (row, (found, expected)) in columns.chunks(width).zip(expected).enumerate() {
            let mut padded = vec![0; width - expected.len()];
            padded.extend(expected.iter().map(|&column| column as i64));
            assert_eq!(found, padded, "row {row} of {} entries", self.entries);
        }
    }

    /// The kernel against the columns expected, with the scores as they are given.
    fn check(&self, scores: &Tensor<3>) {
        let expected = self.expected();
        let width = expected.iter().map(Vec::len).max().unwrap();
        poison(&scores.device(), &[self.batch * self.heads * width]);
        let found = select(&self.input(scores, false), true).unwrap();
        self.check_lists(found.indices, &found.counts, &expected);
        // What is left, in the same way.
        let rest = self.rest(&expected);
        match found.rest {
            Some((rest_found, counts)) => self.check_lists(rest_found, &counts, &rest),
            None => assert!(rest.iter().all(Vec::is_empty), "columns are left"),
        }
        let nan: Vec<i64> = (self.scores.chunks(self.entries).zip(&self.held))
            .map(|(row, held)| {
                row[self.entries - held..].iter().filter(|x| x.is_nan()).count() as i64
            })
            .collect();
        assert_eq!(whole_numbers(found.nan), nan);
    }

    /// The operation where there are no kernels, and the reference, which take no NaN.
    fn check_without_kernels(&self, backend: &Backend) {
        let kept = self.expected();
        let rest = self.rest(&kept);
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
}

fn check_all(cases: &[Case]) {
    for backend in all_backends() {
        for case in cases {
            match supports(&backend.device) {
                true => case.check(&case.tensor(&backend.device)),
                false => case.check_without_kernels(&backend),
            }
        }
    }
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
    check_all(&cases);
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
    check_all(&cases);
}

#[test]
fn select_takes_scores_as_they_lie() {
    for Backend { ref device, .. } in kernel_backends() {
        let case = Case::new(2, 3, noise(1, 6 * 700), 99);
        let scores = case.tensor(device);
        let wide = Tensor::cat(vec![scores.zeros_like(), scores.clone(), scores.ones_like()], 2);
        case.check(&wide.narrow(2, 700, 700));
        case.check(&turned(&scores, 0, 2));
        let one_head = Case {
            batch: 2,
            heads: 1,
            scores: [0, 3].map(|row| case.scores[row * 700..][..700].to_vec()).concat(),
            held: vec![700, 600],
            keep: vec![99, 1],
            recent: vec![0, 0],
            ..case.clone()
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
        let lists = |found: Selection| (whole_numbers(found.indices), found.counts);
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
        assert_eq!(whole_numbers(found.indices), expected);
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
    let (four, by) = ([1_usize; 4], RefusedBy("select"));
    for Backend { ref device, .. } in kernel_backends() {
        let scores = Tensor::<3>::zeros([2, 2, 8], (device, DType::F32));
        let call = |lengths, keep, recent| {
            let scores = &scores;
            let input = SelectInput { scores, lengths, keep, sinks: 0, recent, check: false };
            select(&input, false).unwrap_err()
        };
        assert_eq!(call(&four[..3], &four, &four), by.value("the number of lengths", 3, "4"));
        assert_eq!(call(&four, &four[..2], &four), by.value("the length of keep", 2, "4"));
        assert_eq!(call(&four, &four, &[]), by.value("the length of recent", 0, "4"));
        assert_eq!(call(&[1, 9, 1, 1], &four, &four), by.value("length", 9, "at most 8"));
        assert_eq!(call(&four, &[0; 4], &four), by.value("the most entries kept", 0, "at least 1"));
        assert_eq!(call(&[0; 4], &four, &four), by.value("the most entries kept", 0, "at least 1"));
    }
    let scores = Tensor::<3>::zeros([2, 2, 8], (&host(), DType::F32));
    let (scores, lengths, keep, recent) = (&scores, &four, &four, &four);
    let input = SelectInput { scores, lengths, keep, sinks: 0, recent, check: false };
    assert_eq!(select(&input, true).unwrap_err(), by.device());
}
