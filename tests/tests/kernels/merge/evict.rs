//! Entries in any order, of which the weakest makes way for a new token: in rectangles and in
//! lists, with statistics of kv heads and of query heads, dropped, merged and spread.

use std::{cmp::Ordering, f64::consts::E};

use briquette::ops::{
    AttentionStatistics, EvictLimits, EvictMergeInput, EvictSpreadInput, OpError, Statistic,
};
use briquette_kernels::{evict, evict_merging, evict_spreading};
use briquette_ops::{EvictInput, MergeOps, SlotRows};
use briquette_tests::{backends::Backend, inputs::round};
use burn::tensor::{DType, Device, Int, Tensor};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, close, each_dtype, extend_behind, floats, integers,
    kernel_backends, numbers, offsets, whole_numbers,
};

/// One head on the host; the new token is the last of each list.
#[derive(Clone, Debug)]
struct Head {
    positions: Vec<i64>,
    scores: Vec<f32>,
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
    /// Numbers of each kind and head of statistics.
    counted: Vec<Vec<f32>>,
    /// Attention received, and a random number.
    attention: Vec<f32>,
    drawn: Vec<f32>,
    recent: usize,
    /// Whether the token takes a free slot if there is one.
    takes_free: bool,
}

/// Changes that an entry makes to others before it goes.
#[derive(Clone, Copy, Debug)]
enum Reduction<'a> {
    Drop,
    /// Thresholds of rows before, and the weight of the new mean.
    Merge(Option<&'a [f64]>, f64),
    /// Number of next tokens.
    Spread(usize),
}

/// A layer on the host.
#[derive(Clone, Debug)]
struct Layer {
    batch: usize,
    heads: usize,
    channels: usize,
    kinds: usize,
    group: usize,
    sinks: usize,
    is_ragged: bool,
    has_free_slots: bool,
    lists: Vec<Head>,
}

const KINDS: [Statistic; 2] = [Statistic::Sums, Statistic::Squares];

impl Layer {
    /// Heads hold the tokens of `counts` and a new one. Positions have gaps with `gaps`.
    fn new(
        [batch, heads, channels]: [usize; 3],
        [kinds, group]: [usize; 2],
        counts: &[usize],
        (sinks, recent): (usize, usize),
        gaps: bool,
        is_ragged: bool,
        dtype: DType,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64((channels + counts.iter().sum::<usize>()) as u64);
        let list = |list: usize| {
            let count = counts[list % counts.len()];
            let mut next = if gaps { 2 } else { 0 };
            let mut step = || {
                let position = next;
                next += if gaps { rng.random_range(1..4) } else { 1 };
                position
            };
            let mut positions: Vec<i64> = (0..count).map(|_| step()).collect();
            let newest = step();
            positions.shuffle(&mut rng);
            positions.push(newest);
            let mut row = || -> Vec<f64> {
                (0..channels).map(|_| round(rng.random_range(-2.0..2.0), dtype)).collect()
            };
            let keys = (0..=count).map(|_| row()).collect();
            let values = (0..=count).map(|_| row()).collect();
            let counted = (0..kinds * group)
                .map(|_| (0..=count).map(|_| rng.random_range(0.0..9.0)).collect())
                .collect();
            // Many are equal.
            let scores = (0..=count).map(|_| rng.random_range(-3..4) as f32).collect();
            let attention = (0..=count).map(|_| rng.random_range(0.0..2.0)).collect();
            let drawn = (0..=count).map(|_| rng.random_range(0.0..1.0)).collect();
            let (recent, takes_free) = (recent + list % 2, true);
            Head { positions, scores, keys, values, counted, attention, drawn, recent, takes_free }
        };
        let lists = (0..batch * heads).map(list).collect();
        let has_free_slots = false;
        Self { batch, heads, channels, kinds, group, sinks, is_ragged, lists, has_free_slots }
    }

    /// The layer with free slots in some heads, as many as each of these in turn, and numbers there
    /// that nobody is to look at.
    fn with_free_slots(mut self, free: &[usize]) -> Self {
        self.has_free_slots = true;
        let mut rng = ChaCha8Rng::seed_from_u64(free.iter().sum::<usize>() as u64);
        for (list, &free) in self.lists.iter_mut().zip(free.iter().cycle()) {
            let entries = list.positions.len() - 1;
            for _ in 0..free.min(entries) {
                let slot = rng.random_range(0..entries);
                list.positions[slot] = -1;
                list.scores[slot] = f32::NAN;
            }
        }
        self
    }

