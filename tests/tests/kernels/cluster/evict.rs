//! Clusters in no order, of which the weakest makes way for a new token, step after step: beside
//! the operation on the host, which `decoding_in_place` compares with caches that lay all out.

use briquette::ops::{AttentionStatistics, Clustering, EvictLimits, OpError, Reference, Statistic};
use briquette_kernels::evict_cluster;
use briquette_ops::{ClusterOps, EvictClusterInput};
use briquette_tests::{
    backends::{Backend, host},
    inputs::round,
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, close, each_case, extend_behind, f64s, floats, integers,
    kernel_backends, numbers, whole_numbers,
};

/// A layer of clusters to be.
#[derive(Clone, Debug)]
struct Case {
    dims: [usize; 3],
    /// Clusters and tokens of each head.
    heads: Vec<[usize; 2]>,
    /// Columns of tokens.
    width: usize,
    sinks: usize,
    recent: usize,
    /// Tokens of a head besides its clusters, at most.
    others: usize,
    threshold: f64,
    /// Kinds of statistics, and query heads of a kv head.
    statistics: [usize; 2],
    gaps: bool,
    /// Free rows of the first head, of the second one more, and so on in turn; `None` where there
    /// are none.
    free: Option<usize>,
}

const KINDS: [Statistic; 2] = [Statistic::Sums, Statistic::LocalPast];

/// A layer on a device.
#[derive(Clone, Debug)]
struct State {
    keys: Tensor<2>,
    values: Tensor<2>,
    offsets: Tensor<1, Int>,
    clustering: Clustering,
    positions: Tensor<3, Int>,
    statistics: AttentionStatistics,
}

/// A new token of each head, and the numbers of a step.
struct Arrival {
    scores: Vec<f32>,
    counted: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    positions: Vec<i64>,
}

/// Numbers of each head at a step.
struct Numbers {
    recent: Vec<usize>,
    most_tokens: Vec<usize>,
    free_rows: Vec<usize>,
    takes_free: Vec<bool>,
    clusters: Vec<usize>,
    /// Tokens before it.
    before: Vec<usize>,
}

fn rows(rng: &mut ChaCha8Rng, count: usize, channels: usize, dtype: DType) -> Vec<f32> {
    // Few directions and small changes, so that some are redundant.
    let row = |rng: &mut ChaCha8Rng| {
        let direction = rng.random_range(0..4);
        (0..channels)
            .map(|channel| {
                let own = if channel % 4 == direction { 1.0 } else { 0.1 };
                round(own + f64::from(rng.random_range(-0.5..0.5_f32)), dtype) as f32
            })
            .collect::<Vec<f32>>()
    };
    (0..count).flat_map(|_| row(rng)).collect()
}

impl Case {
    fn ints(&self, numbers: &[i64], width: usize, device: &Device) -> Tensor<3, Int> {
        let [batch, heads, _] = self.dims;
        integers(numbers, [batch, heads, width], device)
    }

    fn statistics(&self, numbers: &[f32], width: usize, device: &Device) -> AttentionStatistics {
        let [batch, heads, _] = self.dims;
        let [kinds, group] = self.statistics;
        let mut statistics =
            AttentionStatistics::zeros(&KINDS[..kinds], [batch, heads * group, width], device);
        if let Some(stacked) = statistics.stacked_mut() {
            *stacked = floats(numbers, stacked.dims(), device);
        }
        statistics
    }

