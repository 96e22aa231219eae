//! Decode attention over buffers with room for more, with padding and without, and over lists of
//! which heads hold different numbers, empty ones among them: sizes that cross a chunk, a cube's
//! share and a block of weights.

use briquette::ops::{OpError, Visibility};
use briquette_kernels::{decode, supports};
use briquette_ops::{AttentionOps, DecodeInput, DecodeOutput, DenseKv, KvLayout, RaggedKv, Tail};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::{Kind, attention::weighted_mean},
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor};

use super::capped_with_sinks;
use crate::{
    attention::{by_position, scoring},
    common::{
        RefusedBy, all_backends, answer, close, each_case, extend_behind, integers,
        kernel_backends, numbers, offsets, poison, poison_as, rows, turned,
    },
};

const SCALE: f64 = 0.3;

#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    new: usize,
    /// Entries of each batch row and kv head in a list, if there is one.
    list: Option<Vec<usize>>,
    /// Slots of each head's list that are free: every third, up to so many.
    free: usize,
    entries: usize,
    capacity: usize,
    /// Padding of each row of the batch, if positions say who sees what.
    padding: Option<Vec<usize>>,
    kind: Kind,
}

fn cases() -> Vec<Case> {
    let case = |(batch, query_heads, kv_heads), head_dim, new, entries, capacity| Case {
        batch,
        query_heads,
        kv_heads,
        head_dim,
        new,
        list: None,
        free: 0,
        entries,
        capacity,
        padding: None,
        kind: Kind::default(),
    };
    let list = |case: Case, list: &[usize]| Case { list: Some(list.to_vec()), ..case };
    let free = |case: Case, free: usize| Case { free, ..case };
    let padded = |case: Case, padding: &[usize]| Case { padding: Some(padding.to_vec()), ..case };
    let of_kind = |case: Case| Case { kind: capped_with_sinks(case.query_heads), ..case };
    let sloped = |case: Case| {
        let slopes = (1..=case.query_heads).map(|head| 0.5 / head as f64).collect();
        let kind = Kind { slopes, window: Some(70), ..capped_with_sinks(case.query_heads) };
        Case { kind, ..case }
    };
    let chunked = |case: Case| {
        let slopes = (1..=case.query_heads).map(|head| 0.5 / head as f64).collect();
        Case { kind: Kind { slopes, chunk: Some(70), ..Kind::default() }, ..case }
    };
    vec![
        case((1, 1, 1), 1, 1, 1, 1),
        case((2, 4, 2), 64, 1, 127, 130),
        case((1, 8, 2), 128, 1, 1100, 1100),
        case((1, 4, 2), 64, 3, 129, 256),
        case((1, 10, 1), 20, 1, 300, 301),
        padded(case((2, 4, 2), 64, 1, 130, 140), &[0, 129]),
        padded(case((2, 2, 1), 64, 3, 40, 41), &[39, 38]),
        list(case((1, 2, 2), 16, 1, 1, 4), &[5, 3]),
        list(case((2, 4, 2), 64, 1, 1, 1), &[64, 0, 1, 63]),
        list(case((1, 8, 2), 128, 1, 3, 70), &[65, 1129]),
        list(case((1, 4, 1), 100, 1, 64, 64), &[200]),
        list(case((1, 4, 2), 64, 1, 0, 1), &[3, 128]),
        list(case((2, 3, 3), 7, 1, 66, 67), &[0, 0, 0, 2, 9, 0]),
        free(list(case((2, 4, 2), 64, 1, 1, 1), &[64, 0, 1, 63]), 9),
        free(list(case((1, 8, 2), 128, 1, 1, 70), &[65, 1129]), 400),
        free(list(case((1, 4, 1), 100, 1, 2, 64), &[200]), 60),
        sloped(case((1, 8, 2), 128, 1, 1100, 1100)),
        sloped(case((1, 4, 2), 64, 3, 129, 256)),
        sloped(padded(case((2, 4, 2), 64, 1, 130, 140), &[0, 129])),
        chunked(case((1, 8, 2), 128, 1, 1100, 1100)),
        chunked(case((1, 4, 2), 64, 3, 142, 256)),
        chunked(padded(case((2, 4, 2), 64, 1, 130, 140), &[0, 129])),
        of_kind(list(case((2, 4, 2), 64, 1, 0, 1), &[64, 0, 1, 63])),
        of_kind(list(case((1, 8, 2), 128, 1, 3, 70), &[65, 1129])),
        of_kind(free(list(case((1, 4, 1), 100, 1, 2, 64), &[200]), 60)),
    ]
}

