//! Heads of different lengths in one list, side by side, and with what has come behind them.

use briquette::ops::{AttentionStatistics, Entries, Reference, Statistic};
use briquette_kernels::{pack, pad};
use briquette_ops::{PackInput, PadInput, SelectOps, Tail};
use briquette_tests::{backends::host, inputs::Noise};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::common::{
    RefusedBy, all_backends, answer, each_case, floats, integers, kernel_backends, numbers,
    offsets, poison, turned, whole_numbers,
};

/// Lists of heads, and a tail.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    head_dim: usize,
    /// Rows of each head.
    counts: Vec<usize>,
    /// Columns of a rectangle.
    width: usize,
    capacity: usize,
    tail: usize,
}

fn cases() -> Vec<Case> {
    let case = |[batch, heads, head_dim]: [usize; 3],
                counts: &[usize],
                width,
                [capacity, tail]: [usize; 2]| {
        Case { batch, heads, head_dim, counts: counts.to_vec(), width, capacity, tail }
    };
    vec![
        case([1, 1, 1], &[1], 1, [1, 0]),
        case([1, 2, 64], &[5, 5], 5, [4, 1]),
        // A head that holds nothing, and rows of odd lengths.
        case([2, 2, 7], &[3, 0, 9, 1], 11, [3, 3]),
        // More vectors than a cube has units, and more rows than a cube copies.
        case([1, 2, 1030], &[4, 2], 4, [2, 2]),
        case([1, 3, 128], &[70, 300, 33], 320, [130, 129]),
    ]
}

impl Case {
    fn offsets(&self, device: &Device) -> Tensor<1, Int> {
        integers(&offsets(&self.counts), [self.counts.len() + 1], device)
    }

    fn alike(&self) -> bool {
        self.counts.iter().all(|&count| count == self.width)
    }

    fn noise(&self, rows: [usize; 3], dtype: DType) -> Tensor<4> {
        let [batch, heads, rows] = rows;
        let mut noise = Noise::new((self.head_dim + rows) as u64);
        noise.tensor([batch, heads, rows, self.head_dim], &host()).cast(dtype)
    }

    fn pad(&self, dtype: DType, device: &Device) -> PadInput {
        let total = self.counts.iter().sum();
        let list =
            self.noise([1, 1, total], dtype).to_device(device).reshape([total, self.head_dim]);
        let tail = self.noise([self.batch, self.heads, self.capacity], dtype).to_device(device);
        PadInput {
            values: list.clone() * 2.0,
            keys: list,
            offsets: (!self.alike()).then(|| self.offsets(device)),
            width: self.width,
            tail: Tail { values: tail.clone() * 2.0, keys: tail, entries: self.tail },
        }
    }

    /// Compares a rectangle with the list and the tail that it is made of: the first number is at
    /// padding.
    fn check_rectangle(&self, call: &PadInput, [keys, values]: [Tensor<4>; 2]) {
        let Self { batch, heads, head_dim, width, capacity, tail, .. } = *self;
        assert_eq!(keys.dims(), [batch, heads, width + tail, head_dim]);
        assert_eq!(values.dims(), keys.dims());
        let offsets = offsets(&self.counts);
        let pairs =
            [(keys, &call.keys, &call.tail.keys), (values, &call.values, &call.tail.values)];
        for (found, list, behind) in pairs {
            let (found, list) = (numbers(found), numbers(list.clone()));
            let behind = numbers(behind.clone());
            let row = |x: &[f32], row: usize| x[row * head_dim..][..head_dim].to_vec();
            for (head, (&count, &own)) in self.counts.iter().zip(&offsets).enumerate() {
                let first = head * (width + tail);
                for place in 0..count {
                    let expected = row(&list, own + place);
                    assert_eq!(row(&found, first + width - count + place), expected, "{self:?}");
                }
                for place in 0..tail {
                    let expected = row(&behind, head * capacity + place);
                    assert_eq!(row(&found, first + width + place), expected, "{self:?}");
                }
                let padding = (0..width - count).flat_map(|place| row(&found, first + place));
                assert!(padding.into_iter().all(f32::is_finite), "{self:?}");
            }
        }
    }

    fn check_list(&self, call: &PadInput, [keys, values]: [Tensor<2>; 2]) {
        assert_eq!(numbers(keys), numbers(call.keys.clone()), "{self:?}");
        assert_eq!(numbers(values), numbers(call.values.clone()), "{self:?}");
    }
}

#[test]
fn pad_of_cases() {
    each_case(all_backends(), &cases(), |backend, dtype, case| {
        let call = case.pad(dtype, &backend.device);
        let size = case.batch * case.heads * (case.width + case.tail) * case.head_dim;
        poison(&backend.device, &[size, size]);
        let found = answer(backend, "pad", |kernels| kernels.pad(call.clone()));
        assert_eq!(found[0].dtype(), dtype);
        case.check_rectangle(&call, found);
        let elsewhere = PadInput {
            keys: turned(&call.keys, 0, 1),
            values: turned(&call.values, 0, 1),
            tail: Tail { keys: turned(&call.tail.keys, 0, 3), ..call.tail.clone() },
            ..call.clone()
        };
        let found = answer(backend, "pad", |kernels| kernels.pad(elsewhere));
        case.check_rectangle(&call, found);
    });
}

#[test]
fn pack_of_cases() {
    each_case(all_backends(), &cases(), |backend, dtype, case| {
        let call = case.pad(dtype, &backend.device);
        let [keys, values] = Reference.pad(without_tail(&call)).unwrap();
        let size = call.keys.dims().iter().product();
        poison(&backend.device, &[size, size]);
        let across = turned(&keys, 0, 3);
        for (keys, values) in [(keys, values.clone()), (across, values)] {
            let offsets = case.offsets(&backend.device);
            let input = PackInput { keys, values, counts: &case.counts, offsets };
            case.check_list(&call, answer(backend, "pack", |kernels| kernels.pack(input)));
        }
    });
}

