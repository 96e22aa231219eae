//! Calls that fall back and calls that do not: a device without kernels and a call too large for
//! one do, and are counted; a caller's mistake is an error.

use briquette::ops::{
    Fallback, MergeInput, NearestInput, OpError, Ops, Reference, SelectInput, Visibility,
};
use briquette_kernels::Kernels;
use briquette_ops::{
    AccumulateInput, AttentionInput, AttentionOps, ClusterOps, DecodeInput, DenseKv, KvLayout,
    MergeOps, RowWeightsInput, Scoring, SelectOps,
};
use briquette_tests::inputs::Noise;
use burn::tensor::{DType, Device, Int, Tensor};

use crate::common::{RefusedBy, close, kernel_backends, numbers};

#[test]
fn mistakes_are_errors_through_the_traits() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let zeros = |dims: [usize; 4]| Tensor::<4>::zeros(dims, (device, DType::F32));
        let kernels = Kernels::default();

        let pairs = vec![(zeros([1, 2, 3, 4]), zeros([1, 2, 5, 6]))];
        let error = kernels.nearest(NearestInput { pairs, padding: vec![0; 2] }).unwrap_err();
        assert_eq!(error, RefusedBy("nearest").shape("to", &[1, 2, 5, 6], &[1, 2, 5, 4]));

        let sums = AccumulateInput {
            x: zeros([1, 2, 5, 4]),
            weights: Tensor::zeros([1, 2, 6], (device, DType::F32)),
            slot: Tensor::zeros([1, 2, 5], device),
            span: 1,
            slots: 3,
        };
        let error = kernels.accumulate(sums).unwrap_err();
        assert_eq!(error, RefusedBy("accumulate").shape("weights", &[1, 2, 6], &[1, 2, 5]));

        let prompt = |count, channels| AttentionInput {
            queries: zeros([1, 2, count, 4]),
            keys: zeros([1, 2, count, channels]),
            values: zeros([1, 2, count, channels]),
            visibility: Visibility::Causal,
            scoring: Scoring::plain(1.0),
            column_sums: true,
            column_squares: false,
        };
        let error = kernels.attention(prompt(40, 5)).unwrap_err();
        assert_eq!(error, RefusedBy("attention").shape("keys", &[1, 2, 40, 5], &[1, 2, 40, 4]));
        let by = RefusedBy("decode_attention");
        let error = kernels.attention(prompt(1, 5)).unwrap_err();
        assert_eq!(error, by.shape("keys", &[1, 2, 1, 5], &[1, 2, 1, 4]));

        let kv = KvLayout::Dense(DenseKv {
            keys: zeros([1, 2, 8, 4]),
            values: zeros([1, 2, 8, 4]),
            entries: 9,
            counts: None,
            visibility: Visibility::Causal,
        });
        let (queries, scoring) = (zeros([1, 2, 1, 4]), Scoring::plain(1.0));
        let step = DecodeInput { queries, kv, scoring, weights: false };
        let expected = by.value("entries", 9, "at most 8, the capacity");
        assert_eq!(kernels.decode(&step).unwrap_err(), expected);

        let scores = Tensor::<3>::zeros([1, 2, 8], (device, DType::F32));
        let (lengths, keep, recent) = (&[8, 9], &[4, 4], &[0, 0]);
        let select = SelectInput { scores: &scores, lengths, keep, sinks: 0, recent, check: false };
        let expected = RefusedBy("select").value("length", 9, "at most 8");
        assert_eq!(kernels.select(select.clone()).unwrap_err(), expected);
        assert_eq!(kernels.split(select).unwrap_err(), expected);

        let error = kernels.sort_by_cluster(Tensor::zeros([1, 2, 3], device), 0).unwrap_err();
        assert_eq!(error, RefusedBy("sort_by_cluster").value("number", 0, "1 or more"));

        assert_eq!(kernels.fallbacks(), Vec::new(), "{}", backend.name);
    }
}

/// More columns than every row can look at.
fn long_table(device: &Device) -> (RowWeightsInput, Vec<f64>) {
    const COLUMNS: usize = (1 << 13) + 1;
    let height = 3;
    let place = Tensor::<1, Int>::arange(0..COLUMNS as i64, device).reshape([1, 1, COLUMNS]);
    let scores = place.clone().remainder_scalar(5).float().cast(DType::F32);
    let mut expected = vec![0.0; height];
    (0..COLUMNS).for_each(|place| expected[place % height] += ((place % 5) as f64).max(0.5));
    let input = RowWeightsInput {
        rows: place.clone().remainder_scalar(height as i64),
        positions: place,
        scores,
        height,
        bounds: (0.5, 10.0),
    };
    (input, expected)
}

#[test]
fn a_call_too_large_for_the_device_falls_back_and_is_counted() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let kernels = Kernels::default();
        let weights = |reason: OpError, calls| Fallback { operation: "row_weights", calls, reason };
        let too_large = RefusedBy("row_weights").size("the number of columns", 8193, 8192);
        for calls in 1..=2 {
            let (input, expected) = long_table(device);
            let found = numbers(kernels.row_weights(input.clone()).unwrap());
            close(&found, &expected, DType::F32, 1e-5);
            let reference = numbers(Reference.row_weights(input).unwrap());
            close(&reference, &expected, DType::F32, 1e-5);
            assert_eq!(kernels.fallbacks(), [weights(too_large.clone(), calls)]);
        }

        // Another operation is counted apart.
        let mut noise = Noise::new(3);
        let mut random = |rows, channels| noise.tensor([1, 2, rows, channels], device);
        let weights_of = |rows| Tensor::<3>::ones([1, 2, rows], (device, DType::F32));
        let input = MergeInput {
            keys: random(2, 1025),
            values: random(2, 1025),
            own: weights_of(2),
            other_keys: random(3, 1025),
            other_values: random(3, 1025),
            weights: weights_of(3),
            slot: Tensor::zeros([1, 2, 3], device),
            directions: false,
        };
        let (keys, values) = kernels.merge(input.clone()).unwrap();
        let expected = Reference.merge(input).unwrap();
        assert_eq!(keys.into_data(), expected.0.into_data());
        assert_eq!(values.into_data(), expected.1.into_data());
        let reason = RefusedBy("merge").size("channels", 1025, 1024);
        let merge = Fallback { operation: "merge", calls: 1, reason };
        assert_eq!(kernels.fallbacks(), [merge, weights(too_large, 2)]);
        // A copy counts with the one it was made of.
        assert_eq!(kernels.clone().fallbacks(), kernels.fallbacks());
    }
}