    /// The same layer on each device.
    fn state(&self, dtype: DType, devices: [&Device; 2]) -> [State; 2] {
        let mut rng = ChaCha8Rng::seed_from_u64(self.width as u64 + self.heads[0][0] as u64);
        let [batch, heads, channels] = self.dims;
        let rows_of: Vec<usize> =
            self.heads.iter().zip(self.free_rows()).map(|(head, free)| head[0] + free).collect();
        let height = rows_of.iter().copied().max().unwrap();
        let total: usize = rows_of.iter().sum();
        let (keys, values) =
            (rows(&mut rng, total, channels, dtype), rows(&mut rng, total, channels, dtype));
        let mut offsets = vec![0];
        let (mut positions, mut clusters, mut norms) = (Vec::new(), Vec::new(), Vec::new());
        let (mut representatives, mut by_cluster) = (Vec::new(), Vec::new());
        let (mut padding, mut clustered) = (Vec::new(), Vec::new());
        for (&[count, tokens], &all_rows) in self.heads.iter().zip(&rows_of) {
            offsets.push(offsets[offsets.len() - 1] + all_rows as i64);
            // Some of the columns that may hold tokens hold none.
            let missing = self.width - tokens;
            let held = self.width - rng.random_range(0..=missing);
            padding.push(missing as i64);
            clustered.push(held);
            // The last tokens have clusters of their own, and each cluster has a token.
            let mut slots: Vec<i64> = (0..count as i64).collect();
            slots.shuffle(&mut rng);
            let own = self.recent.min(count);
            let (older, last) = slots.split_at(count - own);
            let shared = tokens - own;
            let mut of_token: Vec<i64> = (0..shared)
                .map(|token| match older.get(token) {
                    Some(&slot) => slot,
                    None => older[rng.random_range(0..older.len())],
                })
                .collect();
            of_token.shuffle(&mut rng);
            of_token.extend(last);
            let mut position = -1;
            positions.extend(vec![-1; missing]);
            for _ in 0..tokens {
                position += if self.gaps { rng.random_range(1..4) } else { 1 };
                positions.push(position);
            }
            let mut represents = vec![0; height];
            for slot in 0..count as i64 {
                let of_slot: Vec<usize> =
                    (0..tokens).filter(|&token| of_token[token] == slot).collect();
                let token = of_slot[rng.random_range(0..of_slot.len())];
                let column = missing + token + held - self.width;
                represents[height - all_rows + slot as usize] = column as i64;
            }
            representatives.extend(represents);
            let mut sorted: Vec<usize> = (0..tokens).collect();
            sorted.sort_by_key(|&token| of_token[token]);
            by_cluster.extend(0..missing as i64);
            by_cluster.extend(sorted.into_iter().map(|token| (missing + token) as i64));
            extend_behind(&mut clusters, missing, 0, of_token);
            let own_norms = (0..tokens).map(|_| rng.random_range(0.5..2.0_f32));
            extend_behind(&mut norms, missing, 0.0, own_norms);
        }
        let lists = batch * heads;
        let [kinds, group] = self.statistics;
        let before = vec![9.0; kinds * lists * group * self.width];
        devices.map(|device| State {
            keys: floats(&keys, [total, channels], device).cast(dtype),
            values: floats(&values, [total, channels], device).cast(dtype),
            offsets: integers(&offsets, [lists + 1], device),
            clustering: Clustering {
                clustered_tokens: clustered.clone(),
                cluster_counts: rows_of.clone(),
                unclustered: vec![0; lists],
                cluster_of_token: self.ints(&clusters, self.width, device),
                norms: floats(&norms, [batch, heads, self.width], device),
                representatives: self.ints(&representatives, height, device),
                tokens_by_cluster: self.ints(&by_cluster, self.width, device),
                padding_columns: integers(&padding, [batch, heads], device),
            },
            positions: self.ints(&positions, self.width, device),
            statistics: self.statistics(&before, self.width, device),
        })
    }

    fn arrival(&self, step: usize, ties: bool, dtype: DType) -> Arrival {
        let mut rng = ChaCha8Rng::seed_from_u64(1000 + step as u64);
        let [batch, heads, channels] = self.dims;
        let lists = batch * heads;
        let [kinds, group] = self.statistics;
        let columns = self.width + 1;
        let mut score = |_| match ties {
            true => [0.0, -0.0, 0.5, f32::NAN][rng.random_range(0..4)],
            false => rng.random_range(0.0..1.0_f32),
        };
        Arrival {
            scores: (0..lists * columns).map(&mut score).collect(),
            counted: (0..kinds * group * lists * columns).map(|x| x as f32).collect(),
            keys: rows(&mut rng, lists, channels, dtype),
            values: rows(&mut rng, lists, channels, dtype),
            positions: vec![(5 * self.width + step) as i64; lists],
        }
    }

