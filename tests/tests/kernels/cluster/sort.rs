//! Any number of clusters, columns of none, rows of every length around what one unit and one pass
//! take.

use briquette::ops::Reference;
use briquette_kernels::sort_by_cluster;
use briquette_ops::{ClusterOps, ClusterOrder};
use briquette_tests::backends::host;
use burn::tensor::{Device, Int, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    RefusedBy, all_backends, answer, integers, kernel_backends, poison, turned, whole_numbers,
};

/// Rows of clusters, on the host.
struct Case {
    dims: [usize; 3],
    number: usize,
    clusters: Vec<i64>,
}

impl Case {
    /// Of ten columns as many as `none` says are of no cluster.
    fn drawn(dims: [usize; 3], number: usize, none: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64((dims[2] * number) as u64);
        let cluster = |_| match rng.random_range(0..10) < none {
            true => -1 - rng.random_range(0..3_i64),
            false => rng.random_range(0..number as i64),
        };
        Self { dims, number, clusters: (0..dims.iter().product()).map(cluster).collect() }
    }

    fn tensor(&self, device: &Device) -> Tensor<3, Int> {
        integers(&self.clusters, self.dims, device)
    }

    fn check(&self, found: ClusterOrder) {
        let list = |x: Tensor<3, Int>| {
            assert_eq!(x.dims(), self.dims);
            whole_numbers(x)
        };
        let (order, tokens) = (list(found.order), list(found.tokens_by_cluster));
        assert_eq!(found.padding_columns.dims(), self.dims[..2]);
        let none = whole_numbers(found.padding_columns);
        let columns = self.dims[2];
        for (row, clusters) in self.clusters.chunks(columns).enumerate() {
            let of_row = |list: &[i64]| list[row * columns..][..columns].to_vec();
            let mut expected: Vec<i64> = (0..columns as i64).collect();
            expected.sort_by_key(|&column| clusters[column as usize] >= 0);
            assert_eq!(of_row(&order), expected, "the order of row {row} of {:?}", self.dims);
            let cluster = |place: i64| clusters[expected[place as usize] as usize].max(-1);
            let mut sorted: Vec<i64> = (0..columns as i64).collect();
            sorted.sort_by_key(|&place| cluster(place));
            assert_eq!(of_row(&tokens), sorted, "the tokens of row {row} of {:?}", self.dims);
            let without = clusters.iter().filter(|&&cluster| cluster < 0).count();
            assert_eq!(none[row], without as i64);
        }
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::drawn([1, 1, 1], 1, 0),
        Case::drawn([1, 1, 1], 1, 10),
        Case::drawn([2, 3, 7], 2, 4),
        Case::drawn([1, 2, 64], 16, 0),
        Case::drawn([3, 1, 65], 17, 10),
        Case::drawn([1, 2, 511], 256, 3),
        Case::drawn([2, 2, 1025], 257, 1),
        Case::drawn([1, 1, 5000], 5000, 5),
        Case::drawn([1, 1, 3], 1 << 20, 0),
        Case::drawn([1, 2, 700], 1, 2),
    ]
}

#[test]
fn columns_are_sorted_by_cluster() {
    for backend in all_backends() {
        let device = &backend.device;
        for case in cases() {
            let sorted = |clusters| {
                answer(&backend, "sort_by_cluster", |kernels| {
                    kernels.sort_by_cluster(clusters, case.number)
                })
            };
            println!("{}, {:?} of {}", backend.name, case.dims, case.number);
            poison(device, &[case.clusters.len(); 3]);
            case.check(sorted(case.tensor(device)));
            // Columns that do not lie side by side.
            case.check(sorted(turned(&case.tensor(device), 0, 2)));
            case.check(Reference.sort_by_cluster(case.tensor(device), case.number).unwrap());
        }
    }
}

#[test]
fn group_refuses() {
    let by = RefusedBy("sort_by_cluster");
    let none = |device: &Device, dims: [usize; 3]| Tensor::<3, Int>::zeros(dims, device);
    assert_eq!(sort_by_cluster(none(&host(), [1, 1, 4]), 2).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let refused =
            |dims, number| sort_by_cluster(none(&backend.device, dims), number).unwrap_err();
        let value = |what| by.value(what, 0, "1 or more");
        assert_eq!(refused([1, 1, 4], 0), value("number"));
        assert_eq!(refused([1, 1, 0], 2), value("columns"));
        assert_eq!(refused([1, 0, 4], 2), value("heads"));
    }
}