    /// The layer with every second head evicting an entry, free slots or not.
    fn with_some_full(mut self) -> Self {
        let first = self.columns() % 2;
        for head in self.lists.iter_mut().skip(first).step_by(2) {
            head.takes_free = head.positions.iter().filter(|&&position| position >= 0).count() < 2;
        }
        self
    }

    /// Columns with the new token's.
    fn columns(&self) -> usize {
        // One more than the longest needs, where a head may begin with padding.
        self.lists.iter().map(|list| list.positions.len()).max().unwrap()
            + usize::from(self.is_ragged)
    }

    /// Numbers of each head side by side, its last columns, `other` before them.
    fn rectangle<T: Copy>(
        &self,
        columns: usize,
        other: T,
        of_head: impl Fn(&Head) -> Vec<T>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for head in &self.lists {
            let numbers = of_head(head);
            extend_behind(&mut all, columns - numbers.len(), other, numbers);
        }
        all
    }

    /// Statistics of all kinds, one after another, of the first or of all columns.
    fn statistics(
        &self,
        columns: usize,
        without_new: bool,
        device: &Device,
    ) -> AttentionStatistics {
        let dims = [self.batch, self.heads * self.group, columns];
        let of_kind = |kind: usize| {
            let mut all = Vec::new();
            for list in &self.lists {
                for of in &list.counted[kind * self.group..][..self.group] {
                    let own = &of[..of.len() - usize::from(without_new)];
                    extend_behind(&mut all, columns - own.len(), 0.0, own.iter().copied());
                }
            }
            (KINDS[kind], floats(&all, dims, device))
        };
        AttentionStatistics::new((0..self.kinds).map(of_kind))
    }

    /// The index of the last free slot of a head, or else of the entry that goes, by sorting it by
    /// position and then by score.
    fn gone(&self, head: &Head) -> usize {
        let is_free = |&position: &i64| position < 0;
        if let Some(free) = head.positions.iter().rposition(is_free).filter(|_| head.takes_free) {
            return free;
        }
        let columns = 0..head.positions.len();
        let mut order: Vec<usize> =
            columns.filter(|&column| !is_free(&head.positions[column])).collect();
        let tokens = order.len();
        let sinks = self.sinks.min(tokens - 1);
        let recent = head.recent.min(tokens - 1 - sinks);
        order.sort_by_key(|&index| head.positions[index]);
        let mut goes = order[sinks..tokens - recent].to_vec();
        goes.reverse();
        let scores = &head.scores;
        goes.sort_by(|&a, &b| match (scores[a].is_nan(), scores[b].is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => scores[a].total_cmp(&scores[b]),
        });
        goes[0]
    }

    /// The layer afterwards, the new token in the place of the entry that goes; and thresholds, if
    /// entries are merged by these.
    fn expected(&self, reduction: Reduction<'_>) -> (Vec<Head>, Vec<f64>) {
        let mut after = self.lists.clone();
        let mut thresholds = Vec::new();
        for (row, lists) in after.chunks_mut(self.heads).enumerate() {
            let gone: Vec<usize> = lists.iter().map(|head| self.gone(head)).collect();
            if let Reduction::Spread(window) = reduction {
                lists.iter_mut().zip(&gone).for_each(|(head, &gone)| spread(head, gone, window));
            }
            if let Reduction::Merge(before, beta) = reduction {
                let nearest: Vec<Option<(f64, usize)>> = lists
                    .iter()
                    .zip(&gone)
                    .map(|(head, &gone)| (head.positions[gone] >= 0).then(|| nearest(head, gone)))
                    .collect();
                let likes: Vec<f64> = nearest.iter().flatten().map(|(like, _)| *like).collect();
                let mean = likes.iter().sum::<f64>() / likes.len() as f64;
                let threshold = match before.map(|before| before[row]) {
                    // The threshold of a row that has evicted nothing yet.
                    None | Some(..-2.0) if likes.is_empty() => -4.0,
                    None | Some(..-2.0) => mean,
                    Some(before) if likes.is_empty() => before,
                    Some(before) => beta * mean + (1.0 - beta) * before,
                };
                thresholds.push(threshold);
                for ((head, &gone), nearest) in lists.iter_mut().zip(&gone).zip(nearest) {
                    let Some((like, target)) = nearest.filter(|&(like, _)| like >= threshold)
                    else {
                        continue;
                    };
                    for rows in [&mut head.keys, &mut head.values] {
                        let from = rows[gone].clone();
                        for (to, from) in rows[target].iter_mut().zip(from) {
                            *to = (E * *to + like.exp() * from) / (E + like.exp());
                        }
                    }
                }
            }
            for (head, gone) in lists.iter_mut().zip(gone) {
                let Head { positions, keys, values, attention, drawn, counted, .. } = head;
                positions.swap_remove(gone);
                for rows in [keys, values] {
                    rows.swap_remove(gone);
                }
                for numbers in counted.iter_mut().chain([attention, drawn]) {
                    numbers.swap_remove(gone);
                }
            }
        }
        (after, thresholds)
    }