    /// Free rows of each head.
    fn free_rows(&self) -> Vec<usize> {
        (0..self.heads.len()).map(|head| self.free.map_or(0, |free| free + head % 3)).collect()
    }

    /// The numbers of a step of heads that have so many free rows.
    fn numbers(&self, state: &State, free_rows: &[usize], step: usize) -> Numbers {
        let Clustering { clustered_tokens, cluster_counts, .. } = &state.clustering;
        // Some take a row, and some evict a cluster.
        let takes = |(head, &free): (usize, &usize)| free > 0 && (head + step).is_multiple_of(2);
        let takes_free: Vec<bool> = free_rows.iter().enumerate().map(takes).collect();
        let clusters: Vec<usize> =
            cluster_counts.iter().zip(free_rows).map(|(rows, free)| rows - free).collect();
        let most = |(head, &held): (usize, &usize)| {
            let count = clusters[head] + usize::from(takes_free[head]);
            (held + 1).min(count + self.others).min(self.width).max(count)
        };
        let most_tokens: Vec<usize> = clustered_tokens.iter().enumerate().map(most).collect();
        let before = clustered_tokens.clone();
        let (free_rows, takes_free) = match self.free {
            Some(_) => (free_rows.to_vec(), takes_free),
            None => (Vec::new(), Vec::new()),
        };
        let recent = vec![self.recent; self.heads.len()];
        Numbers { recent, most_tokens, free_rows, takes_free, clusters, before }
    }

    /// The numbers of a step among those of others, by the position of its token.
    fn limits(&self, numbers: &Numbers, position: usize, device: &Device) -> EvictLimits {
        let Numbers { recent, most_tokens, takes_free, clusters, before, .. } = numbers;
        let heads = self.heads.len();
        let takes = |head: usize| usize::from(takes_free[head]);
        let own = |head: usize| {
            [recent[head], takes(head), clusters[head], before[head], most_tokens[head]]
        };
        let other = |head: usize| [1, 1 - takes(head), 1, self.width, 1];
        let [own, other] = [(0..heads).map(own).collect(), (0..heads).map(other).collect()];
        let tokens: Vec<Vec<[usize; 5]>> = vec![Vec::clone(&other), own, other];
        let protected =
            |head: usize| self.sinks.min(clusters[head] - recent[head].min(clusters[head]));
        let sinks: Vec<usize> = (0..heads).map(protected).collect();
        EvictLimits::new(&vec![position - 1; heads], &sinks, &tokens, device)
    }

