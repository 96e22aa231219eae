//! Entries of one member and of many, heads of different lengths, sizes that cross a tile and a
//! split.

use briquette::ops::{
    AttentionOps, ClusteredKv, DecodeInput, DecodeOutput, KvLayout, OpError, RotaryTables, Tail,
};
use briquette_kernels::decode;
use briquette_tests::{
    backends::{Backend, host},
    inputs::Noise,
    reference::attention::{weighted_mean, weights},
    session::tolerance,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    all_backends, answer, close, integers, kernel_backends, numbers, poison, rows, wrong_shape,
    wrong_value,
};

const SCALE: f64 = 0.2;

struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Tokens and entries of each batch row and kv head.
    tokens: Vec<(usize, usize)>,
    tail: usize,
    capacity: usize,
    /// Rows of the tables of cosines and sines, and whether heads have positions of their own.
    encoded: Option<(usize, bool)>,
}

fn cases() -> Vec<Case> {
    let case = |(batch, query_heads, kv_heads), head_dim, tokens: &[_], tail, capacity, encoded| {
        let tokens = tokens.to_vec();
        Case { batch, query_heads, kv_heads, head_dim, tokens, tail, capacity, encoded }
    };
    vec![
        case((1, 1, 1), 1, &[(1, 1)], 0, 1, None),
        case((1, 2, 2), 16, &[(5, 2), (3, 3)], 1, 4, Some((20, true))),
        case((2, 4, 2), 64, &[(64, 16), (0, 0), (1, 1), (63, 1)], 1, 1, Some((99, false))),
        case((1, 8, 2), 128, &[(257, 64), (130, 130)], 3, 70, Some((300, true))),
        // One query head a cube less than the group has, and channels that no vector divides.
        case((1, 5, 1), 100, &[(200, 20)], 64, 64, None),
        case((2, 3, 3), 7, &[(0, 0), (0, 0), (0, 0), (2, 1), (9, 4), (0, 0)], 66, 67, None),
        // More channels than a cube has lanes.
        case((1, 2, 1), 130, &[(70, 9)], 2, 3, Some((80, true))),
        // So many heads that a cube has several tiles of each.
        case((16, 8, 8), 8, &[(150, 40); 128], 70, 71, Some((99, true))),
        // Where there are tensor cores: more query heads than a cube has, tiles that are not full,
        // entries of many tiles.
        case((2, 24, 2), 128, &[(300, 100), (16, 16), (0, 0), (129, 3)], 20, 30, None),
        case((1, 3, 1), 64, &[(40, 40)], 17, 17, Some((60, false))),
    ]
}

/// All numbers of a case, rounded as the device will see them.
struct Drawn {
    queries: Tensor<4>,
    kv: ClusteredKv,
    output: Vec<f64>,
    weights: Vec<f64>,
}

