//! Odd sizes, sizes that cross a tile and a split, padding, equals, zero vectors.

use briquette::ops::{NearestInput, Reference};
use briquette_kernels::{nearest, supports};
use briquette_ops::MergeOps;
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    session::tolerance,
};
use burn::tensor::{DType, Device, Tensor};

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, kernel_backends, numbers, rows, turned,
};

#[derive(Debug)]
struct Case {
    batch: usize,
    heads: usize,
    from: usize,
    to: usize,
    /// Channels of each pair.
    channels: Vec<usize>,
    /// Fillers of the lists, one after another.
    padding: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let case = |(batch, heads), from, to, channels: &[usize], padding: &[usize]| {
        let padding = (0..batch * heads).map(|list| padding[list % padding.len()]).collect();
        Case { batch, heads, from, to, channels: channels.to_vec(), padding }
    };
    vec![
        case((1, 1), 1, 1, &[64], &[0]),
        case((2, 2), 5, 130, &[64], &[0, 129, 130, 3]),
        case((1, 2), 33, 300, &[64], &[2, 0]),
        case((1, 1), 130, 127, &[7], &[1]),
        case((1, 2), 3, 65, &[64, 64], &[0, 64]),
        case((1, 1), 40, 200, &[16, 5], &[1]),
        // More cubes than a device needs: a split has two tiles.
        case((64, 8), 1, 300, &[64], &[0, 5]),
        // The largest tiles.
        case((32, 8), 33, 130, &[4], &[0, 5]),
        case((32, 8), 33, 70, &[4, 4], &[0, 5]),
        // On tensor cores: two tiles a plane, one, two planes, splits, blocks of nothing but
        // padding.
        case((2, 70), 130, 75, &[128], &[0, 33, 75]),
        case((2, 70), 70, 75, &[64, 128], &[0, 70]),
        case((2, 70), 70, 40, &[32], &[1, 0]),
        case((1, 2), 33, 1100, &[128], &[0, 1050]),
        case((1, 3), 45, 150, &[48, 80], &[0, 40]),
    ]
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { (dot(a, b) / lengths).min(1.0) }
}

impl Case {
    /// The operation against all similarities in f64.
    fn check(&self, dtype: DType, backend: &Backend) {
        let device = &backend.device;
        let Self { batch, heads, from, to, .. } = *self;
        let host = host();
        let mut noise = Noise::new((from * to) as u64);
        let pairs: Vec<(Tensor<4>, Tensor<4>)> = self
            .channels
            .iter()
            .map(|&channels| {
                let own = noise.tensor([batch, heads, from, channels], &host);
                let others = noise.tensor([batch, heads, to, channels], &host);
                // `to` repeats its first rows; the last row of `from` is zero.
                let (half, twice) = (to.div_ceil(2), to / 2);
                let others = match twice {
                    0 => others,
                    _ => Tensor::cat(
                        vec![others.clone().narrow(2, 0, half), others.narrow(2, 0, twice)],
                        2,
                    ),
                };
                let own = match from {
                    1 => own,
                    _ => own.slice_fill(burn::tensor::s![.., .., from - 1.., ..], 0.0),
                };
                (own.cast(dtype), others.cast(dtype))
            })
            .collect();

        let lists: Vec<_> = pairs.iter().map(|(a, b)| (rows(a), rows(b))).collect();
        let mut unclear = 0;
        let expected: Vec<(f64, Option<usize>)> = (0..batch * heads * from)
            .map(|row| {
                let list = row / from;
                let similarity = |column: usize| -> f64 {
                    let of_pair = |(a, b): &(Vec<Vec<f64>>, Vec<Vec<f64>>)| {
                        cosine(&a[row], &b[list * to + column])
                    };
                    lists.iter().map(of_pair).product()
                };
                let (mut highest, mut index, mut next) = (-2.0, 0, -2.0_f64);
                for column in self.padding[list]..to {
                    let found = similarity(column);
                    if found > highest {
                        (next, highest, index) = (highest, found, column);
                    } else if found < highest {
                        next = next.max(found);
                    }
                }
                let clear = highest - next > 1e-5 || highest == -2.0;
                unclear += usize::from(!clear);
                (highest, clear.then_some(index))
            })
            .collect();
        assert!(unclear <= expected.len() / 10, "{unclear} of {} are unclear", expected.len());

        let to_device = |x: &Tensor<4>| x.clone().to_device(device);
        let plain: Vec<_> = pairs.iter().map(|(a, b)| (to_device(a), to_device(b))).collect();
        // A part of a wider tensor whose other part is NaN, and the transpose of another.
        let wide = |x: &Tensor<4>| {
            let channels = x.dims()[3];
            Tensor::cat(vec![x.clone(), x.clone().mul_scalar(f32::NAN)], 3).narrow(3, 0, channels)
        };
        let strided = plain.iter().map(|(a, b)| (turned(a, 2, 3), wide(b))).collect();
        let mut first = None;
        for pairs in [plain, strided] {
            // What a buffer that is used again may hold.
            drop(Tensor::<3>::full([batch, heads, from], f32::NAN, device) * 1.0);
            let input = NearestInput { pairs, padding: self.padding.clone() };
            let found = answer(backend, "nearest", |kernels| kernels.nearest(input));
            assert_eq!(found.similarity.dims(), [batch, heads, from]);
            assert_eq!(found.index.dims(), [batch, heads, from]);
            let similarity = numbers(found.similarity);
            let index = found.index.try_into_vec_as::<i32>().unwrap();
            for ((found, place), (highest, expected)) in
                similarity.iter().zip(&index).zip(&expected)
            {
                let off = (f64::from(*found) - highest).abs();
                assert!(
                    off <= tolerance(DType::F32) && *found <= 1.0,
                    "{found}, expected {highest}, {self:?}, {dtype:?}"
                );
                if let Some(expected) = expected {
                    assert_eq!(*place as usize, *expected, "{self:?}, {dtype:?}");
                }
            }
            // Products of Burn's may be added up in another order.
            if supports(device) {
                let all = (similarity, index);
                let first = first.get_or_insert_with(|| all.clone());
                assert_eq!(*first, all, "layout changes nothing");
            }
        }
    }
}

