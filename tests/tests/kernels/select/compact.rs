//! Rows and numbers end where the selection says, whatever they lie in; padding is marked.

use briquette::ops::{AttentionStatistics, Entries, OpError, Reference, Selection, Statistic};
use briquette_kernels::compact;
use briquette_ops::SelectOps;
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Int, Tensor};
use rand::{RngExt, SeedableRng, seq::index::sample};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, each_dtype, integers, kernel_backends, numbers, poison_as,
    turned, whole_numbers,
};

const KINDS: [Statistic; 5] = [
    Statistic::Sums,
    Statistic::Squares,
    Statistic::LocalPast,
    Statistic::LocalCurrent,
    Statistic::Scores,
];

/// Statistics of different kinds.
fn statistics(tensors: impl IntoIterator<Item = Tensor<3>>) -> AttentionStatistics {
    AttentionStatistics::new(KINDS.into_iter().zip(tensors))
}

/// Numbers on the host, and the lists that are kept.
struct Case {
    batch: usize,
    kv_heads: usize,
    columns: usize,
    head_dim: usize,
    /// Heads of each track, as many of all.
    statistics: Vec<usize>,
    keys: Tensor<4>,
    values: Tensor<4>,
    of_statistics: Vec<Tensor<4>>,
    /// One ascending list a batch row and kv head.
    lists: Vec<Vec<usize>>,
}

impl Case {
    fn new(
        [batch, kv_heads, columns, head_dim]: [usize; 4],
        statistics: &[usize],
        counts: &[usize],
        dtypes: [DType; 2],
    ) -> Self {
        let host = host();
        let mut noise = Noise::new(columns as u64);
        let shape = [batch, kv_heads, columns, head_dim];
        let [keys, values] = dtypes.map(|dtype| noise.tensor(shape, &host).cast(dtype));
        let of_statistics = statistics
            .iter()
            .map(|&heads| noise.tensor([batch, heads, columns, 1], &host))
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(head_dim as u64);
        let list = |row: usize| {
            let mut list = sample(&mut rng, columns, counts[row % counts.len()]).into_vec();
            list.sort_unstable();
            list
        };
        let lists = (0..batch * kv_heads).map(list).collect();
        let statistics = statistics.to_vec();
        Self { batch, kv_heads, columns, head_dim, statistics, keys, values, of_statistics, lists }
    }

    fn positions(&self) -> Vec<i64> {
        let rows = self.batch * self.kv_heads;
        (0..rows * self.columns).map(|place| 3 * place as i64 + 1).collect()
    }

    fn entries(&self, device: &Device) -> Entries {
        let shape = [self.batch, self.kv_heads, self.columns];
        let track = |track: &Tensor<4>| track.clone().to_device(device).squeeze_dim::<3>(3);
        Entries {
            keys: self.keys.clone().to_device(device),
            values: self.values.clone().to_device(device),
            positions: integers(&self.positions(), shape, device),
            statistics: statistics(self.of_statistics.iter().map(track)),
            clustering: None,
        }
    }

