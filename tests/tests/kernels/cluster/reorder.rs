//! Columns of EMS clusters, extended, assigned and reordered: heads of one length and of many,
//! columns that hold nothing, statistics of query heads, more columns than a cube has units.

use briquette::ops::{AttentionStatistics, OpError, Reference, Statistic};
use briquette_kernels::{assign_clusters, extend, reorder_tokens};
use briquette_ops::{
    AssignClustersInput, AssignClustersOutput, ClusterOps, ExtendInput, MergedRows,
    ReorderTokensInput, ReorderTokensOutput,
};
use briquette_tests::backends::host;
use burn::tensor::{DType, Device, Int, Tensor};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::behind;
use crate::common::{
    RefusedBy, all_backends, answer, binds_too_few, extend_behind, floats, integers,
    kernel_backends, numbers, poison, whole_numbers,
};

/// Similarity to a cluster above which a row is merged into it.
const THRESHOLD: f64 = 0.5;

#[derive(Clone, Debug)]
struct Case {
    /// Batch rows and heads.
    lists: [usize; 2],
    columns: usize,
    rows: usize,
    /// Columns that stay, clusters, and rows that may be merged into those, of each head.
    counts: Vec<usize>,
    clusters: Vec<usize>,
    merging: Vec<usize>,
    /// Padding among what those may be merged with.
    padding: Vec<usize>,
    /// Heads each track has for each, as many of all.
    groups: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let case = |lists, columns, rows: usize, counts: &[(usize, usize)], groups: &[_]| {
        let (counts, clusters): (Vec<usize>, Vec<usize>) = counts.iter().copied().unzip();
        let most = clusters.iter().max().unwrap();
        let merging = clusters.iter().map(|clusters| (rows - clusters) * 2 / 3).collect();
        let padding = clusters.iter().map(|clusters| most - clusters).collect();
        Case { lists, columns, rows, counts, clusters, merging, padding, groups: groups.to_vec() }
    };
    vec![
        case([1, 1], 1, 1, &[(1, 1)], &[]),
        case([1, 2], 9, 4, &[(7, 3), (7, 3)], &[1]),
        case([2, 2], 40, 12, &[(30, 10), (5, 5), (1, 1), (17, 2)], &[3, 3, 3]),
        case([1, 3], 300, 70, &[(290, 64), (257, 60), (300, 1)], &[1, 1, 1, 1]),
    ]
}

/// A table and what comes of it, each a number a head and place, heads one after another.
#[derive(Clone, Debug, Default)]
struct Drawn {
    rows: Vec<i64>,
    /// The rows that stay, ascending, and those that may be merged: with what, and how like it they
    /// are.
    stay: Vec<i64>,
    merged: Vec<i64>,
    nearest: Vec<i64>,
    similarity: Vec<f32>,
    representatives: Vec<i64>,
    positions: Vec<i64>,
    scores: Vec<f32>,
    clusters: Vec<i64>,
    ranks: Vec<f32>,
    /// The columns that stay, their clusters, and their order.
    left: Vec<i64>,
    of_left: Vec<i64>,
    order: Vec<i64>,
    norms: Vec<f32>,
    lengths: Vec<f32>,
    statistics: Vec<Vec<f32>>,
    new_positions: Vec<i64>,
    new_clusters: Vec<i64>,
    new_representatives: Vec<i64>,
    new_norms: Vec<f32>,
    new_statistics: Vec<Vec<f32>>,
}

impl Case {
    fn width(&self) -> usize {
        self.counts.iter().copied().max().unwrap()
    }

    fn merging_width(&self) -> usize {
        self.merging.iter().copied().max().unwrap()
    }

    fn draw(&self) -> Drawn {
        let mut rng = ChaCha8Rng::seed_from_u64(self.columns as u64);
        let mut drawn = Drawn {
            statistics: vec![Vec::new(); self.groups.len()],
            new_statistics: vec![Vec::new(); self.groups.len()],
            ..Drawn::default()
        };
        for head in 0..self.counts.len() {
            self.draw_head(&mut rng, head, &mut drawn);
        }
        drawn
    }