    /// A number of each entry, the new token's last.
    fn scalars(&self, device: &Device, of_head: impl Fn(&Head) -> Vec<f32>) -> Tensor<3> {
        let columns = self.columns();
        let numbers = self.rectangle(columns, f32::NAN, of_head);
        floats(&numbers, [self.batch, self.heads, columns], device)
    }

    /// The limits of a few tokens, of which the new one is neither the first nor the last, with
    /// other numbers for the others; `None` where there are no free slots.
    fn limits(&self, device: &Device) -> Option<EvictLimits> {
        const BEFORE: usize = 2;
        let position = |head: &Head| *head.positions.last().unwrap() as usize;
        let reach = self.lists.iter().map(position).min()?.min(BEFORE);
        let first: Vec<usize> = self.lists.iter().map(|head| position(head) - reach).collect();
        let own = || self.lists.iter().map(|head| (head.recent, head.takes_free));
        let others = || {
            own().map(|(recent, takes_free)| [recent / 2 + 1, usize::from(!takes_free)]).collect()
        };
        let mut tokens: Vec<Vec<[usize; 2]>> = (0..=BEFORE).map(|_| others()).collect();
        tokens[reach] = own().map(|(recent, takes)| [recent, usize::from(takes)]).collect();
        let sinks = vec![self.sinks; self.lists.len()];
        self.has_free_slots.then(|| EvictLimits::new(&first, &sinks, &tokens, device))
    }

    fn rows(&self, of_head: impl Fn(&Head) -> Vec<Vec<f64>>) -> Vec<f64> {
        self.lists.iter().flat_map(|head| of_head(head).concat()).collect()
    }

    /// With numbers from the host, and then from the device.
    fn check(&self, reduction: Reduction<'_>, dtype: DType, backend: &Backend) {
        self.check_with(None, reduction, dtype, backend);
        if let Some(limits) = self.limits(&backend.device) {
            self.check_with(Some(&limits), reduction, dtype, backend);
        }
    }

    fn check_with(
        &self,
        limits: Option<&EvictLimits>,
        reduction: Reduction<'_>,
        dtype: DType,
        backend: &Backend,
    ) {
        let (after, thresholds) = self.expected(reduction);
        let mut state = State::of(self, dtype, &backend.device);
        // What somebody else holds stays as it was.
        let held = state.keys.clone();
        let before = held.numbers();
        let spread = |window| EvictSpreadInput {
            attention: self.scalars(&backend.device, |head| head.attention.clone()),
            drawn: self.scalars(&backend.device, |head| head.drawn.clone()),
            window,
        };
        let input = EvictInput { limits, ..state.input() };
        let found = match reduction {
            Reduction::Spread(window) => {
                let spread = spread(window);
                answer(backend, "evict_spreading", |kernels| {
                    kernels.evict_spreading(input, spread)
                });
                Vec::new()
            }
            Reduction::Drop => {
                answer(backend, "evict", |kernels| kernels.evict(input));
                Vec::new()
            }
            Reduction::Merge(before, beta) => {
                let before = before.map(|before| {
                    let before: Vec<f32> = before.iter().map(|&x| x as f32).collect();
                    floats(&before, [self.batch, 1], &backend.device)
                });
                let merge = EvictMergeInput { before, beta };
                numbers(answer(backend, "evict_merging", |kernels| {
                    kernels.evict_merging(input, merge)
                }))
            }
        };
        close(&found, &thresholds, DType::F32, 1e-4);
        assert_eq!(held.numbers(), before, "a copy is a copy");

        let width = self.columns() - 1;
        let after = Self { lists: after, ..self.clone() };
        let positions = after.rectangle(width, -1, |head| head.positions.clone());
        let found = whole_numbers(state.positions.narrow(2, 0, width));
        assert_eq!(found, positions, "{} {dtype:?}", backend.name);
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-2 };
        let rows = |rows: &Rows| match rows {
            Rows::List(rows) => numbers(rows.clone()),
            Rows::Rectangle(rows) => numbers(rows.clone().narrow(2, 0, width)),
        };
        close(&rows(&state.keys), &after.rows(|head| head.keys.clone()), dtype, tolerance);
        close(&rows(&state.values), &after.rows(|head| head.values.clone()), dtype, tolerance);
        for (kind, of) in KINDS.iter().enumerate().take(self.kinds) {
            let found = numbers(state.statistics.get(*of).unwrap().narrow(2, 0, width));
            let expected = after.statistics(width, false, &backend.device).get(KINDS[kind]);
            assert_eq!(found, numbers(expected.unwrap()));
        }
    }
}