/// Results in f64.
struct Expected {
    output: Vec<f64>,
    weights: Vec<f64>,
}

/// Queries, the list's keys and values, and those of the buffers.
struct Tensors {
    queries: Tensor<4>,
    list: [Tensor<4>; 2],
    buffers: [Tensor<4>; 2],
}

impl Case {
    /// Columns of the list among the weights: more than its longest head has.
    fn width(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.iter().max().unwrap() + 2)
    }

    /// Whether a slot of a list is free.
    fn is_free(&self, slot: usize) -> bool {
        slot.is_multiple_of(3) && slot / 3 < self.free
    }

    fn rows_of_list(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.iter().sum::<usize>())
    }

    fn tensors(&self, dtype: DType) -> Tensors {
        let Self { batch, query_heads, kv_heads, head_dim, new, capacity, .. } = *self;
        let host = host();
        let mut noise = Noise::new((head_dim + capacity) as u64);
        let mut random = |shape| noise.tensor(shape, &host).cast(dtype);
        let rows = self.rows_of_list().max(1);
        Tensors {
            queries: random([batch, query_heads, new, head_dim]),
            list: [(); 2].map(|()| random([1, 1, rows, head_dim])),
            buffers: [(); 2].map(|()| random([batch, kv_heads, capacity, head_dim])),
        }
    }

    fn expected(&self, tensors: &Tensors) -> Expected {
        let Self { query_heads, kv_heads, head_dim, new, entries, capacity, .. } = *self;
        let group = query_heads / kv_heads;
        let queries = rows(&tensors.queries);
        let [list_keys, list_values] = tensors.list.each_ref().map(rows);
        let [keys, values] = tensors.buffers.each_ref().map(rows);
        let mut expected = Expected {
            output: Vec::new(),
            weights: vec![0.0; queries.len() * (self.width() + entries)],
        };
        for (line, query) in queries.iter().enumerate() {
            let (head, row) = (line / new, line % new);
            let (kv_head, batch) = (head / group, head / query_heads);
            let listed = self.list.as_ref().map_or(0, |list| list[kv_head]);
            let start: usize = self.list.iter().flat_map(|list| &list[..kv_head]).sum();
            let padding = self.padding.as_ref().map_or(0, |padding| padding[batch]);
            let seen = padding..(entries + row + 1 - new).min(entries);
            if listed == 0 && (seen.is_empty() || padding > entries - new + row) {
                expected.output.extend(std::iter::repeat_n(0.0, head_dim));
                continue;
            }
            let held: Vec<usize> = (0..listed).filter(|&slot| !self.is_free(slot)).collect();
            let all = |list: &[Vec<f64>], buffer: &[Vec<f64>]| {
                let mut rows: Vec<_> = held.iter().map(|slot| list[start + slot].clone()).collect();
                rows.extend_from_slice(&buffer[kv_head * capacity..][seen.clone()]);
                rows
            };
            let keys = all(&list_keys, &keys);
            let mut positions = vec![0; held.len()];
            positions.extend(seen.clone().map(|column| self.position(column)));
            let asked = (&query[..], self.position((entries + row).saturating_sub(new)));
            let seen_keys = (&keys[..], &positions[..]);
            let weights = self.kind.weights(head % query_heads, asked, seen_keys, SCALE);
            let (of_list, of_buffers) = weights.split_at(held.len());
            let first = line * (self.width() + entries);
            let padding = self.width() - listed;
            let of_list = held.iter().map(|slot| padding + slot).zip(of_list);
            let of_buffers = seen.clone().map(|entry| self.width() + entry).zip(of_buffers);
            for (column, weight) in of_list.chain(of_buffers) {
                expected.weights[first + column] = *weight;
            }
            expected.output.extend(weighted_mean(&weights, &all(&list_values, &values)));
        }
        expected
    }

    /// Position of a column. What is left after an eviction has gaps.
    fn position(&self, column: usize) -> usize {
        if self.padding.is_some() { 3 * column + 1 } else { column }
    }

    /// With positions of so many entries, where there is padding.
    fn visibility(&self, columns: usize, device: &Device) -> Visibility {
        let Self { batch, kv_heads, new, entries, .. } = *self;
        let Some(padding) = &self.padding else { return Visibility::Causal };
        // One column too many is what a buffer has.
        let position = |row: usize, column: usize| match column < padding[row] {
            true => -1,
            false => self.position(column) as i64,
        };
        by_position([batch, kv_heads], entries - new..entries, columns, position, device)
    }

    /// Positions of the list's columns, which lie in no order.
    fn positions_of_list(&self, list: &[usize], device: &Device) -> Tensor<3, Int> {
        let width = self.width();
        let mut all: Vec<i64> = Vec::new();
        for &listed in list {
            let position = |slot| if self.is_free(slot) { -1 } else { (7 * slot % 5) as i64 };
            extend_behind(&mut all, width - listed, -1, (0..listed).map(position));
        }
        integers(&all, [self.batch, self.kv_heads, width], device)
    }

    fn input(&self, tensors: &Tensors, device: &Device) -> DecodeInput {
        let head_dim = self.head_dim;
        // Keys lie as they come; values of the list are a part of a wider tensor, and queries the
        // transpose of another.
        let to = |x: &Tensor<4>| x.clone().to_device(device);
        let rows = self.rows_of_list().max(1);
        let flat = |x: &Tensor<4>| to(x).reshape([rows, head_dim]);
        let wide = Tensor::cat(vec![flat(&tensors.list[1]), flat(&tensors.list[0])], 1);
        let (keys, values) = (to(&tensors.buffers[0]), to(&tensors.buffers[1]));
        let entries = self.entries;
        let kv = match &self.list {
            None => KvLayout::Dense(DenseKv {
                keys,
                values,
                entries,
                counts: None,
                visibility: self.visibility(entries + 1, device),
            }),
            Some(list) => KvLayout::Ragged(RaggedKv {
                keys: flat(&tensors.list[0]),
                values: wide.narrow(1, 0, head_dim),
                offsets: integers(&offsets(list), [list.len() + 1], device),
                width: self.width(),
                positions: (self.free > 0).then(|| self.positions_of_list(list, device)),
                tail: Tail { keys, values, entries },
                tail_counts: None,
            }),
        };
        DecodeInput {
            queries: turned(&to(&tensors.queries), 1, 3),
            kv,
            scoring: scoring(&self.kind, SCALE, device),
            weights: true,
        }
    }

    fn check(&self, dtype: DType, backend: &Backend) {
        let device = &backend.device;
        let Self { batch, query_heads, head_dim, new, entries, .. } = *self;
        let tensors = self.tensors(dtype);
        let expected = self.expected(&tensors);
        let input = self.input(&tensors, device);
        poison_as(dtype, device, &[expected.output.len()]);
        let columns = self.width() + entries;
        poison(device, &[batch * query_heads * new * columns]);
        let decode = |input: &DecodeInput| {
            answer(backend, "decode_attention", |kernels| kernels.decode(input))
        };
        let Some(DecodeOutput { output, weights }) = decode(&input) else {
            // Stores pad what they hold instead, and ask for attention over it.
            assert!(!supports(device), "no kernel took {self:?}");
            return;
        };
        assert!(supports(device), "no kernel is there to take {self:?}");
        assert_eq!(output.dims(), [batch, query_heads, new, head_dim]);
        assert_eq!(output.dtype(), dtype);
        let without = decode(&DecodeInput { weights: false, ..input.clone() }).unwrap();
        assert!(without.weights.is_none());
        let same = output.to_data() == without.output.to_data();
        assert!(same, "weights change nothing, twice the same");

        close(&numbers(output), &expected.output, dtype, tolerance(dtype));
        self.check_counted(dtype, &input, &expected, backend);
        let weights = weights.unwrap();
        assert_eq!(weights.dims(), [batch, query_heads, new, columns]);
        close(&numbers(weights), &expected.weights, DType::F32, 1e-4);
    }

    /// The same where only the device knows how many entries there are, or follow a list.
    fn check_counted(
        &self,
        dtype: DType,
        input: &DecodeInput,
        expected: &Expected,
        backend: &Backend,
    ) {
        if self.free > 0 || self.new > 1 {
            return;
        }
        let counts = vec![self.entries; self.batch * self.kv_heads];
        let counts = integers(&counts, [counts.len()], &backend.device);
        let kv = match input.kv.clone() {
            KvLayout::Dense(kv) => {
                let visibility = self.visibility(self.capacity, &backend.device);
                let entries = self.capacity;
                KvLayout::Dense(DenseKv { entries, counts: Some(counts), visibility, ..kv })
            }
            KvLayout::Ragged(kv) => {
                let tail = Tail { entries: self.capacity, ..kv.tail.clone() };
                KvLayout::Ragged(RaggedKv { tail, tail_counts: Some(counts), ..kv })
            }
            kv => panic!("{kv:?}"),
        };
        let input = DecodeInput { kv, weights: false, ..input.clone() };
        let found = answer(backend, "decode_attention", |kernels| kernels.decode(&input)).unwrap();
        close(&numbers(found.output), &expected.output, dtype, tolerance(dtype));
        let error = decode(&DecodeInput { weights: true, ..input }).unwrap_err();
        assert!(error.to_string().contains("weights are wanted"), "{error}");
    }
}