    fn draw_head(&self, rng: &mut ChaCha8Rng, head: usize, drawn: &mut Drawn) {
        let Self { columns, rows, .. } = *self;
        let (count, clusters) = (self.counts[head], self.clusters[head]);
        let (width, fillers) = (self.width(), self.padding[head]);
        // Of the rows some stay, some may be merged into those, and some are gone. What is merged
        // counts clusters from where padding ends.
        let mut all_rows: Vec<usize> = (0..rows).collect();
        all_rows.shuffle(rng);
        let (stay, others) = all_rows.split_at_mut(clusters);
        let merged = &mut others[..self.merging[head]];
        stay.sort_unstable();
        merged.sort_unstable();
        let mut cluster_of_row = vec![0_i64; rows];
        for (number, &row) in stay.iter().enumerate() {
            cluster_of_row[row] = number as i64 + 1;
        }
        let wider = self.merging_width() - merged.len();
        extend_behind(&mut drawn.stay, fillers, 0, stay.iter().map(|&row| row as i64));
        let all_merged = merged.iter().map(|&row| row as i64);
        extend_behind(&mut drawn.merged, wider, rows as i64 - 1, all_merged);
        drawn.nearest.extend(std::iter::repeat_n(fillers as i64, wider));
        drawn.similarity.extend(std::iter::repeat_n(1.0, wider));
        for &mut row in merged {
            let (nearest, like) = (rng.random_range(0..clusters), rng.random_range(0..3));
            drawn.nearest.push((fillers + nearest) as i64);
            // The threshold itself is not enough, nor is NaN.
            drawn.similarity.push([THRESHOLD as f32, 0.75, f32::NAN][like]);
            cluster_of_row[row] = if like == 1 { nearest as i64 + 1 } else { 0 };
        }
        let mut places: Vec<usize> = (0..columns).collect();
        places.shuffle(rng);
        let representative_of: Vec<usize> = places[..clusters].to_vec();
        let mut row_of: Vec<i64> = (0..columns).map(|_| rng.random_range(0..rows as i64)).collect();
        for (number, &column) in representative_of.iter().enumerate() {
            let of_cluster = |row: &usize| cluster_of_row[*row] == number as i64 + 1;
            row_of[column] = (0..rows).find(of_cluster).unwrap() as i64;
        }
        let positions: Vec<i64> = (0..columns)
            .map(|column| {
                let holds = representative_of.contains(&column) || rng.random_range(0..4) > 0;
                if holds { column as i64 * 3 } else { -1 }
            })
            .collect();
        let scores: Vec<f32> = (0..columns).map(|_| rng.random_range(0.0..9.0)).collect();
        let cluster = |column: usize| match positions[column] {
            -1 => -1,
            _ => cluster_of_row[row_of[column] as usize] - 1,
        };
        let is_representative = |column: usize| {
            usize::try_from(cluster(column))
                .is_ok_and(|cluster| representative_of[cluster] == column)
        };
        let rank = |column: usize| match cluster(column) {
            -1 => f32::MIN,
            _ if is_representative(column) => f32::MAX,
            _ => scores[column],
        };

        // Representatives stay, and any others.
        let mut left: Vec<usize> = representative_of.clone();
        left.extend(places[clusters..].iter().take(count - clusters));
        left.sort_unstable();
        let padding = width - left.len();
        let all: Vec<Option<usize>> =
            std::iter::repeat_n(None, padding).chain(left.into_iter().map(Some)).collect();
        let of = |place: usize| all[place].map_or(-1, cluster);
        let mut order: Vec<usize> = (0..width).collect();
        order.sort_by_key(|&place| (of(place) >= 0, place));

        let norms: Vec<f32> = (0..columns).map(|_| rng.random_range(0.5..2.0)).collect();
        let lengths: Vec<f32> = (0..rows).map(|_| rng.random_range(0.5..2.0)).collect();
        let statistics: Vec<Vec<f32>> = self
            .groups
            .iter()
            .map(|group| (0..group * columns).map(|_| rng.random_range(0.0..5.0)).collect())
            .collect();
        let held = |place: usize| all[order[place]].filter(|_| of(order[place]) >= 0);
        let held_at = || (0..width).map(held);
        let positions_of = held_at().map(|column| column.map_or(-1, |column| positions[column]));
        drawn.new_positions.extend(positions_of);
        drawn.new_clusters.extend((0..width).map(|place| of(order[place]).max(0)));
        let norm = |column: usize| norms[column] * lengths[row_of[column] as usize];
        drawn.new_norms.extend(held_at().map(|column| column.map_or(0.0, norm)));
        for (to, from) in drawn.new_statistics.iter_mut().zip(&statistics) {
            for track in from.chunks(columns) {
                to.extend(held_at().map(|column| column.map_or(0.0, |column| track[column])));
            }
        }
        // Places of representatives are counted behind the padding of their head.
        let places = representative_of.iter().map(|&representative| {
            let place = held_at().position(|column| column == Some(representative)).unwrap();
            (place - padding) as i64
        });
        extend_behind(&mut drawn.new_representatives, fillers, 0, places);

        drawn.clusters.extend((0..columns).map(cluster));
        drawn.ranks.extend((0..columns).map(rank));
        drawn.left.extend(all.iter().map(|column| column.unwrap_or(0) as i64));
        drawn.of_left.extend((0..width).map(of));
        drawn.order.extend(order.iter().map(|&place| place as i64));
        let representatives = representative_of.iter().map(|&column| column as i64);
        extend_behind(&mut drawn.representatives, fillers, 0, representatives);
        drawn.rows.extend(row_of);
        drawn.positions.extend(positions);
        drawn.scores.extend(scores);
        drawn.norms.extend(norms);
        drawn.lengths.extend(lengths);
        drawn.statistics.iter_mut().zip(statistics).for_each(|(all, track)| all.extend(track));
    }