    fn input<'a>(
        &self,
        state: &'a mut State,
        arrival: &Arrival,
        numbers: &'a Numbers,
    ) -> EvictClusterInput<'a> {
        let [batch, heads, channels] = self.dims;
        let device = state.positions.device();
        let dtype = state.keys.dtype();
        let columns = self.width + 1;
        let new = [batch, heads, 1, channels];
        EvictClusterInput {
            keys: &mut state.keys,
            values: &mut state.values,
            offsets: state.offsets.clone(),
            clustering: &mut state.clustering,
            positions: &mut state.positions,
            statistics: &mut state.statistics,
            counted: self.statistics(&arrival.counted, columns, &device),
            scores: floats(&arrival.scores, [batch, heads, columns], &device),
            new_keys: floats(&arrival.keys, new, &device).cast(dtype),
            new_values: floats(&arrival.values, new, &device).cast(dtype),
            new_positions: self.ints(&arrival.positions, 1, &device),
            sinks: self.sinks,
            recent: &numbers.recent,
            most_tokens: &numbers.most_tokens,
            threshold: self.threshold,
            free_rows: &numbers.free_rows,
            takes_free: &numbers.takes_free,
            limits: None,
        }
    }

    fn check(&self, dtype: DType, ties: bool, backend: &Backend) {
        let [mut found, mut expected] = self.state(dtype, [&backend.device, &host()]);
        let mut free_rows = self.free_rows();
        for step in 0..4 {
            let arrival = self.arrival(step, ties, dtype);
            let numbers = self.numbers(&expected, &free_rows, step);
            // Every other time from the device.
            let position = arrival.positions[0] as usize;
            let is_told = step % 2 == 1 && self.free.is_some();
            let table = is_told.then(|| self.limits(&numbers, position, &backend.device));
            let input = self.input(&mut expected, &arrival, &numbers);
            Reference.evict_cluster(input).unwrap();
            let input = self.input(&mut found, &arrival, &numbers);
            let input = EvictClusterInput { limits: table.as_ref(), ..input };
            answer(backend, "evict_cluster", |kernels| kernels.evict_cluster(input));
            let takes = numbers.takes_free.iter().map(|&takes| usize::from(takes));
            free_rows.iter_mut().zip(takes).for_each(|(free, takes)| *free -= takes);
            same(&found, &expected, dtype, &format!("{}: {self:?}, step {step}", backend.name));
            // Rounded differently they go on differently.
            found.keys = Tensor::from_data(expected.keys.to_data(), (&backend.device, dtype));
            found.values = Tensor::from_data(expected.values.to_data(), (&backend.device, dtype));
        }
    }
}

/// That both are the same, the tokens of a cluster in any order.
fn same(found: &State, expected: &State, dtype: DType, of: &str) {
    let ints = |x: &Tensor<3, Int>| whole_numbers(x.clone());
    let (a, b) = (&found.clustering, &expected.clustering);
    assert_eq!(ints(&found.positions), ints(&expected.positions), "positions of {of}");
    assert_eq!(ints(&a.cluster_of_token), ints(&b.cluster_of_token), "clusters of {of}");
    assert_eq!(ints(&a.representatives), ints(&b.representatives), "representatives of {of}");
    let padding = |x: &Clustering| whole_numbers(x.padding_columns.clone());
    assert_eq!(padding(a), padding(b), "padding of {of}");
    assert_eq!(a.clustered_tokens, b.clustered_tokens);
    let clusters = ints(&a.cluster_of_token);
    let width = found.positions.dims()[2];
    let sorted = |x: &Clustering| {
        let mut all = ints(&x.tokens_by_cluster);
        for (head, tokens) in all.chunks_mut(width).enumerate() {
            let tokens = &mut tokens[padding(a)[head] as usize..];
            let of = |token: i64| clusters[head * width + token as usize];
            assert!(tokens.iter().map(|&token| of(token)).is_sorted(), "tokens by cluster");
            tokens.sort_by_key(|&token| (of(token), token));
        }
        all
    };
    assert_eq!(sorted(a), sorted(b), "tokens by cluster of {of}");
    let statistics = |x: &State| x.statistics.stacked().cloned().map(numbers);
    assert_eq!(statistics(found), statistics(expected), "statistics of {of}");
    for (found, expected) in [(&found.keys, &expected.keys), (&found.values, &expected.values)] {
        close(&numbers(found.clone()), &f64s(expected), dtype, tolerance(dtype));
    }
    close(&numbers(a.norms.clone()), &f64s(&b.norms), dtype, tolerance(dtype));
}

