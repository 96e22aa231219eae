//! Attention of a prompt under the patterns of heads: against f64 with the masks of the papers, by
//! position, padded, evicted.

use briquette::ops::{HeadPattern, Reference, Visibility};
use briquette_kernels::{Kernels, sparse_attention, supports};
use briquette_ops::{AttentionInput, AttentionOps, Scoring, SparseAttentionInput};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::{
        attention::weighted_mean,
        sparse::{mask, masked_weights},
    },
    session::tolerance,
};
use burn::tensor::{DType, Device, Tensor};

use crate::{
    attention::by_position,
    common::{RefusedBy, all_backends, answer, close, each_case, kernel_backends, numbers, rows},
};

const SCALE: f64 = 0.2;

const PATTERNS: [[HeadPattern; 4]; 2] = [
    [
        HeadPattern::AShape { first: 20, recent: 40 },
        HeadPattern::VerticalSlash { vertical: 40, slash: 110 },
        HeadPattern::Blocks { blocks: 2 },
        HeadPattern::Antidiagonal { stride: 8, threshold: 0.6 },
    ],
    [
        HeadPattern::Dense,
        HeadPattern::Antidiagonal { stride: 4, threshold: 0.3 },
        HeadPattern::Blocks { blocks: 1 },
        HeadPattern::AShape { first: 0, recent: 1 },
    ],
];

fn inputs(
    seed: u64,
    [batch, new, entries, head_dim]: [usize; 4],
    dtype: DType,
    device: &Device,
) -> AttentionInput {
    let mut noise = Noise::new(seed);
    let mut random = |shape| noise.tensor(shape, &host()).cast(dtype).to_device(device);
    AttentionInput {
        queries: random([batch, 4, new, head_dim]),
        keys: random([batch, 2, entries, head_dim]),
        values: random([batch, 2, entries, head_dim]),
        visibility: Visibility::Causal,
        scoring: Scoring::plain(SCALE),
        column_sums: false,
        column_squares: false,
    }
}

fn each_is_dense_attention_under_its_mask(
    tokens: usize,
    head_dim: usize,
    dtype: DType,
    backend: &Backend,
) {
    for patterns in PATTERNS {
        let attention = inputs(7, [1, tokens, tokens, head_dim], dtype, &backend.device);
        let heads = |x: &Tensor<4>| -> Vec<Vec<Vec<f64>>> {
            rows(x).chunks(tokens).map(<[_]>::to_vec).collect()
        };
        let [q, k, v] = [&attention.queries, &attention.keys, &attention.values].map(heads);
        let input = SparseAttentionInput { attention, patterns: patterns.to_vec() };
        let found =
            answer(backend, "sparse attention", |kernels| kernels.sparse_attention(input.clone()));
        assert_eq!(found.output.dtype(), dtype);
        if supports(&backend.device) {
            let again = sparse_attention(&input).unwrap().output;
            assert_eq!(again.to_data(), found.output.to_data(), "twice");
        }
        let mut expected = Vec::new();
        for (head, pattern) in patterns.into_iter().enumerate() {
            let (k, v) = (&k[head / 2], &v[head / 2]);
            let mask = mask(pattern, &q[head], k, SCALE);
            let weights = masked_weights(&mask, &q[head], k, SCALE);
            expected.extend(weights.iter().flat_map(|row| weighted_mean(row, v)));
        }
        close(&numbers(found.output), &expected, dtype, tolerance(dtype));
    }
}

#[test]
fn sparse_attention_of_prompts() {
    let cases = [(300, 64), (129, 128), (40, 10)];
    each_case(all_backends(), &cases, |backend, dtype, &(tokens, head_dim)| {
        each_is_dense_attention_under_its_mask(tokens, head_dim, dtype, backend);
    });
}

/// A row whose tokens are all there, and one with padding and gaps that evictions left.
fn visibility(new: usize, entries: usize, device: &Device) -> Visibility {
    let position = |row: usize, column: usize| match (row, column) {
        (0, _) => column as i64,
        (_, 0..30) => -1,
        (_, column) => column as i64 - 30 + (column as i64 / 9) * 2,
    };
    by_position([2, 2], entries - new..entries, entries, position, device)
}

#[test]
fn sparse_attention_by_position() {
    let (new, entries) = (170, 260);
    for backend in kernel_backends() {
        for patterns in PATTERNS {
            let on = |device: &Device| {
                let attention = inputs(9, [2, new, entries, 16], DType::F32, device);
                let visibility = visibility(new, entries, device);
                let attention = AttentionInput { visibility, ..attention };
                SparseAttentionInput { attention, patterns: patterns.to_vec() }
            };
            let expected = Reference.sparse_attention(on(&host())).unwrap().output;
            let found = sparse_attention(&on(&backend.device)).unwrap().output;
            let off = (found.to_device(&host()) - expected).abs().max().into_scalar::<f32>();
            assert!(off < 1e-5, "{off}, {}", backend.name);
        }
    }
}

#[test]
fn column_sums_are_of_tensor_operations() {
    for backend in kernel_backends() {
        let attention = inputs(3, [1, 50, 50, 16], DType::F32, &backend.device);
        let attention = AttentionInput { column_sums: true, ..attention };
        let input = SparseAttentionInput { attention, patterns: PATTERNS[0].to_vec() };
        let refused = sparse_attention(&input).unwrap_err();
        let expected = RefusedBy("sparse attention").value("the number of column sums", 1, "0");
        assert_eq!(refused, expected);
        let found = Kernels::default().sparse_attention(input).unwrap();
        let sums = found.column_sums.unwrap().sum_dim(2).try_into_vec_as::<f32>().unwrap();
        assert!(sums.iter().all(|sum| (sum - 50.0).abs() < 1e-3), "{sums:?}");
    }
}
