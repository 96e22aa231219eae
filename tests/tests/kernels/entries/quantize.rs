//! Numbers as levels between the minimum and the maximum of their group, in words, and scales and
//! minima; of rows as they lie and turned, and of groups that fill no whole word.

use briquette_kernels::{quantize, quantize_fp8};
use briquette_ops::{EntryOps, PackedGroups, QuantizeInput};
use briquette_tests::inputs::round;
use burn::tensor::{DType, Int, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, floats, kernel_backends, numbers, turned,
    whole_numbers,
};

/// Pages, rows, numbers of a row, numbers of a group.
const CASES: [[usize; 4]; 6] = [
    [1, 1, 32, 32],
    [3, 5, 32, 32],
    [2, 32, 128, 32],
    [7, 128, 32, 32],
    [2, 3, 24, 24],
    [1, 4, 192, 64],
];

fn drawn(count: usize, dtype: DType) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(count as u64);
    let mut all: Vec<f64> = (0..count).map(|_| round(rng.random_range(-3.0..5.0), dtype)).collect();
    // A group of one number, again and again.
    all[..24].fill(round(0.3, dtype));
    all
}

fn words(x: Tensor<2, Int>) -> Vec<u32> {
    assert_eq!(x.dtype(), DType::I32);
    whole_numbers(x).into_iter().map(|word| word as i32 as u32).collect()
}

fn check(
    x: &[f64],
    [pages, rows, count, group]: [usize; 4],
    bits: u8,
    found: PackedGroups,
    dtype: DType,
    what: &str,
) {
    let PackedGroups { words: packed, scale, min } = found;
    let a_word = 32 / usize::from(bits);
    let (groups, width) = (count / group, count.div_ceil(a_word));
    assert_eq!(packed.dims(), [pages, rows * width], "{what}");
    assert_eq!([scale.dims(), min.dims()], [[pages, rows * groups]; 2], "{what}");
    assert_eq!([scale.dtype(), min.dtype()], [dtype; 2], "{what}");
    let (packed, scale, min) = (words(packed), numbers(scale), numbers(min));
    let top = f64::from((1u32 << bits) - 1);
    for (row, (x, packed)) in x.chunks(count).zip(packed.chunks(width)).enumerate() {
        for (place, x) in x.chunks(group).enumerate() {
            let low = x.iter().copied().fold(f64::INFINITY, f64::min);
            let high = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let measure = row * groups + place;
            let held = f64::from(min[measure]);
            assert_eq!(held, round(low, dtype), "{what}");
            // A quotient in f32 may lie between two numbers of the type: the even one counts.
            let exact = round(round(high - low, DType::F32) / top, DType::F32);
            let step = f64::from(scale[measure]);
            let off = (step - round(exact, dtype)).abs();
            assert!(off <= 1e-6 * exact, "{what}: {step}, expected {exact}");
            for (number, x) in x.iter().enumerate() {
                let at = place * group + number;
                let level = packed[at / a_word] >> (at % a_word * usize::from(bits));
                let level = f64::from(level & ((1u32 << bits) - 1));
                let step = if step == 0.0 { 1.0 } else { step };
                let wanted = ((x - held) / step).clamp(0.0, top);
                assert!((level - wanted).abs() < 0.5001, "{what}: {wanted} became {level}");
            }
        }
        // Nothing stands behind the last number.
        let rest = count % a_word;
        if rest > 0 {
            assert_eq!(packed[width - 1] >> (rest * usize::from(bits)), 0, "{what}");
        }
    }
}

#[test]
fn numbers_become_the_nearest_levels() {
    each_dtype(all_backends(), |backend, dtype| {
        for case @ [pages, rows, count, group] in CASES {
            let x = drawn(pages * rows * count, dtype);
            let singles: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            let whole = floats(&singles, [pages, rows, count], &backend.device).cast(dtype);
            // The same numbers, in rows that lie across.
            let across = turned(&whole, 1, 2);
            for bits in [1, 2, 4, 8] {
                if group < count && !group.is_multiple_of(32 / usize::from(bits)) {
                    continue;
                }
                // Scales and minima of f32 are held in every type.
                let of_all = |held: &DType| dtype == DType::F32 || *held == dtype;
                for held in backend.dtypes().into_iter().filter(of_all) {
                    let name = &backend.name;
                    let what = format!("{case:?}, {bits} bits, {dtype:?} in {held:?}, {name}");
                    for there in [&whole, &across] {
                        let input = QuantizeInput { x: there.clone(), group, bits, dtype: held };
                        let found = answer(backend, "quantize", |ops| ops.quantize(input));
                        check(&x, case, bits, found, held, &what);
                    }
                }
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    for backend in kernel_backends() {
        let x = Tensor::<3>::zeros([2, 3, 32], (&backend.device, DType::F32));
        let refused = |group, bits| {
            let input = QuantizeInput { x: x.clone(), group, bits, dtype: DType::F32 };
            quantize(input).unwrap_err()
        };
        let by = RefusedBy("quantize");
        assert_eq!(refused(5, 4), by.value("group", 5, "a divisor of 32"));
        assert_eq!(refused(4, 4), by.value("group", 4, "a multiple of 8, or all 32 numbers"));
        assert_eq!(refused(32, 3), by.value("bits", 3, "1, 2, 4 or 8"));
        let none = x.narrow(0, 0, 1).narrow(2, 0, 1).slice([0..1, 0..3, 0..0]);
        let found = quantize_fp8(none, DType::F32).unwrap_err();
        assert_eq!(found, RefusedBy("quantize_fp8").value("numbers", 0, "1 or more"));
    }
}