#[test]
fn decode_of_cases() {
    each_case(all_backends(), &cases(), |backend, dtype, case| case.check(dtype, backend));
}

/// A call over buffers, and those buffers.
fn dense(case: &Case, device: &Device) -> (DecodeInput, DenseKv) {
    let input = case.input(&case.tensors(DType::F32), device);
    let KvLayout::Dense(kv) = input.kv.clone() else { panic!("{case:?} is ragged") };
    (input, kv)
}

#[test]
fn decode_calls_that_do_not_fit_are_refused() {
    let by = RefusedBy("decode_attention");
    let (on_host, _) = dense(&cases()[3], &host());
    assert_eq!(decode(&on_host).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let (input, kv) = dense(&cases()[3], &backend.device);
        let refuse = |kv: DenseKv| {
            decode(&DecodeInput { kv: KvLayout::Dense(kv), ..input.clone() }).unwrap_err()
        };
        let expected = by.value("entries", 257, "at most 256, the capacity");
        assert_eq!(refuse(DenseKv { entries: 257, ..kv.clone() }), expected);
        let expected = by.value("the number of queries", 3, "1 to 2, the entries");
        assert_eq!(refuse(DenseKv { entries: 2, ..kv.clone() }), expected);
        let values = kv.values.clone().narrow(3, 0, 32);
        let operation = "decode_attention";
        let expected = OpError::NoKernel { operation, what: "value_dim" };
        assert_eq!(refuse(DenseKv { values, ..kv.clone() }), expected);
        if backend.device.supports_dtype(DType::F16) {
            let values = kv.values.clone().cast(DType::F16);
            assert_eq!(refuse(DenseKv { values, ..kv }), by.half("values"));
        }
        // A ragged layout takes one query a head.
        let ragged = &cases()[8];
        let mut input = ragged.input(&ragged.tensors(DType::F32), &backend.device);
        input.queries = Tensor::cat(vec![input.queries.clone(), input.queries], 2);
        let expected = by.value("the number of queries", 2, "1 where heads are ragged");
        assert_eq!(decode(&input).unwrap_err(), expected);
        let mut input = ragged.input(&ragged.tensors(DType::F32), &backend.device);
        input.scoring.slopes = Some(Tensor::zeros([3], &backend.device));
        assert_eq!(decode(&input).unwrap_err(), by.shape("slopes", &[3], &[4]));
        input.scoring.slopes = Some(Tensor::zeros([4], &backend.device));
        let expected = OpError::NoKernel { operation: "decode_attention", what: "slopes" };
        assert_eq!(decode(&input).unwrap_err(), expected);
    }
}