impl Case {
    fn draw(&self, dtype: DType, device: &Device) -> Drawn {
        let Self { batch, query_heads, kv_heads, head_dim, tail, capacity, .. } = *self;
        let host = host();
        let mut noise = Noise::new(head_dim as u64);
        let mut rng = ChaCha8Rng::seed_from_u64(head_dim as u64);
        let mut random = |shape| noise.tensor(shape, &host);
        let entries: usize = self.tokens.iter().map(|(_, entries)| entries).sum();
        let tokens: usize = self.tokens.iter().map(|(tokens, _)| tokens).sum();
        // Not even the longest head need have a token in every column.
        let longest = self.tokens.iter().map(|(tokens, _)| *tokens).max().unwrap_or(0);
        let width = longest + head_dim % 4;
        let columns = width + tail;
        let queries = random([batch, query_heads, 1, head_dim]).cast(dtype);
        let [directions, values] = [(); 2].map(|()| random([1, 1, entries, head_dim]).cast(dtype));
        let [tail_keys, tail_values] =
            [(); 2].map(|()| random([batch, kv_heads, capacity, head_dim]).cast(dtype));
        let norms = random([1, 1, tokens, 1]);
        // Every entry has a member, the others belong to any of their head; nothing is in order.
        let mut entry = Vec::new();
        let mut offsets = vec![0];
        let mut first_entry = 0;
        for &(count, of_head) in &self.tokens {
            for token in 0..count {
                let own = if token < of_head { token } else { rng.random_range(0..of_head) };
                entry.push(first_entry + of_head - 1 - own);
            }
            first_entry += of_head;
            offsets.push(entry.len());
        }

        let half = head_dim / 2;
        let (positions_held, own_positions) = self.encoded.unwrap_or((1, false));
        let angles: Vec<Vec<f64>> = (0..positions_held)
            .map(|position| (0..half).map(|i| position as f64 / (1.0 + i as f64)).collect())
            .collect();
        let of_heads = if own_positions { kv_heads } else { 1 };
        let positions: Vec<usize> =
            (0..batch * of_heads * columns).map(|_| rng.random_range(0..positions_held)).collect();
        // Half-precision tables for keys of 16 bits, as `RotaryEmbedding::tables_for` makes them.
        let table_dtype = if dtype == DType::F32 { DType::F32 } else { DType::F16 };
        let table = |of: fn(f64) -> f64| -> Vec<f32> {
            let exact: Vec<f32> = angles.iter().flatten().map(|&angle| of(angle) as f32).collect();
            let exact = Tensor::<1>::from_floats(exact.as_slice(), &host);
            exact.cast(table_dtype).cast(DType::F32).try_into_vec_as::<f32>().unwrap()
        };
        let (cosines, sines) = (table(f64::cos), table(f64::sin));
        let turn = |key: &[f64], position: usize| -> Vec<f64> {
            let mut turned = vec![0.0; head_dim];
            for i in 0..half {
                let cosine = f64::from(cosines[position * half + i]);
                let sine = f64::from(sines[position * half + i]);
                turned[i] = key[i] * cosine - key[i + half] * sine;
                turned[i + half] = key[i + half] * cosine + key[i] * sine;
            }
            turned
        };

        let group = query_heads / kv_heads;
        let (mut output, mut all_weights) = (Vec::new(), Vec::new());
        let of_rows = |x: &Tensor<4>| rows(x, head_dim);
        let norm = rows(&norms, 1);
        let (directions_held, values_held) = (of_rows(&directions), of_rows(&values));
        let (tail_keys_held, tail_values_held) = (of_rows(&tail_keys), of_rows(&tail_values));
        for (head, query) in of_rows(&queries).iter().enumerate() {
            let kv = head / group;
            let count = self.tokens[kv].0;
            let own = offsets[kv]..offsets[kv + 1];
            let mut keys: Vec<Vec<f64>> = own
                .clone()
                .map(|token| {
                    let direction = &directions_held[entry[token]];
                    direction.iter().map(|x| x * norm[token][0]).collect()
                })
                .collect();
            keys.extend_from_slice(&tail_keys_held[kv * capacity..][..tail]);
            if self.encoded.is_some() {
                for (index, key) in keys.iter_mut().enumerate() {
                    let row = if own_positions { kv } else { kv / kv_heads };
                    let column = columns - count - tail + index;
                    *key = turn(key, positions[row * columns + column]);
                }
            }
            let mut held: Vec<Vec<f64>> =
                own.map(|token| values_held[entry[token]].clone()).collect();
            held.extend_from_slice(&tail_values_held[kv * capacity..][..tail]);
            all_weights.extend(std::iter::repeat_n(0.0, columns - held.len()));
            if held.is_empty() {
                output.extend(std::iter::repeat_n(0.0, head_dim));
                continue;
            }
            let weights = weights(query, &keys, SCALE);
            output.extend(weighted_mean(&weights, &held));
            all_weights.extend(weights);
        }

        let to = |x: &Tensor<4>| x.clone().to_device(device);
        let list = |x: &Tensor<4>| to(x).reshape([entries, head_dim]);
        // A row of columns a head: padding, where anything may stand, and then the tokens.
        let rectangle = [batch, kv_heads, width];
        let (mut entry_of, mut members, mut norm_of) = (Vec::new(), Vec::new(), Vec::new());
        let (mut padding_counts, mut first_entries, mut first_entry) = (Vec::new(), vec![0], 0);
        for (&(count, of_head), first) in self.tokens.iter().zip(&offsets) {
            let padding = width - count;
            let own = *first..first + count;
            entry_of.extend(std::iter::repeat_n(0, padding));
            entry_of.extend(entry[own.clone()].iter().map(|entry| entry - first_entry));
            norm_of.extend(std::iter::repeat_n(f32::NAN, padding));
            norm_of.extend(norm[own].iter().map(|norm| norm[0] as f32));
            let mut of_tokens: Vec<usize> = (padding..width).collect();
            of_tokens.sort_by_key(|&column| entry[first + column - padding]);
            members.extend((0..padding).chain(of_tokens));
            padding_counts.push(padding);
            first_entry += of_head;
            first_entries.push(first_entry);
        }
        let norm_of = Tensor::from_data(TensorData::new(norm_of, rectangle), (device, DType::F32));
        let rotary = self.encoded.map(|(held, _)| {
            let table = |numbers: &[f32]| {
                let numbers = TensorData::new(numbers.to_vec(), [held, half]);
                Tensor::<2>::from_data(numbers, (device, DType::F32)).cast(table_dtype)
            };
            RotaryTables {
                cosines: table(&cosines),
                sines: table(&sines),
                positions: integers(&positions, device).reshape([batch, of_heads, columns]),
            }
        });
        let kv = ClusteredKv {
            directions: list(&directions),
            values: list(&values),
            tokens_by_cluster: integers(&members, device).reshape(rectangle),
            cluster_of_token: integers(&entry_of, device).reshape(rectangle),
            norms: norm_of,
            padding_columns: integers(&padding_counts, device),
            offsets: integers(&first_entries, device),
            rotary,
            tail: Tail { keys: to(&tail_keys), values: to(&tail_values), entries: tail },
        };
        Drawn { queries: to(&queries), kv, output, weights: all_weights }
    }
}

