//! A token behind the entries of a layer: in a column that the host says and in one that the device
//! counts, up or down, with statistics of kv heads and of query heads and without.

use briquette::ops::{AttentionStatistics, OpError, Statistic};
use briquette_kernels::append;
use briquette_ops::{AppendColumn, AppendInput, EntryOps};
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, floats, integers, kernel_backends, numbers,
    whole_numbers,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    capacity: usize,
    head_dim: usize,
    /// Kinds of statistics, and heads of them per kv head.
    kinds: usize,
    group: usize,
    column: usize,
}

const CASES: [Case; 5] = [
    Case { batch: 1, heads: 1, capacity: 1, head_dim: 1, kinds: 0, group: 1, column: 0 },
    Case { batch: 2, heads: 3, capacity: 5, head_dim: 6, kinds: 1, group: 1, column: 2 },
    Case { batch: 3, heads: 2, capacity: 9, head_dim: 64, kinds: 2, group: 2, column: 8 },
    Case { batch: 1, heads: 4, capacity: 33, head_dim: 128, kinds: 3, group: 1, column: 17 },
    Case { batch: 2, heads: 2, capacity: 4, head_dim: 260, kinds: 3, group: 40, column: 0 },
];

const KINDS: [Statistic; 3] = [Statistic::Sums, Statistic::LocalPast, Statistic::LocalCurrent];

/// A layer and a token.
struct Layer {
    keys: Tensor<4>,
    values: Tensor<4>,
    positions: Tensor<3, Int>,
    statistics: AttentionStatistics,
    new_keys: Tensor<4>,
    new_values: Tensor<4>,
    new_positions: Tensor<3, Int>,
}

impl Case {
    fn draw(self, dtype: DType, device: &Device) -> Layer {
        let Self { batch, heads, capacity, head_dim, kinds, group, .. } = self;
        let mut noise = Noise::new(head_dim as u64);
        let mut rows = |columns: usize| {
            let rows = noise.tensor([batch, heads, columns, head_dim], &host());
            rows.cast(dtype).to_device(device)
        };
        let (keys, values) = (rows(capacity), rows(capacity));
        // As a model hands them over: heads of one tensor.
        let both = rows(2);
        let (new_keys, new_values) = (both.clone().narrow(2, 0, 1), both.narrow(2, 1, 1));
        let numbers = batch * heads * capacity;
        let of_kind = |kind: usize| {
            let numbers: Vec<f32> = (0..numbers * group).map(|at| (at + kind) as f32).collect();
            (KINDS[kind], floats(&numbers, [batch, heads * group, capacity], device))
        };
        let positions: Vec<usize> = (0..numbers).collect();
        let of_rows: Vec<usize> = (0..batch).map(|row| 1000 + row).collect();
        Layer {
            keys,
            values,
            positions: integers(&positions, [batch, heads, capacity], device),
            statistics: AttentionStatistics::new((0..kinds).map(of_kind)),
            new_keys,
            new_values,
            new_positions: integers(&of_rows, [batch, 1, 1], device).expand([batch, heads, 1]),
        }
    }
}

/// Keys, values, positions and statistics.
type Numbers = (Vec<f32>, Vec<f32>, Vec<i64>, Vec<f32>);

fn read(layer: &Layer) -> Numbers {
    (
        numbers(layer.keys.clone()),
        numbers(layer.values.clone()),
        whole_numbers(layer.positions.clone()),
        layer.statistics.stacked().cloned().map(numbers).unwrap_or_default(),
    )
}

impl Layer {
    /// Numbers that it holds with the token in a column of each head, computed on the host.
    fn with_token(&self, column: impl Fn(usize) -> usize) -> Numbers {
        let [_, heads, capacity, head_dim] = self.keys.dims();
        let (mut keys, mut values, mut positions, mut statistics) = read(self);
        let new = (numbers(self.new_keys.clone()), numbers(self.new_values.clone()));
        for list in 0..positions.len() / capacity {
            let column = column(list);
            let (from, to) = (list * head_dim, (list * capacity + column) * head_dim);
            keys[to..to + head_dim].copy_from_slice(&new.0[from..from + head_dim]);
            values[to..to + head_dim].copy_from_slice(&new.1[from..from + head_dim]);
            positions[list * capacity + column] = 1000 + (list / heads) as i64;
        }
        let lists = positions.len() / capacity;
        let group = self.statistics.stacked().map_or(1, |statistics| statistics.dims()[1] / heads);
        for (row, numbers) in statistics.chunks_mut(capacity).enumerate() {
            numbers[column(row / group % lists)] = 0.0;
        }
        (keys, values, positions, statistics)
    }

