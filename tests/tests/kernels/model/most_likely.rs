//! The largest number of each row, in rows that are cut into parts and in rows that are not.

use briquette::ops::most_likely;
use briquette_tests::inputs::Noise;

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
                    assert_eq!(row[index as usize], largest, "{rows} of {vocabulary}, {dtype:?}");
                }
            }
        }
    }
}