impl Drawn {
    fn input(&self) -> DecodeInput {
        let (queries, kv) = (self.queries.clone(), KvLayout::Clustered(self.kv.clone()));
        DecodeInput { queries, kv, scale: SCALE, weights: true }
    }

    /// The same numbers in tensors that are parts of wider ones, or turned.
    fn elsewhere(&self) -> DecodeInput {
        let kv = self.kv.clone();
        let wide = |x: Tensor<2>| {
            let channels = x.dims()[1];
            Tensor::cat(vec![x.clone(), x], 1).narrow(1, 0, channels)
        };
        let turned = |x: Tensor<4>| x.swap_dims(1, 3).add_scalar(0.0).swap_dims(1, 3);
        // A column of a wider tensor.
        let apart = |x: Tensor<1, Int>| {
            let wide: Tensor<2, Int> = Tensor::stack(vec![x.clone(), x], 1);
            wide.narrow(1, 0, 1).squeeze_dim::<1>(1)
        };
        let columns_first = |x: Tensor<3, Int>| x.swap_dims(0, 2).add_scalar(0).swap_dims(0, 2);
        let kv = ClusteredKv {
            tokens_by_cluster: columns_first(kv.tokens_by_cluster),
            cluster_of_token: columns_first(kv.cluster_of_token),
            norms: kv.norms.swap_dims(1, 2).add_scalar(0.0).swap_dims(1, 2),
            padding_columns: apart(kv.padding_columns),
            offsets: apart(kv.offsets),
            directions: kv.directions.swap_dims(0, 1).add_scalar(0.0).swap_dims(0, 1),
            values: wide(kv.values),
            tail: Tail {
                keys: kv.tail.keys.swap_dims(1, 2).add_scalar(0.0).swap_dims(1, 2),
                values: turned(kv.tail.values),
                ..kv.tail
            },
            rotary: kv
                .rotary
                .map(|rotary| RotaryTables { cosines: wide(rotary.cosines), ..rotary }),
        };
        let queries = turned(self.queries.clone());
        DecodeInput { queries, kv: KvLayout::Clustered(kv), ..self.input() }
    }
}

/// `None` where there are no kernels, or the device binds too few tensors for this one: stores lay
/// tokens out instead.
fn attend(backend: &Backend, input: &DecodeInput) -> Option<DecodeOutput> {
    let found = answer(backend, "clustered_attention", |kernels| kernels.decode(input));
    assert_eq!(found.is_some(), !backend.binds_few(), "{}", backend.name);
    found
}

