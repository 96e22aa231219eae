//! Attention of the host over pages and clusters as they lie: calls that do not fit are refused by
//! name, whatever their numbers.

use briquette::ops::{OpError, PackedNumbers, Reference};
use briquette_ops::{
    AttentionOps, ClusteredKv, DecodeInput, KvLayout, PackedVectors, QuantizedKv, Scoring, Tail,
};
use briquette_tests::backends::host;
use burn::tensor::{DType, Int, Tensor, TensorData};

const HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const PAGE: usize = 4;

fn zeros<const D: usize>(dims: [usize; D]) -> Tensor<D> {
    Tensor::zeros(dims, (&host(), DType::F32))
}

fn integers<const D: usize>(numbers: &[i64], dims: [usize; D]) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), dims), &host())
}

fn tail() -> Tail {
    let rows = zeros([1, HEADS, 3, HEAD_DIM]);
    Tail { keys: rows.clone(), values: rows, entries: 2 }
}

fn decode(kv: KvLayout) -> Result<(), OpError> {
    let queries = zeros([1, 2 * HEADS, 1, HEAD_DIM]);
    let input = DecodeInput { queries, kv, scoring: Scoring::plain(1.0), weights: true };
    Reference.decode(&input).map(|found| assert!(found.is_some(), "the host answers"))
}

/// The error of a layout that is changed so; without the change it is none.
fn refused<T>(new: fn() -> T, layout: fn(T) -> KvLayout, change: impl Fn(&mut T)) -> String {
    decode(layout(new())).unwrap();
    let mut kv = new();
    change(&mut kv);
    decode(layout(kv)).unwrap_err().to_string()
}

/// Three pages, two of them of the first head.
fn pages() -> QuantizedKv {
    let vectors = || PackedVectors {
        words: integers(&[0; 3 * PAGE * HEAD_DIM / 4], [3, PAGE * HEAD_DIM / 4]),
        scale: zeros([3, PAGE]),
    };
    QuantizedKv {
        numbers: PackedNumbers::Fp8 { keys: vectors(), values: vectors() },
        group: PAGE,
        pages: integers(&[0, 2, 1], [3]),
        offsets: integers(&[0, 2, 3], [3]),
        most_pages: 2,
        tail: tail(),
        tail_padding: integers(&[0, 1], [2]),
        columns: 2 * PAGE + 2,
    }
}

#[test]
fn pages_that_do_not_fit_are_refused() {
    let refused = |change: fn(&mut QuantizedKv)| refused(pages, KvLayout::Quantized, change);
    let of = |what: &str| format!("quantized_attention: {what}");
    let error = refused(|kv| kv.pages = integers(&[0, 3, 1], [3]));
    assert_eq!(error, of("pages is 3, expected at most 2"));
    let error = refused(|kv| kv.offsets = integers(&[0, 2, 1], [3]));
    assert_eq!(error, of("offsets is 1, expected at least the 2 before"));
    let error = refused(|kv| kv.offsets = integers(&[0, 2], [2]));
    assert_eq!(error, of("offsets is [2], expected [3]"));
    let error = refused(|kv| kv.tail_padding = integers(&[0, 3], [2]));
    assert_eq!(error, of("tail_padding is 3, expected at most 2"));
    let error = refused(|kv| kv.columns = 9);
    assert_eq!(error, of("columns is 9, expected at least 10"));
    let error = refused(|kv| kv.group = 5);
    assert_eq!(error, of("words is [3, 8], expected [3, 10]"));
    let error = refused(|kv| kv.tail.entries = 4);
    assert!(error.starts_with(&of("t")), "{error}");
}

/// Two clusters of the first head, one of the second, and a column of padding.
fn clusters() -> ClusteredKv {
    ClusteredKv {
        directions: zeros([3, HEAD_DIM]),
        values: zeros([3, HEAD_DIM]),
        tokens_by_cluster: integers(&[0, 2, 1, 0, 1, 2], [1, HEADS, 3]),
        cluster_of_token: integers(&[0, 1, 0, 0, 0, 0], [1, HEADS, 3]),
        norms: zeros([1, HEADS, 3]),
        padding_columns: integers(&[0, 1], [2]),
        offsets: integers(&[0, 2, 3], [3]),
        rotary: None,
        tail: tail(),
    }
}

#[test]
fn clusters_that_do_not_fit_are_refused() {
    let refused = |change: fn(&mut ClusteredKv)| refused(clusters, KvLayout::Clustered, change);
    let of = |what: &str| format!("clustered_attention: {what}");
    let error = refused(|kv| kv.tokens_by_cluster = integers(&[0, 2, 3, 0, 1, 2], [1, HEADS, 3]));
    assert_eq!(error, of("tokens_by_cluster is 3, expected at most 2"));
    let error = refused(|kv| kv.cluster_of_token = integers(&[0, 2, 0, 0, 0, 0], [1, HEADS, 3]));
    assert_eq!(error, of("cluster_of_token is 2, expected below 2"));
    let error = refused(|kv| kv.values = zeros([2, HEAD_DIM]));
    assert_eq!(error, of("values is [2, 8], expected [3, 8]"));
    let error = refused(|kv| kv.padding_columns = integers(&[0, -1], [2]));
    assert!(error.starts_with(&of("padding_columns is")), "{error}");
}