    fn ints(&self, numbers: &[i64], device: &Device) -> Tensor<3, Int> {
        let [batch, heads] = self.lists;
        integers(numbers, [batch, heads, numbers.len() / (batch * heads)], device)
    }

    fn floats(&self, numbers: &[f32], heads: usize, device: &Device) -> Tensor<3> {
        let batch = self.lists[0];
        floats(numbers, [batch, heads, numbers.len() / (batch * heads)], device)
    }

    fn assign_clusters(&self, drawn: &Drawn, device: &Device) -> AssignClustersInput<'_> {
        AssignClustersInput {
            rows: self.ints(&drawn.rows, device),
            height: self.rows,
            kept_rows: self.ints(&drawn.stay, device),
            cluster_counts: &self.clusters,
            merged: (self.merging_width() > 0).then(|| MergedRows {
                rows: self.ints(&drawn.merged, device),
                counts: &self.merging,
                nearest: self.ints(&drawn.nearest, device),
                cluster_offset: &self.padding,
                similarity: self.floats(&drawn.similarity, self.lists[1], device),
                threshold: THRESHOLD,
            }),
            representatives: self.ints(&drawn.representatives, device),
            positions: self.ints(&drawn.positions, device),
            scores: self.floats(&drawn.scores, self.lists[1], device),
        }
    }

    fn reorder_tokens(&self, drawn: &Drawn, device: &Device) -> ReorderTokensInput<'_> {
        let heads = self.lists[1];
        let kinds =
            [Statistic::Sums, Statistic::Squares, Statistic::LocalPast, Statistic::LocalCurrent];
        let all = drawn.statistics.iter().zip(&self.groups).zip(kinds);
        let track = |((track, group), kind): ((&Vec<f32>, &usize), Statistic)| {
            (kind, self.floats(track, heads * group, device))
        };
        let statistics = AttentionStatistics::new(all.map(track));
        ReorderTokensInput {
            columns: self.ints(&drawn.left, device),
            clusters: self.ints(&drawn.of_left, device),
            order: self.ints(&drawn.order, device),
            counts: &self.counts,
            representatives: self.ints(&drawn.representatives, device),
            cluster_counts: &self.clusters,
            rows: self.ints(&drawn.rows, device),
            norms: self.floats(&drawn.norms, heads, device),
            lengths: self.floats(&drawn.lengths, heads, device),
            positions: self.ints(&drawn.positions, device),
            statistics,
        }
    }
}