    /// Every number of what the operation returns, each at the place that a loop puts it.
    fn check(&self, backend: &Backend, entries: Entries) {
        let Self { batch, kv_heads, columns, head_dim, .. } = *self;
        let device = entries.keys.device();
        let selection = Selection::of_heads(&self.lists, kv_heads, &device);
        let width = selection.width();
        let size = batch * kv_heads * width * head_dim;
        poison_as(entries.keys.dtype(), &device, &[size; 2]);
        let dtypes = [entries.keys.dtype(), entries.values.dtype()];
        let found = answer(backend, "compact", |kernels| kernels.compact(entries, &selection));
        assert_eq!([found.keys.dtype(), found.values.dtype()], dtypes);

        // The entry that stands in each column, and whether it is padding.
        let places: Vec<(usize, usize, bool)> = (self.lists.iter().enumerate())
            .flat_map(|(row, list)| {
                let missing = width - list.len();
                (0..width).map(move |column| match column.checked_sub(missing) {
                    Some(kept) => (row, list[kept], false),
                    None => (row, 0, true),
                })
            })
            .collect();
        for (found, given) in [(found.keys, &self.keys), (found.values, &self.values)] {
            assert_eq!(found.dims(), [batch, kv_heads, width, head_dim]);
            let [found, given] = [found, given.clone()].map(numbers);
            for (found, (row, entry, _)) in found.chunks(head_dim).zip(&places) {
                assert_eq!(found, &given[(row * columns + entry) * head_dim..][..head_dim]);
            }
        }
        let given = self.positions();
        let positions = whole_numbers(found.positions);
        for (found, (row, entry, is_padding)) in positions.iter().zip(&places) {
            assert_eq!(*found, if *is_padding { -1 } else { given[row * columns + entry] });
        }
        assert_eq!(found.statistics.len(), self.statistics.len());
        for (((kind, found), given), (&heads, expected)) in
            found.statistics.iter().zip(&self.of_statistics).zip(self.statistics.iter().zip(KINDS))
        {
            assert_eq!(kind, expected);
            assert_eq!(found.dims(), [batch, heads, width]);
            let group = heads / kv_heads;
            let (found, given) = (numbers(found), numbers(given.clone()));
            for (head, found) in found.chunks(width).enumerate() {
                let places = &places[head / group * width..];
                for (number, (_, entry, is_padding)) in found.iter().zip(places) {
                    let expected = if *is_padding { 0.0 } else { given[head * columns + entry] };
                    assert_eq!(*number, expected);
                }
            }
        }
    }
}

#[test]
fn compact_moves_all_there_is() {
    each_dtype(all_backends(), |backend, dtype| {
        let check = |dims, statistics: &[usize], counts: &[usize], dtypes| {
            let case = Case::new(dims, statistics, counts, dtypes);
            case.check(backend, case.entries(&backend.device));
        };
        let dtypes = [dtype; 2];
        check([1, 1, 1, 1], &[], &[1], dtypes);
        check([2, 2, 9, 64], &[4, 4], &[9], dtypes);
        // Rows of one cube, of two, and columns of two; padding.
        check([1, 3, 700, 64], &[6, 6, 6, 6], &[300, 257, 0], dtypes);
        check([2, 2, 40, 128], &[8], &[8, 9, 16, 17], dtypes);
        // Rows that vectors do not fit, and that one cube does not.
        check([2, 1, 30, 7], &[5, 5], &[29, 3], dtypes);
        check([1, 2, 5, 1100], &[2], &[2, 3], dtypes);
        check([1, 2, 12, 100], &[], &[1, 1], dtypes);
        // Keys that are shared are held in f32.
        check([1, 2, 33, 64], &[2], &[20, 31], [DType::F32, dtype]);
    });
}

#[test]
fn compact_takes_entries_as_they_lie() {
    for backend in all_backends() {
        let device = backend.device.clone();
        let case = Case::new([2, 2, 64, 32], &[4, 4], &[30, 31, 1, 33], [DType::F32; 2]);
        let entries = case.entries(&device);
        let Entries { keys, values, positions, statistics, .. } = entries.clone();
        // A part of buffers with room for more, as a store hands it out.
        let wide = |x: &Tensor<4>| Tensor::cat(vec![x.clone(), x.zeros_like()], 2).narrow(2, 0, 64);
        let wide_scalars =
            |x: Tensor<3>| Tensor::cat(vec![x.clone(), x.zeros_like()], 2).narrow(2, 0, 64);
        let of_buffers = Entries {
            keys: wide(&keys),
            values: wide(&values),
            positions: Tensor::cat(vec![positions.clone(), positions.zeros_like()], 2)
                .narrow(2, 0, 64),
            statistics: statistics.clone().map(wide_scalars),
            clustering: None,
        };
        // Tensors that lie transposed.
        let across = |x: Tensor<4>| x.permute([3, 2, 0, 1]).mul_scalar(1.0).permute([2, 3, 1, 0]);
        let of_turned = Entries { keys: across(keys), ..entries.clone() };
        let all_turned = Entries {
            values: across(values),
            positions: positions.permute([2, 0, 1]).add_scalar(0).permute([1, 2, 0]),
            statistics: statistics.map(|x| turned(&x, 0, 2)),
            ..entries
        };
        for entries in [of_buffers, of_turned, all_turned] {
            case.check(&backend, entries);
        }
    }
}