/// Adds the value of an entry to those of the next tokens.
fn spread(head: &mut Head, gone: usize, window: usize) {
    let Head { positions, values, attention, drawn, .. } = head;
    if positions[gone] < 0 {
        return;
    }
    let mut next: Vec<usize> =
        (0..positions.len()).filter(|&other| positions[other] > positions[gone]).collect();
    next.sort_by_key(|&index| positions[index]);
    next.truncate(window);
    let number = next.len() as f64;
    let sum: f64 = next.iter().map(|&other| f64::from(attention[other])).sum();
    if f64::from(drawn[gone]) * sum < f64::from(attention[gone]) * number {
        let from = values[gone].clone();
        for other in next {
            values[other].iter_mut().zip(&from).for_each(|(to, from)| *to += from / number);
        }
    }
}

/// The similarity of an entry to the most similar other, and the index of that one, the oldest of
/// equals.
fn nearest(head: &Head, gone: usize) -> (f64, usize) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let from = &head.keys[gone];
    let like = |to: &[f64]| match dot(from, from) * dot(to, to) {
        0.0 => 0.0,
        squares => (dot(from, to) / squares.sqrt()).min(1.0),
    };
    let others = (0..head.keys.len()).filter(|&other| other != gone && head.positions[other] >= 0);
    let all = others.map(|other| (like(&head.keys[other]), other));
    all.max_by(|a, b| a.0.total_cmp(&b.0).then(head.positions[b.1].cmp(&head.positions[a.1])))
        .unwrap()
}

/// Keys or values.
#[derive(Clone, Debug)]
enum Rows {
    List(Tensor<2>),
    Rectangle(Tensor<4>),
}

impl Rows {
    fn numbers(&self) -> Vec<f32> {
        match self {
            Self::List(rows) => numbers(rows.clone()),
            Self::Rectangle(rows) => numbers(rows.clone()),
        }
    }
}

/// A layer on a device.
struct State {
    keys: Rows,
    values: Rows,
    new: [Tensor<4>; 2],
    new_positions: Tensor<3, Int>,
    positions: Tensor<3, Int>,
    statistics: AttentionStatistics,
    counted: AttentionStatistics,
    scores: Tensor<3>,
    sinks: usize,
    /// Entries of each head, and how many of them stay.
    counts: Vec<usize>,
    recent: Vec<usize>,
    /// Whether each head takes free slots; empty where there are none.
    takes_free: Vec<bool>,
}

impl State {
    fn of(layer: &Layer, dtype: DType, device: &Device) -> Self {
        let Layer { batch, heads, channels, is_ragged, .. } = *layer;
        let columns = layer.columns();
        let width = columns - usize::from(is_ragged);
        let singles = |all: Vec<f64>| all.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        let rows = |of: fn(&Head) -> &Vec<Vec<f64>>| {
            let newest = singles(layer.rows(|head| of(head)[of(head).len() - 1..].to_vec()));
            let newest = floats(&newest, [batch, heads, 1, channels], device).cast(dtype);
            if !is_ragged {
                let all = singles(layer.rows(|head| of(head).clone()));
                let all = floats(&all, [batch, heads, columns, channels], device).cast(dtype);
                return (Rows::Rectangle(all), newest);
            }
            let all = singles(layer.rows(|head| of(head)[..of(head).len() - 1].to_vec()));
            let list = floats(&all, [all.len() / channels, channels], device).cast(dtype);
            (Rows::List(list), newest)
        };
        let (keys, new_keys) = rows(|head| &head.keys);
        let (values, new_values) = rows(|head| &head.values);
        let ints = |list: Vec<i64>, columns: usize| -> Tensor<3, Int> {
            integers(&list, [batch, heads, columns], device)
        };
        let own = |head: &Head| {
            let tokens = head.positions.len() - usize::from(is_ragged);
            head.positions[..tokens].to_vec()
        };
        let takes_free = layer.lists.iter().map(|head| head.takes_free);
        let last = |head: &Head| head.positions[head.positions.len() - 1..].to_vec();
        Self {
            keys,
            values,
            new: [new_keys, new_values],
            new_positions: ints(layer.rectangle(1, 0, last), 1),
            positions: ints(layer.rectangle(width, -1, own), width),
            statistics: layer.statistics(width, is_ragged, device),
            counted: layer.statistics(columns, false, device),
            scores: layer.scalars(device, |head| head.scores.clone()),
            sinks: layer.sinks,
            counts: layer.lists.iter().map(|head| head.positions.len() - 1).collect(),
            recent: layer.lists.iter().map(|head| head.recent).collect(),
            takes_free: takes_free.filter(|_| layer.has_free_slots).collect(),
        }
    }

