//! The largest number of each row, and whether all are finite, in rows that are cut into parts and
//! in rows that are not.

use briquette_ops::{all_finite, most_likely};
use briquette_tests::inputs::Noise;

use crate::common::{all_backends, each_dtype, floats, noise_matrix, numbers, whole_numbers};

#[test]
fn it_is_where_the_largest_number_is() {
    each_dtype(all_backends(), |backend, dtype| {
        for (rows, vocabulary) in [(1, 100), (3, 1024), (2, 7919), (33, 6144), (2, 49_152)] {
            let mut noise = Noise::new(vocabulary as u64);
            let logits = noise_matrix(&mut noise, [rows, vocabulary], dtype, &backend.device);
            let host = numbers(logits.clone());
            let found = most_likely(logits);
            assert_eq!(found.dims(), [rows, 1]);
            for (row, index) in host.chunks(vocabulary).zip(whole_numbers(found)) {
                let largest = row.iter().copied().fold(f32::MIN, f32::max);
                let first = row.iter().position(|&number| number == largest);
                assert_eq!(first, Some(index as usize), "{rows} of {vocabulary}, {dtype:?}");
            }
        }
    });
}

#[test]
fn rows_with_infinities_or_nan_are_known() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for backend in all_backends() {
        for vocabulary in [7, 1024, 6144] {
            let mut logits = vec![f32::MAX; (odd.len() + 1) * vocabulary];
            for (row, odd) in odd.into_iter().enumerate() {
                logits[row * vocabulary + 5] = odd;
            }
            let logits = floats(&logits, [odd.len() + 1, vocabulary], &backend.device);
            let found = whole_numbers(all_finite(logits).int());
            assert_eq!(found, [0, 0, 0, 1], "{vocabulary}, {}", backend.name);
        }
    }
}