fn cases() -> Vec<Case> {
    let case = |dims: [usize; 3], heads: Vec<[usize; 2]>, width| Case {
        dims,
        heads,
        width,
        sinks: 0,
        recent: 4,
        others: 3 * width,
        threshold: 0.5,
        statistics: [2, 2],
        gaps: false,
        free: None,
    };
    vec![
        case([1, 1, 8], vec![[6, 12]], 12),
        Case { others: 6, ..case([1, 2, 96], vec![[8, 14]; 2], 14) },
        Case { others: 0, statistics: [1, 1], ..case([1, 1, 128], vec![[9, 9]], 9) },
        // Nothing is redundant enough, and what is left is evicted with all its tokens.
        Case { threshold: 1.0, ..case([2, 2, 128], vec![[30, 70]; 4], 96) },
        // Heads of their own.
        case([2, 2, 8], vec![[5, 9], [12, 40], [7, 7], [30, 64]], 80),
        Case { sinks: 3, gaps: true, ..case([1, 2, 128], vec![[40, 90]; 2], 91) },
        Case { recent: 100, ..case([1, 1, 128], vec![[20, 20]], 30) },
        Case { recent: 32, ..case([1, 2, 128], vec![[256, 1000]; 2], 1024) },
        Case { recent: 32, others: 44, ..case([1, 1, 8], vec![[256, 300]], 300) },
        case([1, 1, 8], vec![[300, 2900]], 3000),
        // Rows that are free, in some heads or in all.
        Case { free: Some(2), ..case([1, 2, 96], vec![[8, 14]; 2], 20) },
        Case {
            free: Some(0),
            sinks: 2,
            ..case([2, 2, 8], vec![[5, 9], [12, 40], [7, 7], [30, 64]], 80)
        },
        Case { free: Some(1), others: 6, ..case([1, 2, 128], vec![[40, 46]; 2], 60) },
        Case { free: Some(3), recent: 32, ..case([1, 2, 128], vec![[256, 1000]; 2], 1030) },
    ]
}

#[test]
fn the_weakest_cluster_makes_way() {
    each_case(all_backends(), &cases(), |backend, dtype, case| case.check(dtype, false, backend));
}

#[test]
fn of_equal_scores_the_newest_goes() {
    for backend in all_backends() {
        for case in backend.some(cases(), DType::F32) {
            case.check(DType::F32, true, &backend);
        }
    }
}

#[test]
fn misfits_are_refused() {
    let by = RefusedBy("evict_cluster");
    for backend in kernel_backends() {
        let case = &cases()[1];
        let [mut state, _] = case.state(DType::F32, [&backend.device, &host()]);
        let mut whole = state.clone();
        let arrival = case.arrival(0, false, DType::F32);
        let numbers = case.numbers(&state, &[0; 2], 0);
        let mut refuses = |change: fn(&mut EvictClusterInput<'_>), expected: OpError| {
            let mut input = case.input(&mut state, &arrival, &numbers);
            change(&mut input);
            assert_eq!(evict_cluster(input).unwrap_err(), expected);
        };
        refuses(|input| input.recent = &[4], by.value("the length of recent", 1, "2"));
        refuses(|input| input.recent = &[4, 0], by.value("recent", 0, "1 or more"));
        refuses(|input| input.most_tokens = &[15, 14], by.value("most_tokens", 15, "8..=14"));
        refuses(|input| input.free_rows = &[1], by.value("the length of free_rows", 1, "0 or 2"));
        refuses(
            |input| (input.free_rows, input.takes_free) = (&[0; 2], &[false, true]),
            by.value("the free rows of a head", 0, "1 or more"),
        );
        refuses(
            |input| input.scores = input.scores.clone().narrow(2, 0, 14),
            by.shape("scores", &[1, 2, 14], &[1, 2, 15]),
        );
        let expected = by.value("the kinds of counted", 0, "2");
        refuses(|input| input.counted = AttentionStatistics::default(), expected);
        let expected = by.value("unclustered", 1, "none");
        refuses(|input| input.clustering.unclustered = vec![0, 1], expected);
        let limits = EvictLimits::new(&[0; 2], &[0; 2], &[vec![[1, 1]; 2]], &backend.device);
        let input = case.input(&mut whole, &arrival, &numbers);
        let found = evict_cluster(EvictClusterInput { limits: Some(&limits), ..input });
        assert_eq!(found.unwrap_err(), by.value("the numbers of limits", 2, "5"));
    }
}
