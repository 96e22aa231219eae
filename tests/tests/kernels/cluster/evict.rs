//! Clusters in no order, of which the weakest makes way for a new token, step after step: beside
//! the operation on the host, which `decoding_in_place` compares with caches that lay all out.

use briquette::ops::{
    AttentionStatistics, ClusterOps, Clustering, EvictClusterInput, Reference, Statistic,
};
use briquette_kernels::evict_cluster;
use briquette_tests::{
    backends::{Backend, host},
    inputs::round,
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::common::{all_backends, answer, close, kernel_backends, wrong_shape, wrong_value};

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
    tracks: AttentionStatistics,
}

/// A new token of each head, and the numbers of a step.
struct Arrival {
    scores: Vec<f32>,
    counted: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    positions: Vec<i64>,
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
    fn floats<const D: usize>(
        numbers: &[f32],
        dims: [usize; D],
        dtype: DType,
        device: &Device,
    ) -> Tensor<D> {
        let data = TensorData::new(numbers.to_vec(), dims);
        Tensor::<D>::from_data(data, (device, DType::F32)).cast(dtype)
    }

    fn ints(&self, numbers: Vec<i64>, width: usize, device: &Device) -> Tensor<3, Int> {
        let [batch, heads, _] = self.dims;
        Tensor::from_data(TensorData::new(numbers, [batch, heads, width]), device)
    }

    fn tracks(&self, numbers: &[f32], width: usize, device: &Device) -> AttentionStatistics {
        let [batch, heads, _] = self.dims;
        let [kinds, group] = self.statistics;
        let mut tracks =
            AttentionStatistics::zeros(&KINDS[..kinds], [batch, heads * group, width], device);
        if let Some(stacked) = tracks.stacked_mut() {
            *stacked = Self::floats(numbers, stacked.dims(), DType::F32, device);
        }
        tracks
    }

    /// The same layer on each device.
    fn state(&self, dtype: DType, devices: [&Device; 2]) -> [State; 2] {
        let mut rng = ChaCha8Rng::seed_from_u64(self.width as u64 + self.heads[0][0] as u64);
        let [batch, heads, channels] = self.dims;
        let height = self.heads.iter().map(|head| head[0]).max().unwrap();
        let total: usize = self.heads.iter().map(|head| head[0]).sum();
        let (keys, values) =
            (rows(&mut rng, total, channels, dtype), rows(&mut rng, total, channels, dtype));
        let mut offsets = vec![0];
        let (mut positions, mut clusters, mut norms) = (Vec::new(), Vec::new(), Vec::new());
        let (mut representatives, mut by_cluster) = (Vec::new(), Vec::new());
        let (mut padding, mut clustered) = (Vec::new(), Vec::new());
        for &[count, tokens] in &self.heads {
            offsets.push(offsets[offsets.len() - 1] + count as i64);
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
            let mut of_head = vec![-1; missing];
            for _ in 0..tokens {
                position += if self.gaps { rng.random_range(1..4) } else { 1 };
                of_head.push(position);
            }
            positions.extend(of_head);
            let mut represents = vec![0; height];
            for slot in 0..count as i64 {
                let of_slot: Vec<usize> =
                    (0..tokens).filter(|&token| of_token[token] == slot).collect();
                let token = of_slot[rng.random_range(0..of_slot.len())];
                let column = missing + token + held - self.width;
                represents[height - count + slot as usize] = column as i64;
            }
            representatives.extend(represents);
            let mut sorted: Vec<usize> = (0..tokens).collect();
            sorted.sort_by_key(|&token| of_token[token]);
            by_cluster.extend(0..missing as i64);
            by_cluster.extend(sorted.into_iter().map(|token| (missing + token) as i64));
            clusters.extend(vec![0; missing]);
            clusters.extend(of_token);
            norms.extend(vec![0.0; missing]);
            norms.extend((0..tokens).map(|_| rng.random_range(0.5..2.0_f32)));
        }
        let lists = batch * heads;
        let [kinds, group] = self.statistics;
        let before = vec![9.0; kinds * lists * group * self.width];
        devices.map(|device| State {
            keys: Self::floats(&keys, [total, channels], dtype, device),
            values: Self::floats(&values, [total, channels], dtype, device),
            offsets: Tensor::from_data(TensorData::new(offsets.clone(), [lists + 1]), device),
            clustering: Clustering {
                clustered_tokens: clustered.clone(),
                cluster_counts: self.heads.iter().map(|head| head[0]).collect(),
                unclustered: vec![0; lists],
                cluster_of_token: self.ints(clusters.clone(), self.width, device),
                norms: Self::floats(&norms, [batch, heads, self.width], DType::F32, device),
                representatives: self.ints(representatives.clone(), height, device),
                tokens_by_cluster: self.ints(by_cluster.clone(), self.width, device),
                padding_columns: Tensor::from_data(
                    TensorData::new(padding.clone(), [batch, heads]),
                    device,
                ),
            },
            positions: self.ints(positions.clone(), self.width, device),
            tracks: self.tracks(&before, self.width, device),
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

    fn recent(&self) -> Vec<usize> {
        vec![self.recent; self.heads.len()]
    }

    fn most_tokens(&self, state: &State) -> Vec<usize> {
        let Clustering { clustered_tokens, cluster_counts, .. } = &state.clustering;
        let most = |(&held, &count): (&usize, &usize)| {
            (held + 1).min(count + self.others).min(self.width).max(count)
        };
        clustered_tokens.iter().zip(cluster_counts).map(most).collect()
    }

    fn input<'a>(
        &self,
        state: &'a mut State,
        arrival: &Arrival,
        recent: &'a [usize],
        most_tokens: &'a [usize],
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
            tracks: &mut state.tracks,
            counted: self.tracks(&arrival.counted, columns, &device),
            scores: Self::floats(&arrival.scores, [batch, heads, columns], DType::F32, &device),
            new_keys: Self::floats(&arrival.keys, new, dtype, &device),
            new_values: Self::floats(&arrival.values, new, dtype, &device),
            new_positions: self.ints(arrival.positions.clone(), 1, &device),
            sinks: self.sinks,
            recent,
            most_tokens,
            threshold: self.threshold,
        }
    }

    fn check(&self, dtype: DType, ties: bool, backend: &Backend) {
        let [mut found, mut expected] = self.state(dtype, [&backend.device, &host()]);
        let recent = self.recent();
        for step in 0..4 {
            let arrival = self.arrival(step, ties, dtype);
            let most = self.most_tokens(&expected);
            let input = self.input(&mut expected, &arrival, &recent, &most);
            Reference.evict_cluster(input).unwrap();
            let input = self.input(&mut found, &arrival, &recent, &most);
            answer(backend, "evict_cluster", |kernels| kernels.evict_cluster(input));
            same(&found, &expected, dtype, &format!("{}: {self:?}, step {step}", backend.name));
            // Rounded differently they go on differently.
            found.keys = Tensor::from_data(expected.keys.to_data(), (&backend.device, dtype));
            found.values = Tensor::from_data(expected.values.to_data(), (&backend.device, dtype));
        }
    }
}

/// That both are the same, the tokens of a cluster in any order.
fn same(found: &State, expected: &State, dtype: DType, of: &str) {
    let ints = |x: &Tensor<3, Int>| x.clone().try_into_vec_as::<i64>().unwrap();
    let (a, b) = (&found.clustering, &expected.clustering);
    assert_eq!(ints(&found.positions), ints(&expected.positions), "positions of {of}");
    assert_eq!(ints(&a.cluster_of_token), ints(&b.cluster_of_token), "clusters of {of}");
    assert_eq!(ints(&a.representatives), ints(&b.representatives), "representatives of {of}");
    let padding = |x: &Clustering| x.padding_columns.clone().try_into_vec_as::<i64>().unwrap();
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
    let floats = |x: Tensor<3>| x.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
    let tracks = |x: &State| x.tracks.stacked().cloned().map(floats);
    assert_eq!(tracks(found), tracks(expected), "statistics of {of}");
    let all = |x: &State| {
        let rows = [&x.keys, &x.values].map(|rows| rows.clone().unsqueeze_dim::<3>(0));
        let [keys, values] = rows.map(floats);
        [keys, values, floats(x.clustering.norms.clone())]
    };
    for (found, expected) in all(found).iter().zip(all(expected)) {
        let expected: Vec<f64> = expected.iter().map(|&x| f64::from(x)).collect();
        close(found, &expected, dtype, tolerance(dtype));
    }
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
    ]
}