/// Positions of new entries are the same for all heads, and lie in memory once.
#[test]
fn compact_takes_expanded_positions() {
    for backend in all_backends() {
        let device = backend.device.clone();
        let case = Case::new([1, 3, 20, 8], &[], &[5, 6, 4], [DType::F32; 2]);
        let entries = case.entries(&device);
        let positions = Tensor::<1, Int>::arange(5..25, &device).reshape([1, 1, 20]);
        let positions = positions.expand([1, 3, 20]);
        let selection = Selection::of_heads(&case.lists, 3, &device);
        let entries = Entries { positions, ..entries };
        let found = answer(&backend, "compact", |kernels| kernels.compact(entries, &selection));
        let expected = case.lists.iter().flat_map(|list| {
            let padding = std::iter::repeat_n(-1, 6 - list.len());
            padding.chain(list.iter().map(|&entry| entry as i64 + 5))
        });
        let expected: Vec<i64> = expected.collect();
        assert_eq!(whole_numbers(found.positions), expected);
    }
}

/// Policies get the same bits every time, and those that tensor operations move.
#[test]
fn compact_is_the_same_every_time() {
    for backend in all_backends() {
        let device = backend.device.clone();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let kept = rng.random_range(100..200);
        let case = Case::new([2, 2, 300, 64], &[2], &[kept, 50], [DType::F32; 2]);
        let selection = Selection::of_heads(&case.lists, 2, &device);
        let run = || {
            let entries = case.entries(&device);
            answer(&backend, "compact", |kernels| kernels.compact(entries, &selection))
        };
        let (first, second) = (run(), run());
        let reference = Reference.compact(case.entries(&device), &selection).unwrap();
        assert_eq!(first.keys.clone().into_data(), second.keys.into_data());
        assert_eq!(first.keys.into_data(), reference.keys.into_data());
        assert_eq!(first.values.clone().into_data(), second.values.into_data());
        assert_eq!(first.values.into_data(), reference.values.into_data());
        assert_eq!(first.positions.clone().into_data(), second.positions.into_data());
        assert_eq!(first.positions.into_data(), reference.positions.into_data());
    }
}

#[test]
fn compact_refuses_what_does_not_fit() {
    let case = Case::new([2, 2, 6, 8], &[2], &[3], [DType::F32; 2]);
    let call = |device: &Device, change: &dyn Fn(&mut Entries), counts: &[usize]| {
        let mut entries = case.entries(device);
        change(&mut entries);
        let indices = Tensor::<3, Int>::ones([2, 2, 3], device);
        compact(entries, &Selection { indices, counts: counts.to_vec() }).unwrap_err()
    };
    let by = RefusedBy("compact");
    let plain = &|_: &mut Entries| ();
    for Backend { ref device, .. } in kernel_backends() {
        let refuses = |change: &dyn Fn(&mut Entries), expected: OpError| {
            assert_eq!(call(device, change, &[3; 4]), expected);
        };
        let expected = by.shape("values", &[2, 2, 5, 8], &[2, 2, 6, 8]);
        refuses(&|it| it.values = it.values.clone().narrow(2, 0, 5), expected);
        let expected = by.shape("positions", &[2, 2, 4], &[2, 2, 6]);
        refuses(&|it| it.positions = it.positions.clone().narrow(2, 0, 4), expected);
        let track =
            |heads, columns| statistics([Tensor::zeros([2, heads, columns], (device, DType::F32))]);
        let expected = by.shape("statistics", &[2, 2, 5], &[2, 2, 6]);
        refuses(&|it| it.statistics = track(2, 5), expected);
        let expected = by.value("the heads of statistics", 3, "a multiple of 2");
        refuses(&|it| it.statistics = track(3, 6), expected);
        let nothing = Selection::of_heads(&[[0_usize; 0]; 4], 2, device);
        let expected = by.value("the most entries kept", 0, "at least 1");
        assert_eq!(compact(case.entries(device), &nothing).unwrap_err(), expected);
        assert_eq!(call(device, plain, &[3; 3]), by.value("the length of counts", 3, "4"));
        assert_eq!(call(device, plain, &[3, 3, 4, 3]), by.value("counts", 4, "at most 3"));
    }
    assert_eq!(call(&host(), plain, &[3; 4]), by.device());
}