impl Drawn {
    fn check_clusters(&self, AssignClustersOutput { clusters, ranks }: AssignClustersOutput) {
        assert_eq!(whole_numbers(clusters), self.clusters);
        assert_eq!(numbers(ranks), self.ranks);
    }

    fn check_regrouped(&self, found: ReorderTokensOutput) {
        assert_eq!(whole_numbers(found.positions), self.new_positions);
        assert_eq!(whole_numbers(found.cluster_of_token), self.new_clusters);
        assert_eq!(whole_numbers(found.representatives), self.new_representatives);
        assert_eq!(numbers(found.norms), self.new_norms);
        let statistics: Vec<Vec<f32>> =
            found.statistics.iter().map(|(_, track)| numbers(track)).collect();
        assert_eq!(statistics, self.new_statistics);
    }
}

#[test]
fn regroup_of_cases() {
    for backend in all_backends() {
        for case in cases() {
            println!("{}, {case:?}", backend.name);
            let drawn = case.draw();
            poison(&backend.device, &[drawn.clusters.len(), drawn.new_clusters.len()]);
            let call = case.assign_clusters(&drawn, &backend.device);
            let elsewhere = AssignClustersInput {
                rows: behind(&call.rows, 2),
                kept_rows: behind(&call.kept_rows, 2),
                merged: call.merged.clone().map(|merged| MergedRows {
                    rows: behind(&merged.rows, 2),
                    nearest: behind(&merged.nearest, 2),
                    similarity: behind(&merged.similarity, 2),
                    ..merged
                }),
                representatives: behind(&call.representatives, 2),
                scores: behind(&call.scores, 2),
                positions: behind(&call.positions, 2),
                ..call.clone()
            };
            for call in [call.clone(), elsewhere] {
                drawn.check_clusters(answer(&backend, "assign_clusters", |kernels| {
                    kernels.assign_clusters(call)
                }));
            }
            drawn.check_clusters(Reference.assign_clusters(call).unwrap());
            let call = case.reorder_tokens(&drawn, &backend.device);
            let elsewhere = ReorderTokensInput {
                columns: behind(&call.columns, 2),
                order: behind(&call.order, 2),
                representatives: behind(&call.representatives, 2),
                norms: behind(&call.norms, 2),
                statistics: call.statistics.clone().map(|track| behind(&track, 2)),
                ..call.clone()
            };
            for call in [call.clone(), elsewhere] {
                drawn.check_regrouped(answer(&backend, "reorder_tokens", |kernels| {
                    kernels.reorder_tokens(call)
                }));
            }
            drawn.check_regrouped(Reference.reorder_tokens(call).unwrap());
        }
    }
}