    fn input(&mut self) -> EvictInput<'_> {
        let rows = match (&mut self.keys, &mut self.values) {
            (Rows::Rectangle(keys), Rows::Rectangle(values)) => SlotRows::Dense { keys, values },
            (Rows::List(keys), Rows::List(values)) => {
                let offsets = offsets(&self.counts);
                let [new_keys, new_values] = self.new.clone();
                SlotRows::Ragged {
                    keys,
                    values,
                    offsets: integers(&offsets, [offsets.len()], &self.scores.device()),
                    counts: &self.counts,
                    new_keys,
                    new_values,
                    new_positions: self.new_positions.clone(),
                }
            }
            _ => unreachable!("both are of one kind"),
        };
        EvictInput {
            rows,
            positions: &mut self.positions,
            statistics: &mut self.statistics,
            counted: self.counted.clone(),
            scores: self.scores.clone(),
            sinks: self.sinks,
            recent: &self.recent,
            takes_free: &self.takes_free,
            limits: None,
        }
    }
}

/// Layers of every kind of rows and statistics.
fn layers(dtype: DType) -> Vec<Layer> {
    let limits = [(0, 0), (4, 0), (0, 128), (1, 1), (3, 64), (9999, 9999)];
    let mut all = Vec::new();
    for (number, count) in [1, 2, 16, 255, 256, 257, 700].into_iter().enumerate() {
        let dims = [[1, 1, 8], [2, 3, 64], [1, 2, 128]][number % 3];
        let statistics = [[1, 1], [2, 3], [0, 1]][number % 3];
        let limit = limits[number % limits.len()];
        let other = limits[(number + 2) % limits.len()];
        all.push(Layer::new(dims, statistics, &[count], limit, false, false, dtype));
        all.push(Layer::new(dims, statistics, &[count], other, true, false, dtype));
        let counts = [count, count.div_ceil(2), count, 1, count.div_ceil(3)];
        all.push(Layer::new([2, 2, dims[2]], statistics, &counts, limit, false, true, dtype));
        all.push(Layer::new([2, 2, dims[2]], statistics, &counts, other, true, true, dtype));
        let layer = |counts: &[usize], gaps, is_ragged| {
            Layer::new([2, 2, dims[2]], statistics, counts, limit, gaps, is_ragged, dtype)
        };
        // Free slots in rows of the batch, in single heads, and nowhere.
        let free: [&[usize]; 3] = [&[3, 3, 0, 0], &[0, 1, 700, 300], &[0]];
        let is_ragged = number % 2 == 1;
        let counts = if is_ragged { &counts[..] } else { &counts[..1] };
        let free = layer(counts, number > 3, is_ragged).with_free_slots(free[number % 3]);
        all.push(free.clone().with_some_full());
        all.push(free);
    }
    all
}

#[test]
fn the_weakest_makes_way() {
    each_dtype(all_backends(), |backend, dtype| {
        for layer in backend.some(layers(dtype), dtype) {
            layer.check(Reduction::Drop, dtype, backend);
        }
    });
}

#[test]
fn the_similar_are_merged() {
    each_dtype(all_backends(), |backend, dtype| {
        for layer in backend.some(layers(dtype), dtype) {
            let before = [-0.2, 0.4];
            layer.check(Reduction::Merge(None, 0.7), dtype, backend);
            layer.check(Reduction::Merge(Some(&before[..layer.batch]), 0.7), dtype, backend);
        }
    });
}

#[test]
fn values_are_spread_over_the_next_tokens() {
    each_dtype(all_backends(), |backend, dtype| {
        for (number, layer) in backend.some(layers(dtype), dtype).into_iter().enumerate() {
            layer.check(Reduction::Spread([32, 1, 300][number % 3]), dtype, backend);
        }
    });
}

