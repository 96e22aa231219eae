//! Odd sizes, sizes that cross a chunk of rows and a bin of slots, rows that are sent nowhere.

use briquette::ops::Reference;
use briquette_kernels::{accumulate, supports};
use briquette_ops::{AccumulateInput, MergeOps};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    session::tolerance,
};
use burn::tensor::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, f64s, floats, integers, kernel_backends, numbers,
    turned,
};

#[derive(Debug)]
struct Case {
    batch: usize,
    heads: usize,
    rows: usize,
    channels: usize,
    span: usize,
    slots: usize,
}

fn cases() -> Vec<Case> {
    let case = |batch, heads, rows, channels, span, slots| Case {
        batch,
        heads,
        rows,
        channels,
        span,
        slots,
    };
    vec![
        case(1, 1, 1, 1, 1, 1),
        case(2, 3, 70, 64, 1, 9),
        case(1, 2, 1023, 64, 2, 257),
        case(1, 1, 1025, 64, 4, 16),
        // More chunks than units that look them up, and several parts.
        case(1, 1, 34 * 1024 + 5, 1, 3, 70),
        case(2, 2, 300, 129, 1, 65),
        case(1, 2, 40, 7, 50, 30),
        case(1, 2, 90, 260, 1, 11),
    ]
}

impl Case {
    /// The operation against a loop over rows in f64.
    fn check(&self, dtype: DType, backend: &Backend) {
        let device = &backend.device;
        let Self { batch, heads, rows, channels, span, slots } = *self;
        let host = host();
        let mut rng = ChaCha8Rng::seed_from_u64(rows as u64);
        let mut noise = Noise::new(rows as u64);
        let x = noise.tensor([batch, heads, rows, channels], &host).cast(dtype);
        let lists = batch * heads;
        // A third goes to one slot, a few nowhere; a tenth has no weight.
        let slot: Vec<i64> = (0..lists * rows)
            .map(|_| match rng.random_range(0..3) {
                0 => slots as i64 / 2,
                _ => rng.random_range(-3..slots as i64 + 3),
            })
            .collect();
        let weights: Vec<f32> = (0..lists * rows)
            .map(|_| if rng.random_range(0..10) == 0 { 0.0 } else { rng.random_range(-1.0..2.0) })
            .collect();

        let of_rows = f64s(&x);
        let mut expected = vec![0.0_f64; lists * slots * channels];
        let mut size = vec![0.0_f64; lists * slots * channels];
        for row in 0..lists * rows {
            let list = row / rows;
            for place in slot[row]..slot[row] + span as i64 {
                if place < 0 || place >= slots as i64 || weights[row] == 0.0 {
                    continue;
                }
                for channel in 0..channels {
                    let at = (list * slots + place as usize) * channels + channel;
                    let term = f64::from(weights[row]) * of_rows[row * channels + channel];
                    expected[at] += term;
                    size[at] += term.abs();
                }
            }
        }

        let shape = [batch, heads, rows];
        let weights = floats(&weights, shape, device);
        let slot = integers(&slot, shape, device);
        let x = x.to_device(device);
        let wide = Tensor::cat(vec![x.clone(), x.clone().mul_scalar(f32::NAN)], 3);
        let turned = turned(&x, 2, 3);
        let mut first = None;
        for x in [x, wide.narrow(3, 0, channels), turned] {
            // What a buffer that is used again may hold.
            drop(Tensor::<4>::full([batch, heads, slots, channels], f32::NAN, device) * 1.0);
            let input =
                AccumulateInput { x, weights: weights.clone(), slot: slot.clone(), span, slots };
            let found = answer(backend, "accumulate", |kernels| kernels.accumulate(input));
            assert_eq!(found.dims(), [batch, heads, slots, channels]);
            assert_eq!(found.dtype(), DType::F32);
            let found = numbers(found);
            for ((found, expected), size) in found.iter().zip(&expected).zip(&size) {
                let off = (f64::from(*found) - expected).abs();
                assert!(
                    off <= tolerance(DType::F32) * (1.0 + size * 1e-2),
                    "{found}, expected {expected}, {self:?}, {dtype:?}"
                );
            }
            // Products of Burn's may be added up in another order.
            if supports(device) {
                let first = first.get_or_insert_with(|| found.clone());
                assert_eq!(*first, found, "layout changes nothing");
            }
        }
    }
}

#[test]
fn accumulate_adds_rows_to_slots() {
    each_dtype(all_backends(), |backend, dtype| {
        for case in cases() {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            case.check(dtype, backend);
        }
    });
}

fn input(shape: [usize; 4], slots: usize, device: &Device) -> AccumulateInput {
    let [batch, heads, rows, channels] = shape;
    AccumulateInput {
        x: Tensor::zeros([batch, heads, rows, channels], (device, DType::F32)),
        weights: Tensor::zeros([batch, heads, rows], (device, DType::F32)),
        slot: Tensor::zeros([batch, heads, rows], device),
        span: 1,
        slots,
    }
}

#[test]
fn no_rows_add_up_to_nothing() {
    for backend in kernel_backends() {
        let input = input([1, 2, 0, 4], 3, &backend.device);
        let sums = answer(&backend, "accumulate", |kernels| kernels.accumulate(input));
        assert_eq!(sums.dims(), [1, 2, 3, 4]);
        assert!(numbers(sums).iter().all(|sum| *sum == 0.0));
    }
}

#[test]
fn accumulate_refuses_what_does_not_fit() {
    let by = RefusedBy("accumulate");
    assert_eq!(accumulate(input([1, 1, 1, 1], 1, &host())).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let whole = || input([1, 2, 5, 4], 3, &backend.device);
        let none = AccumulateInput { slots: 0, ..whole() };
        assert_eq!(accumulate(none).unwrap_err(), by.value("slots", 0, "1 or more"));
        let many = AccumulateInput { slots: 1 << 21, ..whole() };
        let expected = by.size("slots and span", (1 << 21) + 1, 1 << 21);
        assert_eq!(accumulate(many).unwrap_err(), expected);
        let slot = input([1, 2, 6, 4], 3, &backend.device).slot;
        let error = accumulate(AccumulateInput { slot, ..whole() }).unwrap_err();
        assert_eq!(error, by.shape("slot", &[1, 2, 6], &[1, 2, 5]));
    }
}

/// The kernel returns the same as tensor operations.
#[test]
fn accumulate_is_the_reference() {
    for backend in kernel_backends() {
        let mut noise = Noise::new(7);
        let x = noise.tensor([2, 2, 33, 8], &backend.device);
        let weights = noise.tensor([2, 2, 33, 1], &backend.device).reshape([2, 2, 33]);
        let slot = (weights.clone() * 3.0 + 4.0).int();
        let input = AccumulateInput { x, weights, slot, span: 2, slots: 9 };
        let found = answer(&backend, "accumulate", |kernels| kernels.accumulate(input.clone()));
        let off = (found - Reference.accumulate(input).unwrap()).abs().max();
        assert!(off.try_into_scalar::<f32>().unwrap() < 1e-5);
    }
}