#[test]
fn the_weakest_cluster_makes_way() {
    for backend in all_backends() {
        for dtype in backend.dtypes() {
            for case in backend.some(cases(), dtype) {
                case.check(dtype, false, &backend);
            }
        }
    }
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
    for backend in kernel_backends() {
        let case = &cases()[1];
        let [mut state, _] = case.state(DType::F32, [&backend.device, &host()]);
        let arrival = case.arrival(0, false, DType::F32);
        let most = case.most_tokens(&state);
        let recent = case.recent();
        let refused = |state: &mut State, change: fn(&mut EvictClusterInput<'_>)| {
            let mut input = case.input(state, &arrival, &recent, &most);
            change(&mut input);
            evict_cluster(input).unwrap_err()
        };
        let found = refused(&mut state, |input| input.recent = &[4]);
        assert_eq!(found, wrong_value("evict_cluster", "the length of recent", 1, "2"));
        let found = refused(&mut state, |input| input.recent = &[4, 0]);
        assert_eq!(found, wrong_value("evict_cluster", "recent", 0, "1 or more"));
        let found = refused(&mut state, |input| input.most_tokens = &[15, 14]);
        assert_eq!(found, wrong_value("evict_cluster", "most_tokens", 15, "8..=14"));
        let found = refused(&mut state, |input| {
            input.scores = input.scores.clone().narrow(2, 0, 14);
        });
        assert_eq!(found, wrong_shape("evict_cluster", "scores", &[1, 2, 14], &[1, 2, 15]));
        let found = refused(&mut state, |input| input.counted = AttentionStatistics::default());
        assert_eq!(found, wrong_value("evict_cluster", "the kinds of counted", 0, "2"));
        let found = refused(&mut state, |input| input.clustering.unclustered = vec![0, 1]);
        assert_eq!(found, wrong_value("evict_cluster", "unclustered", 1, "none"));
    }
}