    fn input<'a>(&'a mut self, column: AppendColumn<'a>) -> AppendInput<'a> {
        AppendInput {
            keys: &mut self.keys,
            values: &mut self.values,
            positions: &mut self.positions,
            statistics: &mut self.statistics,
            new_keys: self.new_keys.clone(),
            new_values: self.new_values.clone(),
            new_positions: self.new_positions.clone(),
            column,
        }
    }
}

fn each(run: impl Fn(&Backend, Case, DType)) {
    each_dtype(all_backends(), |backend, dtype| {
        CASES.into_iter().for_each(|case| run(backend, case, dtype));
    });
}

#[test]
fn a_token_is_written_where_the_host_says() {
    each(|backend, case, dtype| {
        let mut layer = case.draw(dtype, &backend.device);
        let expected = layer.with_token(|_| case.column);
        // Held by another too: that one does not change.
        let shared = layer.keys.clone();
        let before = numbers(shared.clone());
        let column = AppendColumn::At(case.column);
        answer(backend, "append", |ops| ops.append(layer.input(column)));
        assert_eq!(read(&layer), expected, "{case:?} {dtype:?} on {}", backend.name);
        assert_eq!(numbers(shared), before);
    });
}

#[test]
fn tokens_are_written_where_the_device_counts_to() {
    each(|backend, case, dtype| {
        let Case { batch, heads, capacity, column, .. } = case;
        let mut layer = case.draw(dtype, &backend.device);
        let mut counted = integers(&vec![column; batch * heads], [batch * heads], &backend.device);
        for column in column..capacity.min(column + 3) {
            let expected = layer.with_token(|_| column);
            let to = AppendColumn::Counted(&mut counted);
            answer(backend, "append", |ops| ops.append(layer.input(to)));
            assert_eq!(read(&layer), expected, "{case:?} {dtype:?} on {}", backend.name);
            let next = whole_numbers(counted.clone());
            assert_eq!(next, vec![column as i64 + 1; batch * heads]);
        }
    });
}

/// Each head at a place of its own.
#[test]
fn tokens_are_written_where_the_device_counts_down_to() {
    each(|backend, case, dtype| {
        let Case { batch, heads, capacity, .. } = case;
        let mut layer = case.draw(dtype, &backend.device);
        let first = |list: usize| capacity - list % capacity.min(3);
        let begin: Vec<usize> = (0..batch * heads).map(first).collect();
        let mut counted = integers(&begin, [batch * heads], &backend.device);
        for step in 1..=capacity.saturating_sub(2).clamp(1, 3) {
            let expected = layer.with_token(|list| first(list) - step);
            let to = AppendColumn::CountedDown(&mut counted);
            answer(backend, "append", |ops| ops.append(layer.input(to)));
            assert_eq!(read(&layer), expected, "{case:?} {dtype:?} on {}", backend.name);
            let next = whole_numbers(counted.clone());
            let counted_to = (0..batch * heads).map(|list| (first(list) - step) as i64);
            assert_eq!(next, counted_to.collect::<Vec<_>>());
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    for backend in kernel_backends() {
        let device = &backend.device;
        let case = CASES[1];
        let refused = |change: &dyn Fn(&mut Layer), column: usize| -> OpError {
            let mut layer = case.draw(DType::F32, device);
            let before = read(&layer);
            change(&mut layer);
            let error = append(layer.input(AppendColumn::At(column))).unwrap_err();
            if layer.values.dims() == layer.keys.dims() {
                assert_eq!(read(&layer), before);
            }
            error
        };
        let by = RefusedBy("append");
        let expected = by.value("column", 5, "below 5, the capacity");
        assert_eq!(refused(&|_| (), 5), expected);
        let error = refused(&|layer| layer.new_keys = layer.new_keys.clone().narrow(1, 0, 2), 0);
        assert_eq!(error, by.shape("new_keys", &[2, 2, 1, 6], &[2, 3, 1, 6]));
        let error = refused(&|layer| layer.values = layer.values.clone().narrow(2, 0, 4), 0);
        assert_eq!(error, by.shape("values", &[2, 3, 4, 6], &[2, 3, 5, 6]));
        let mut layer = case.draw(DType::F32, device);
        let mut counted = integers(&[0, 0], [2], device);
        let error = append(layer.input(AppendColumn::Counted(&mut counted))).unwrap_err();
        assert_eq!(error, by.shape("counted", &[2], &[6]));
        layer.new_values = Tensor::zeros([2, 3, 1, 6], (device, DType::F16));
        let error = append(layer.input(AppendColumn::At(0))).unwrap_err();
        assert!(matches!(error, OpError::DataType { tensor: "new_values", .. }), "{error}");
    }
}
