//! The largest number of each row, and whether all are finite, in rows that are cut into parts and
//! in rows that are not.

use briquette::ops::{all_finite, most_likely};
use briquette_tests::inputs::Noise;
use burn::tensor::{DType, Tensor, TensorData};

use crate::common::{all_backends, numbers};

#[test]
fn it_is_where_the_largest_number_is() {
    for backend in all_backends() {
        for dtype in backend.dtypes() {
            for (rows, vocabulary) in [(1, 100), (3, 1024), (2, 7919), (33, 6144), (2, 49_152)] {
                let mut noise = Noise::new(vocabulary as u64);
                let logits = noise.tensor([1, 1, rows, vocabulary], &backend.device).cast(dtype);
                let logits = logits.reshape([rows, vocabulary]);
                let host = numbers(logits.clone());
                let found = most_likely(logits);
                assert_eq!(found.dims(), [rows, 1]);
                let found = found.try_into_vec_as::<i64>().unwrap();
                for (row, index) in host.chunks(vocabulary).zip(found) {
                    let largest = row.iter().copied().fold(f32::MIN, f32::max);
                    let first = row.iter().position(|&number| number == largest);
                    assert_eq!(first, Some(index as usize), "{rows} of {vocabulary}, {dtype:?}");
                }
            }
        }
    }
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
            let data = TensorData::new(logits, [odd.len() + 1, vocabulary]);
            let logits = Tensor::<2>::from_data(data, (&backend.device, DType::F32));
            let found = all_finite(logits).int().try_into_vec_as::<i64>().unwrap();
            assert_eq!(found, [0, 0, 0, 1], "{vocabulary}, {}", backend.name);
        }
    }
}