#[test]
fn regroup_refuses() {
    let case = cases().swap_remove(2);
    let drawn = case.draw();
    let (by, then_by) = (RefusedBy("assign_clusters"), RefusedBy("reorder_tokens"));
    let error = assign_clusters(case.assign_clusters(&drawn, &host())).unwrap_err();
    assert_eq!(error, by.device());
    let error = reorder_tokens(case.reorder_tokens(&drawn, &host())).unwrap_err();
    assert_eq!(error, then_by.device());
    for backend in kernel_backends() {
        let good = case.assign_clusters(&drawn, &backend.device);
        let whole = case.reorder_tokens(&drawn, &backend.device);
        let error = assign_clusters(good.clone()).err().or(reorder_tokens(whole.clone()).err());
        if error.is_some_and(|error| binds_too_few(&backend, &error)) {
            continue;
        }
        let few = AssignClustersInput { cluster_counts: &case.clusters[1..], ..good.clone() };
        let expected = by.value("the length of counts", 3, "4");
        assert_eq!(assign_clusters(few).unwrap_err(), expected);
        let with = |change: fn(&mut MergedRows<'_>)| {
            let mut call = good.clone();
            call.merged.iter_mut().for_each(change);
            assign_clusters(call).unwrap_err()
        };
        let narrow = with(|merged| merged.nearest = merged.nearest.clone().narrow(2, 0, 6));
        assert!(matches!(narrow, OpError::Shape { tensor: "nearest", .. }));
        let int = with(|merged| merged.similarity = merged.similarity.clone().cast(DType::F16));
        assert!(matches!(int, OpError::Value { what: "similarity", .. }));
        let mut beyond = case.clone();
        beyond.padding[3] = 11;
        for (merging, expected) in [
            (8, by.value("counts", 8, "at most 7")),
            (1, by.value("cluster_offset", 11, "at most 10")),
        ] {
            beyond.merging[0] = merging;
            let call = beyond.assign_clusters(&drawn, &backend.device);
            assert_eq!(assign_clusters(call).unwrap_err(), expected);
        }

        let mut many = case.counts.clone();
        many[0] = 31;
        let error = reorder_tokens(ReorderTokensInput { counts: &many, ..whole }).unwrap_err();
        assert_eq!(error, then_by.value("counts", 31, "at most 30"));
    }
}

/// A table of `[tokens, clusters, unclustered]` in heads of a row, and what it is with those
/// behind. Numbers at padding are large.
#[derive(Default)]
struct Table {
    heads: usize,
    counts: Vec<[usize; 3]>,
    cluster_of_token: Vec<i64>,
    norms: Vec<f32>,
    representatives: Vec<i64>,
    /// `None` at padding.
    rows: Vec<Option<i64>>,
    all_norms: Vec<Option<f32>>,
    all_representatives: Vec<Option<i64>>,
}

impl Table {
    /// With so many padding columns more than the longest head needs.
    fn draw(heads: usize, counts: &[[usize; 3]], more: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(counts.len() as u64);
        let most = |of: fn(&[usize; 3]) -> usize| counts.iter().map(of).max().unwrap() + more;
        let (width, height) = (most(|count| count[0]), most(|count| count[1]));
        let (columns, rows) =
            (most(|count| count[0] + count[2]), most(|count| count[1] + count[2]));
        let mut drawn = Self { heads, counts: counts.to_vec(), ..Self::default() };
        for &[tokens, clusters, unclustered] in counts {
            let cluster_of_row: Vec<i64> =
                (0..tokens).map(|_| rng.random_range(0..clusters.max(1) as i64)).collect();
            let norms: Vec<f32> = (0..tokens).map(|_| rng.random_range(0.5..2.0)).collect();
            let representatives: Vec<i64> =
                (0..clusters).map(|_| rng.random_range(0..tokens.max(1) as i64)).collect();
            let (first_column, first_row) =
                (columns - tokens - unclustered, rows - clusters - unclustered);
            let of_clusters = cluster_of_row.iter().map(|cluster| Some(first_row as i64 + cluster));
            extend_behind(&mut drawn.rows, first_column, None, of_clusters);
            drawn.rows.extend((rows - unclustered..rows).map(|row| Some(row as i64)));
            let own_norms = norms.iter().copied().map(Some);
            extend_behind(&mut drawn.all_norms, first_column, None, own_norms);
            drawn.all_norms.extend(vec![Some(1.0); unclustered]);
            let tokens_of = representatives.iter().map(|token| Some(first_column as i64 + token));
            extend_behind(&mut drawn.all_representatives, first_row, None, tokens_of);
            let others = (columns - unclustered..columns).map(|column| Some(column as i64));
            drawn.all_representatives.extend(others);
            extend_behind(&mut drawn.cluster_of_token, width - tokens, 0, cluster_of_row);
            extend_behind(&mut drawn.norms, width - tokens, f32::NAN, norms);
            extend_behind(&mut drawn.representatives, height - clusters, 0, representatives);
        }
        drawn
    }

