//! Odd sizes, empty heads, sizes that cross a block.

use briquette::ops::{RaggedInput, best};
use briquette_tests::{
    backends::{backends, host},
    inputs::{Noise, round},
    reference::attention::{weighted_mean, weights},
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Entries of each batch row and kv head.
    lengths: Vec<usize>,
    tail: usize,
    capacity: usize,
}

fn cases() -> Vec<Case> {
    let case = |(batch, query_heads, kv_heads), head_dim, lengths: &[usize], tail, capacity| Case {
        batch,
        query_heads,
        kv_heads,
        head_dim,
        lengths: lengths.to_vec(),
        tail,
        capacity,
    };
    vec![
        case((1, 1, 1), 1, &[1], 0, 1),
        case((1, 2, 2), 16, &[5, 3], 1, 4),
        case((2, 4, 2), 64, &[64, 0, 1, 63], 1, 1),
        case((1, 8, 2), 128, &[65, 129], 3, 70),
        case((1, 4, 1), 100, &[200], 64, 64),
        case((2, 3, 3), 7, &[0, 0, 0, 2, 9, 0], 66, 67),
    ]
}

impl Case {
    /// The kernel against every key and value in f64.
    fn check(&self, dtype: DType, device: &Device) {
        let Self { batch, query_heads, kv_heads, head_dim, tail, capacity, .. } = *self;
        let host = host();
        let mut noise = Noise::new(head_dim as u64);
        let mut random = |shape| noise.tensor(shape, &host).cast(dtype);
        let total: usize = self.lengths.iter().sum();
        let queries = random([batch, query_heads, 1, head_dim]);
        let [keys, values] = [(); 2].map(|()| random([1, 1, total, head_dim]));
        let [tail_keys, tail_values] =
            [(); 2].map(|()| random([batch, kv_heads, capacity, head_dim]));

        let numbers = |x: &Tensor<4>| -> Vec<Vec<f64>> {
            let x = x.clone().cast(DType::F32).try_into_vec_as::<f32>().unwrap();
            x.chunks(head_dim).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
        };
        let scale = 0.3;
        let group = query_heads / kv_heads;
        let mut expected = Vec::new();
        let mut expected_weights = vec![0.0; total * group];
        let mut expected_tail = Vec::new();
        for (head, query) in numbers(&queries).iter().enumerate() {
            let kv_head = head * kv_heads / query_heads;
            let start: usize = self.lengths[..kv_head].iter().sum();
            let seen = |body: &Tensor<4>, tail_rows: &Tensor<4>| {
                let mut rows = numbers(body)[start..start + self.lengths[kv_head]].to_vec();
                rows.extend_from_slice(&numbers(tail_rows)[kv_head * capacity..][..tail]);
                rows
            };
            let weights = weights(query, &seen(&keys, &tail_keys), scale);
            let (of_list, of_tail) = weights.split_at(self.lengths[kv_head]);
            for (entry, weight) in of_list.iter().enumerate() {
                expected_weights[(start + entry) * group + head % group] = *weight;
            }
            expected_tail.extend_from_slice(of_tail);
            expected.extend(weighted_mean(&weights, &seen(&values, &tail_values)));
        }

        let to = |x: &Tensor<4>| x.clone().to_device(device);
        // Keys lie as they come; values are a part of a wider tensor, and queries the transpose of another.
        let list = |x: &Tensor<4>| to(x).reshape([total, head_dim]);
        let wide = Tensor::cat(vec![list(&values), list(&keys)], 1);
        let turned = to(&queries).swap_dims(1, 3).add_scalar(0.0).swap_dims(1, 3);
        let mut offsets = vec![0_i64];
        offsets.extend(self.lengths.iter().scan(0, |end, &length| {
            *end += length as i64;
            Some(*end)
        }));
        let offsets = TensorData::new(offsets, [self.lengths.len() + 1]);
        let input = RaggedInput {
            queries: turned,
            keys: list(&keys),
            values: wide.narrow(1, 0, head_dim),
            offsets: Tensor::<1, Int>::from_data(offsets, device),
            tail_keys: to(&tail_keys),
            tail_values: to(&tail_values),
            tail,
            scale,
            weights: true,
        };
        let without = best().ragged_attention(&RaggedInput { weights: false, ..input.clone() });
        let Some(found) = best().ragged_attention(&input) else {
            panic!("this device has kernels");
        };
        let found_weights = found.weights;
        assert!(found_weights.is_some());
        let output = found.output;
        let without = without.unwrap();
        assert!(without.weights.is_none());
        assert_eq!(
            output.clone().into_data(),
            without.output.into_data(),
            "weights change nothing"
        );
        assert_eq!(output.dims(), [batch, query_heads, 1, head_dim]);
        assert_eq!(output.dtype(), dtype);
        let found = output.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
        if let Some((of_list, of_tail)) = found_weights {
            let of_list = of_list.try_into_vec_as::<f32>().unwrap();
            let of_tail = of_tail.try_into_vec_as::<f32>().unwrap();
            let close = |found: &[f32], expected: &[f64]| {
                assert!(found.len() >= expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    let off = (f64::from(*found) - expected).abs();
                    assert!(off < 1e-4, "weight {found}, expected {expected}, {:?}", self.lengths);
                }
            };
            close(&of_list, &expected_weights);
            close(&of_tail, &expected_tail);
        }
        for (found, expected) in found.into_iter().zip(expected) {
            let off = (f64::from(found) - round(expected, dtype)).abs();
            assert!(
                off <= tolerance(dtype) * (1.0 + expected.abs()),
                "{found}, expected {expected}, {dtype:?}, {:?} entries and {tail}",
                self.lengths
            );
        }
    }
}

#[test]
fn ragged_attention() {
    for backend in backends().into_iter().filter(|backend| backend.name != "flex") {
        for dtype in backend.dtypes() {
            // Heads without any entry attend to nothing, which no caller asks for.
            for case in cases() {
                println!("{}, {dtype:?}, {:?}", backend.name, case.lengths);
                case.check(dtype, &backend.device);
            }
        }
    }
}

/// Where there are no kernels, the operations say so, and stores lay entries out instead.
#[test]
fn flex_has_no_kernels() {
    let device = host();
    let rows = || Tensor::zeros([1, 8], &device);
    let tail = || Tensor::zeros([1, 1, 1, 8], &device);
    let input = RaggedInput {
        queries: tail(),
        keys: rows(),
        values: rows(),
        offsets: Tensor::from_ints([0, 1], &device),
        tail_keys: tail(),
        tail_values: tail(),
        tail: 0,
        scale: 1.0,
        weights: false,
    };
    assert!(best().ragged_attention(&input).is_none());
}