#[test]
fn shared_attention_of_cases() {
    for backend in all_backends() {
        for dtype in backend.dtypes() {
            let cases = backend.some(cases().into_iter().enumerate().collect(), DType::F32);
            for (index, case) in cases {
                // A kernel's first launch takes seconds on a software device: half precision has a
                // few of the cases, and those that tensor cores take.
                let of_planes = case.head_dim.is_multiple_of(64);
                if dtype != DType::F32 && !of_planes && !index.is_multiple_of(3) {
                    continue;
                }
                println!("{}, {dtype:?}, {:?}, tail {}", backend.name, case.tokens, case.tail);
                let drawn = case.draw(dtype, &backend.device);
                poison(&backend.device, &[drawn.output.len(), drawn.weights.len()]);
                let input = drawn.input();
                let Some(found) = attend(&backend, &input) else { continue };
                assert_eq!(found.output.dims(), [case.batch, case.query_heads, 1, case.head_dim]);
                assert_eq!(found.output.dtype(), dtype);
                let again = attend(&backend, &input).unwrap();
                assert_eq!(found.output.to_data(), again.output.to_data());
                close(&numbers(found.output), &drawn.output, dtype, tolerance(dtype));
                let columns = drawn.kv.tokens_by_cluster.dims()[2] + drawn.kv.tail.entries;
                let weights = found.weights.expect("they are wanted");
                assert_eq!(weights.dims(), [case.batch, case.query_heads, 1, columns]);
                // Tensor cores take a turned key in the type of the cache.
                let rounded = dtype != DType::F32 && of_planes && case.encoded.is_some();
                let off = if rounded { tolerance(dtype) / 4.0 } else { 1e-4 };
                close(&numbers(weights), &drawn.weights, DType::F32, off);

                if index == 0 || of_planes {
                    let without = DecodeInput { weights: false, ..input };
                    let without = attend(&backend, &without).unwrap();
                    assert!(without.weights.is_none());
                    close(&numbers(without.output), &drawn.output, dtype, tolerance(dtype));
                }
            }
        }
    }
}

#[test]
fn shared_attention_elsewhere() {
    for backend in kernel_backends() {
        for case in &cases()[2..4] {
            println!("{}, {:?}, tail {}", backend.name, case.tokens, case.tail);
            let drawn = case.draw(DType::F32, &backend.device);
            let Some(found) = attend(&backend, &drawn.elsewhere()) else { continue };
            close(&numbers(found.output), &drawn.output, DType::F32, 1e-4);
            close(&numbers(found.weights.unwrap()), &drawn.weights, DType::F32, 1e-4);
        }
    }
}

#[test]
fn shared_attention_refuses() {
    let operation = "clustered_attention";
    let on_host = cases()[1].draw(DType::F32, &host()).input();
    assert_eq!(decode(&on_host).unwrap_err(), OpError::Device { operation });
    for backend in kernel_backends() {
        let good = cases()[1].draw(DType::F32, &backend.device);
        if attend(&backend, &good.input()).is_none() {
            continue;
        }
        let of_queries = |dims: [usize; 4]| {
            let queries = Tensor::zeros(dims, &backend.device);
            decode(&DecodeInput { queries, ..good.input() }).unwrap_err()
        };
        let refused = |change: &dyn Fn(&mut ClusteredKv)| {
            let mut kv = good.kv.clone();
            change(&mut kv);
            decode(&DecodeInput { kv: KvLayout::Clustered(kv), ..good.input() }).unwrap_err()
        };
        let shape = |tensor, found: &[usize], expected: &[usize]| {
            wrong_shape(operation, tensor, found, expected)
        };
        let value = |what, found, expected| wrong_value(operation, what, found, expected);
        let error = of_queries([1, 2, 2, 16]);
        assert_eq!(error, shape("queries", &[1, 2, 2, 16], &[1, 2, 1, 16]));
        let error = of_queries([1, 3, 1, 16]);
        assert_eq!(error, value("query_heads", 3, "a multiple of 2"));
        let width = good.kv.tokens_by_cluster.dims()[2];
        let error = refused(&|kv| kv.norms = kv.norms.clone().narrow(2, 0, width - 1));
        assert_eq!(error, shape("norms", &[1, 2, width - 1], &[1, 2, width]));
        let error = refused(&|kv| kv.padding_columns = kv.padding_columns.clone().narrow(0, 0, 1));
        assert_eq!(error, shape("padding_columns", &[1], &[2]));
        assert_eq!(refused(&|kv| kv.tail.entries = 5), value("tail", 5, "at most 4"));
        let error = refused(&|kv| kv.tail.entries = 2);
        assert_eq!(error, shape("positions", &[1, 2, 6], &[1, 2, 7]));
        let error = refused(&|kv| {
            let rotary = kv.rotary.as_mut().unwrap();
            rotary.sines = rotary.sines.clone().narrow(0, 0, 19);
        });
        assert_eq!(error, shape("sines", &[19, 8], &[20, 8]));
    }
}