    fn call(&self, device: &Device) -> ExtendInput<'_> {
        let lists = self.counts.len();
        let dims = |numbers: usize| [lists / self.heads, self.heads, numbers / lists];
        let ints = |numbers: &[i64]| integers(numbers, dims(numbers.len()), device);
        ExtendInput {
            cluster_of_token: ints(&self.cluster_of_token),
            norms: floats(&self.norms, dims(self.norms.len()), device),
            representatives: ints(&self.representatives),
            counts: &self.counts,
            columns: self.rows.len() / lists,
            rows: self.all_representatives.len() / lists,
        }
    }
}

/// Fillers may be any number.
fn same<T: PartialEq + Copy + std::fmt::Debug>(found: &[T], expected: &[Option<T>]) {
    assert_eq!(found.len(), expected.len());
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(expected.is_none_or(|expected| expected == *found), "{found:?} at {place}");
    }
}

#[test]
fn extend_of_cases() {
    let cases: [(usize, &[[usize; 3]], usize); 5] = [
        (1, &[[1, 1, 0]], 0),
        (2, &[[6, 3, 2], [6, 3, 2]], 1),
        (1, &[[5, 2, 0], [9, 4, 1], [0, 0, 3]], 0),
        (2, &[[300, 40, 1], [280, 64, 5], [1, 1, 0], [0, 0, 0]], 3),
        (1, &[[257, 257, 300]], 0),
    ];
    for backend in all_backends() {
        for (heads, counts, more) in cases {
            println!("{}, {counts:?}", backend.name);
            let table = Table::draw(heads, counts, more);
            let (columns, rows) = (table.rows.len(), table.all_representatives.len());
            let within = |numbers: &[i64], most: usize| {
                assert!(numbers.iter().all(|number| (0..most as i64).contains(number)));
            };
            let lists = counts.len();
            poison(&backend.device, &[columns, rows]);
            let call = table.call(&backend.device);
            let elsewhere = ExtendInput {
                cluster_of_token: behind(&call.cluster_of_token, 2),
                norms: behind(&call.norms, 2),
                representatives: behind(&call.representatives, 2),
                ..call.clone()
            };
            let extend = |call| answer(&backend, "extend", |kernels| kernels.extend(call));
            let found = [extend(call.clone()), extend(elsewhere), Reference.extend(call).unwrap()];
            for found in found {
                let row_of = whole_numbers(found.rows);
                within(&row_of, rows / lists);
                same(&row_of, &table.rows);
                same(&numbers(found.norms), &table.all_norms);
                let representative_of = whole_numbers(found.representatives);
                within(&representative_of, columns / lists);
                same(&representative_of, &table.all_representatives);
            }
        }
    }
}

#[test]
fn extend_refuses() {
    let by = RefusedBy("extend");
    let table = Table::draw(2, &[[6, 3, 2], [5, 2, 2]], 0);
    assert_eq!(extend(table.call(&host())).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let good = table.call(&backend.device);
        let counts = [[6, 3, 2], [5, 2, 4]];
        let error = extend(ExtendInput { counts: &counts, ..good.clone() }).unwrap_err();
        let expected = by.value("tokens with those behind", 9, "at most 8");
        assert_eq!(error, expected);
        let error = extend(ExtendInput { rows: 0, ..good }).unwrap_err();
        assert_eq!(error, by.value("rows", 0, "1 or more"));
    }
}