#[test]
fn nearest_finds_the_most_similar() {
    each_dtype(all_backends(), |backend, dtype| {
        // Tensor cores take rows of other types than this, of so many channels; a few more show
        // that others are read.
        let all = dtype == DType::F32;
        let taken = |case: &Case| case.channels.iter().all(|channels| channels % 16 == 0);
        let cases = backend.some(cases(), DType::F32).into_iter();
        for case in cases.filter(|case| all || taken(case) || case.from == 33) {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            case.check(dtype, backend);
        }
    });
}

/// Zero vectors are like nothing, NaN is nobody's nearest, and where all are padding there is
/// nothing.
#[test]
fn nearest_has_answers_for_odd_rows() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let rows = |rows: &[[f32; 2]]| {
            let flat: Vec<f32> = rows.concat();
            Tensor::<1>::from_floats(&flat[..], device).reshape([1, 1, rows.len(), 2])
        };
        let from = rows(&[[0.0, 0.0], [1.0, 0.0], [f32::NAN, 1.0]]);
        let to = rows(&[[f32::NAN, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 3.0], [2.0, 2.0]]);
        let find = |padding| {
            let input =
                NearestInput { pairs: vec![(from.clone(), to.clone())], padding: vec![padding] };
            let found = nearest(input).unwrap();
            let index = found.index.try_into_vec_as::<i32>().unwrap();
            (numbers(found.similarity), index)
        };
        let (similarity, index) = find(0);
        assert_eq!(index, [1, 4, 0]);
        assert_eq!((similarity[0], similarity[2]), (0.0, -2.0));
        assert!((similarity[1] - 0.5_f32.sqrt()).abs() < 1e-6);
        assert_eq!(find(5), (vec![-2.0; 3], vec![0; 3]));
        let zero = || Tensor::zeros([1, 1, 1, 2], (device, DType::F32));
        let input = NearestInput { pairs: vec![(zero(), zero())], padding: vec![0] };
        assert_eq!(numbers(nearest(input).unwrap().similarity), [0.0]);
    }
}

#[test]
fn nearest_refuses_what_does_not_fit() {
    let by = RefusedBy("nearest");
    let pair = |from, to, device: &Device| {
        let rows = |rows| Tensor::zeros([1, 2, rows, 4], (device, DType::F32));
        (rows(from), rows(to))
    };
    let refused = |pairs, padding: &[usize]| {
        nearest(NearestInput { pairs, padding: padding.to_vec() }).unwrap_err()
    };
    assert_eq!(refused(vec![pair(1, 1, &host())], &[0, 0]), by.device());
    assert_eq!(refused(vec![], &[0, 0]), by.value("pairs", 0, "1 or 2"));
    for backend in kernel_backends() {
        let pair = |from, to| pair(from, to, &backend.device);
        assert_eq!(refused(vec![pair(1, 0)], &[0, 0]), by.value("to", 0, "1 or more"));
        let expected = by.shape("to", &[1, 2, 4, 4], &[1, 2, 2, 4]);
        assert_eq!(refused(vec![pair(3, 2), pair(3, 4)], &[0, 0]), expected);
        assert_eq!(refused(vec![pair(3, 2)], &[0]), by.shape("padding", &[1], &[2]));
    }
}

/// The kernel returns the same as tensor operations.
#[test]
fn nearest_is_the_reference() {
    for backend in kernel_backends() {
        let mut noise = Noise::new(7);
        let mut rows = |rows| noise.tensor([2, 2, rows, 16], &backend.device);
        let pairs = vec![(rows(20), rows(30)), (rows(20), rows(30))];
        let input = NearestInput { pairs, padding: vec![0, 3, 30, 29] };
        let found = answer(&backend, "nearest", |kernels| kernels.nearest(input.clone()));
        let expected = Reference.nearest(input).unwrap();
        let off = (found.similarity - expected.similarity).abs().max();
        assert!(off.try_into_scalar::<f32>().unwrap() < 1e-5);
        assert_eq!(found.index.into_data(), expected.index.into_data());
    }
}