#[test]
fn of_equal_keys_the_oldest_takes_it_and_zero_is_like_nothing() {
    for backend in all_backends() {
        let mut layer = Layer::new([1, 1, 8], [1, 1], &[70], (0, 0), false, false, DType::F32);
        let Head { keys, scores, positions, .. } = &mut layer.lists[0];
        scores.fill(1.0);
        scores[33] = -1.0;
        for equal in [5, 20, 69] {
            keys[equal] = keys[33].clone();
        }
        assert!(positions[5] != positions[20]);
        layer.check(Reduction::Merge(Some(&[0.5]), 0.5), DType::F32, &backend);
        let Head { keys, .. } = &mut layer.lists[0];
        keys[33].fill(0.0);
        layer.check(Reduction::Merge(Some(&[-1.0]), 0.5), DType::F32, &backend);
    }
}

#[test]
fn zeros_infinities_and_nan_have_their_order() {
    let odd = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];
    for backend in all_backends() {
        for first in odd {
            for second in odd {
                let mut layer =
                    Layer::new([1, 1, 4], [1, 1], &[4], (0, 0), false, false, DType::F32);
                layer.lists[0].scores = vec![1.0, first, 2.0, second, f32::INFINITY];
                layer.check(Reduction::Drop, DType::F32, &backend);
            }
        }
    }
}

#[test]
fn misfits_are_refused() {
    let by = RefusedBy("evict");
    for backend in kernel_backends() {
        let layer = Layer::new([2, 2, 8], [1, 1], &[5, 3], (0, 0), false, true, DType::F32);
        let mut state = State::of(&layer, DType::F32, &backend.device);
        state.recent = vec![0; 4];
        let before = state.keys.numbers();
        let mut refuses = |change: &dyn Fn(&mut EvictInput<'_>), expected: OpError| {
            let mut input = state.input();
            change(&mut input);
            assert_eq!(evict(input).unwrap_err(), expected);
        };
        refuses(&|input| input.recent = &[1], by.value("the length of recent", 1, "4"));
        let expected = by.value("the length of takes_free", 3, "0 or 4");
        refuses(&|input| input.takes_free = &[true; 3], expected);
        let expected = by.shape("positions", &[2, 2, 6], &[2, 2, 5]);
        refuses(&|input| input.scores = input.scores.clone().narrow(2, 0, 6), expected);
        let expected = by.value("the kinds of counted", 0, "1");
        refuses(&|input| input.counted = AttentionStatistics::default(), expected);
        if backend.device.supports_dtype(DType::F16) {
            let half = |input: &mut EvictInput<'_>| {
                if let SlotRows::Ragged { new_keys, .. } = &mut input.rows {
                    *new_keys = new_keys.clone().cast(DType::F16);
                }
            };
            refuses(&half, by.half("new_keys"));
        }
        let limits = EvictLimits::new(&[0; 3], &[0; 3], &[vec![[1, 1]; 3]], &backend.device);
        let none = EvictLimits::new::<2>(&[0; 4], &[0; 4], &[], &backend.device);
        for (limits, expected) in [
            (&limits, by.shape("limits", &[3, 4], &[4, 4])),
            (&none, by.value("the tokens of limits", 0, "1 or more")),
        ] {
            let input = EvictInput { limits: Some(limits), ..state.input() };
            assert_eq!(evict(input).unwrap_err(), expected);
        }
        let before_thresholds = Tensor::<2>::zeros([3, 1], (&backend.device, DType::F32));
        let merge = EvictMergeInput { before: Some(before_thresholds), beta: 0.7 };
        let expected = RefusedBy("evict_merging").shape("before", &[3, 1], &[2, 1]);
        assert_eq!(evict_merging(state.input(), merge).unwrap_err(), expected);
        let of = |columns| Tensor::<3>::zeros([2, 2, columns], (&backend.device, DType::F32));
        let by = RefusedBy("evict_spreading");
        for (attention, window, expected) in [
            (of(6), 4, by.shape("attention", &[2, 2, 6], &[2, 2, 7])),
            (of(7), 0, by.value("window", 0, "1 or more")),
        ] {
            let spread = EvictSpreadInput { attention, drawn: of(7), window };
            assert_eq!(evict_spreading(state.input(), spread).unwrap_err(), expected);
        }
        assert_eq!(state.keys.numbers(), before, "nothing is changed");
    }
}