fn without_tail(call: &PadInput) -> PadInput {
    PadInput { tail: Tail { entries: 0, ..call.tail.clone() }, ..call.clone() }
}

#[test]
fn lists_by_tensor_operations() {
    for backend in all_backends() {
        for case in cases() {
            let call = case.pad(DType::F32, &backend.device);
            case.check_rectangle(&call, Reference.pad(call.clone()).unwrap());
            let [keys, values] = Reference.pad(without_tail(&call)).unwrap();
            let offsets = case.offsets(&backend.device);
            let input = PackInput { keys, values, counts: &case.counts, offsets };
            case.check_list(&call, Reference.pack(input).unwrap());
        }
    }
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let case = &cases()[2];
    let counts = &case.counts;
    let (pads, packs) = (RefusedBy("pad"), RefusedBy("pack"));
    assert_eq!(pad(case.pad(DType::F32, &host())).unwrap_err(), pads.device());
    for backend in kernel_backends() {
        let good = case.pad(DType::F32, &backend.device);
        let long = PadInput { tail: Tail { entries: 4, ..good.tail.clone() }, ..good.clone() };
        assert_eq!(pad(long).unwrap_err(), pads.value("tail", 4, "at most 3"));
        let alike = PadInput { offsets: None, ..good.clone() };
        assert_eq!(pad(alike).unwrap_err(), pads.value("rows", 13, "44, 11 a head"));
        let few = good.offsets.clone().map(|offsets| offsets.narrow(0, 0, 4));
        let few = PadInput { offsets: few, ..good.clone() };
        assert_eq!(pad(few).unwrap_err(), pads.shape("offsets", &[4], &[5]));

        let keys = good.tail.keys;
        let refused = |counts| {
            let (keys, values) = (keys.clone(), keys.clone());
            let offsets = case.offsets(&backend.device);
            pack(PackInput { keys, values, counts, offsets }).unwrap_err()
        };
        assert_eq!(refused(&counts[..3]), packs.value("the length of counts", 3, "4"));
        assert_eq!(refused(counts), packs.value("counts", 9, "at most 3"));
        assert_eq!(refused(&[0; 4]), packs.value("rows", 0, "1 or more"));
    }
}

/// Entries of `[batch, heads, columns]`, all numbers different; so many statistics, of so many
/// heads for each.
fn entries(dims: [usize; 3], first: usize, groups: &[usize], device: &Device) -> Entries {
    let [batch, heads, width] = dims;
    let count = |numbers: usize, from: usize| (0..numbers).map(move |number| from + number);
    let positions: Vec<i64> =
        count(batch * heads * width, first).map(|number| number as i64 - 1).collect();
    let counted = |numbers: usize, from: usize, width: usize| {
        let all: Vec<f32> = count(numbers * width, from).map(|number| number as f32).collect();
        floats(&all, [batch, numbers / batch, width], device)
    };
    let rows = |from| counted(batch * heads, from, 2 * width).reshape([batch, heads, width, 2]);
    let kinds =
        [Statistic::Sums, Statistic::Squares, Statistic::LocalPast, Statistic::LocalCurrent];
    let track = |(index, (group, kind)): (usize, (&usize, Statistic))| {
        (kind, counted(batch * heads * group, first * (index + 2), width))
    };
    let statistics = AttentionStatistics::new(groups.iter().zip(kinds).enumerate().map(track));
    Entries {
        keys: rows(first),
        values: rows(3 * first),
        positions: integers(&positions, dims, device),
        statistics,
        clustering: None,
    }
}

/// Space that stores leave behind their entries: nothing has been counted of it yet.
#[test]
fn entries_followed_by_others() {
    let cases: [([usize; 4], &[usize]); 4] = [
        ([1, 1, 1, 1], &[]),
        ([2, 3, 5, 2], &[1]),
        ([1, 2, 300, 1], &[4, 4, 4]),
        ([2, 1, 255, 257], &[2; 4]),
    ];
    for backend in all_backends() {
        for ([batch, heads, width, more], groups) in cases {
            let device = &backend.device;
            let before = entries([batch, heads, width], 7, groups, device);
            let behind = entries([batch, heads, more], 100_000, &[], device);
            poison(device, &[batch * heads * (width + more)]);
            let found = before.clone().followed_by(behind.clone());
            assert_eq!(found.columns(), width + more);
            let rows = |x: &Tensor<4>, columns: std::ops::Range<usize>| {
                numbers(x.clone().slice([0..batch, 0..heads, columns, 0..2]))
            };
            for (found, before, behind) in [
                (&found.keys, &before.keys, &behind.keys),
                (&found.values, &before.values, &behind.values),
            ] {
                assert_eq!(rows(found, 0..width), numbers(before.clone()));
                assert_eq!(rows(found, width..width + more), numbers(behind.clone()));
            }
            let positions = found.positions.clone();
            let first = whole_numbers(positions.clone().narrow(2, 0, width));
            assert_eq!(first, whole_numbers(before.positions));
            let last = whole_numbers(positions.narrow(2, width, more));
            assert_eq!(last, whole_numbers(behind.positions));
            assert_eq!(found.statistics.len(), groups.len());
            for ((_, found), (_, before)) in found.statistics.iter().zip(before.statistics.iter()) {
                let behind = numbers(found.clone().narrow(2, width, more));
                assert!(behind.iter().all(|number| *number == 0.0), "{behind:?}");
                assert_eq!(numbers(found.narrow(2, 0, width)), numbers(before));
            }
        }
    }
}
