//! Entries of one member and of many, heads of different lengths, sizes that cross a tile and a
//! split.

use briquette::ops::OpError;
use briquette_kernels::decode;
use briquette_ops::{ClusteredKv, DecodeInput, KvLayout, RotaryTables, Scoring, Tail};
use briquette_tests::{
    backends::host,
    inputs::Noise,
    reference::{Kind, attention::weighted_mean},
};
use burn::tensor::{DType, Device, Int, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Case as _, Drawn, attention_elsewhere, attention_of_cases, capped_with_sinks};
use crate::{
    attention::{rotary_tables, rotated, scoring},
    common::{
        RefusedBy, extend_behind, f64s, floats, integers, kernel_backends, offsets, rows, turned,
    },
};

const SCALE: f64 = 0.2;

#[derive(Debug)]
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
    kind: Kind,
}

fn cases() -> Vec<Case> {
    let case = |(batch, query_heads, kv_heads), head_dim, tokens: &[_], tail, capacity, encoded| {
        let (tokens, kind) = (tokens.to_vec(), Kind::default());
        Case { batch, query_heads, kv_heads, head_dim, tokens, tail, capacity, encoded, kind }
    };
    let of_kind = |case: Case| Case { kind: capped_with_sinks(case.query_heads), ..case };
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
        of_kind(case((2, 4, 2), 64, &[(64, 16), (0, 0), (1, 1), (63, 1)], 1, 1, Some((99, false)))),
        of_kind(case((1, 5, 1), 100, &[(200, 20)], 64, 64, None)),
        of_kind(case((2, 24, 2), 128, &[(300, 100), (16, 16), (0, 0), (129, 3)], 0, 30, None)),
    ]
}

impl super::Case for Case {
    const OPERATION: &'static str = "clustered_attention";

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn is_rounded(&self) -> bool {
        self.encoded.is_some()
    }

    fn draw(&self, dtype: DType, device: &Device) -> Drawn {
        let Self { batch, query_heads, kv_heads, head_dim, tail, capacity, .. } = *self;
        let host = host();
        let mut noise = Noise::new(head_dim as u64);
        let mut rng = ChaCha8Rng::seed_from_u64(head_dim as u64);
        let mut random = |shape| noise.tensor(shape, &host);
        let (tokens, entries): (Vec<usize>, Vec<usize>) = self.tokens.iter().copied().unzip();
        let (first_tokens, first_entries) = (offsets(&tokens), offsets(&entries));
        let [all_tokens, all_entries]: [usize; 2] =
            [&tokens, &entries].map(|list| list.iter().sum());
        // Not even the longest head need have a token in every column.
        let width = tokens.iter().max().unwrap() + head_dim % 4;
        let columns = width + tail;
        let queries = random([batch, query_heads, 1, head_dim]).cast(dtype);
        let [directions, values] =
            [(); 2].map(|()| random([1, 1, all_entries, head_dim]).cast(dtype));
        let [tail_keys, tail_values] =
            [(); 2].map(|()| random([batch, kv_heads, capacity, head_dim]).cast(dtype));
        let norms = random([1, 1, all_tokens, 1]);
        // Every entry has a member, the others belong to any of their head; nothing is in order.
        let mut entry = Vec::new();
        for (kv, &(count, of_head)) in self.tokens.iter().enumerate() {
            for token in 0..count {
                let own = if token < of_head { token } else { rng.random_range(0..of_head) };
                entry.push(first_entries[kv + 1] - 1 - own);
            }
        }

        let (positions_held, own_positions) = self.encoded.unwrap_or((1, false));
        let of_heads = if own_positions { kv_heads } else { 1 };
        let positions: Vec<usize> =
            (0..batch * of_heads * columns).map(|_| rng.random_range(0..positions_held)).collect();
        // Half-precision tables for keys of 16 bits, as `RotaryEmbedding::tables_for` makes them.
        let table_dtype = if dtype == DType::F32 { DType::F32 } else { DType::F16 };
        let tables =
            self.encoded.map(|(positions, _)| rotary_tables(positions, head_dim / 2, table_dtype));
        let tables_held = tables.as_ref().map(|tables| tables.each_ref().map(f64s));

        let group = query_heads / kv_heads;
        let (mut output, mut all_weights) = (Vec::new(), Vec::new());
        let norm = f64s(&norms);
        let (directions_held, values_held) = (rows(&directions), rows(&values));
        let (tail_keys_held, tail_values_held) = (rows(&tail_keys), rows(&tail_values));
        for (head, query) in rows(&queries).iter().enumerate() {
            let kv = head / group;
            let own = first_tokens[kv]..first_tokens[kv + 1];
            let key = |token: usize| -> Vec<f64> {
                directions_held[entry[token]].iter().map(|x| x * norm[token]).collect()
            };
            let mut keys: Vec<Vec<f64>> = own.clone().map(key).collect();
            keys.extend_from_slice(&tail_keys_held[kv * capacity..][..tail]);
            if let Some(tables) = &tables_held {
                let row = if own_positions { kv } else { kv / kv_heads };
                let of_row = &positions[row * columns..][..columns];
                let of_keys = &of_row[columns - keys.len()..];
                keys.iter_mut()
                    .zip(of_keys)
                    .for_each(|(key, &position)| *key = rotated(key, position, tables));
            }
            let mut held: Vec<Vec<f64>> =
                own.map(|token| values_held[entry[token]].clone()).collect();
            held.extend_from_slice(&tail_values_held[kv * capacity..][..tail]);
            all_weights.extend(std::iter::repeat_n(0.0, columns - held.len()));
            if held.is_empty() {
                output.extend(std::iter::repeat_n(0.0, head_dim));
                continue;
            }
            let unordered = vec![0; keys.len()];
            let seen = (&keys[..], &unordered[..]);
            let weights = self.kind.weights(head % query_heads, (query, 0), seen, SCALE);
            output.extend(weighted_mean(&weights, &held));
            all_weights.extend(weights);
        }

        let to = |x: &Tensor<4>| x.clone().to_device(device);
        let list = |x: &Tensor<4>| to(x).reshape([all_entries, head_dim]);
        // A row of columns a head: padding, where anything may stand, and then the tokens.
        let rectangle = [batch, kv_heads, width];
        let (mut entry_of, mut members, mut norm_of) = (Vec::new(), Vec::new(), Vec::new());
        for (kv, count) in tokens.iter().enumerate() {
            let padding = width - count;
            let own = first_tokens[kv]..first_tokens[kv + 1];
            let entries = entry[own.clone()].iter().map(|entry| entry - first_entries[kv]);
            extend_behind(&mut entry_of, padding, 0, entries);
            extend_behind(&mut norm_of, padding, f32::NAN, norm[own].iter().map(|&x| x as f32));
            let mut of_tokens: Vec<usize> = (padding..width).collect();
            of_tokens.sort_by_key(|&column| entry[first_tokens[kv] + column - padding]);
            members.extend((0..padding).chain(of_tokens));
        }
        let padding: Vec<usize> = tokens.iter().map(|count| width - count).collect();
        let rotary = tables.map(|tables| {
            let [cosines, sines] = tables.map(|table| table.to_device(device));
            let positions = integers(&positions, [batch, of_heads, columns], device);
            RotaryTables { cosines, sines, positions }
        });
        let kv = KvLayout::Clustered(ClusteredKv {
            directions: list(&directions),
            values: list(&values),
            tokens_by_cluster: integers(&members, rectangle, device),
            cluster_of_token: integers(&entry_of, rectangle, device),
            norms: floats(&norm_of, rectangle, device),
            padding_columns: integers(&padding, [padding.len()], device),
            offsets: integers(&first_entries, [first_entries.len()], device),
            rotary,
            tail: Tail { keys: to(&tail_keys), values: to(&tail_values), entries: tail },
        });
        let input = DecodeInput {
            queries: to(&queries),
            kv,
            scoring: scoring(&self.kind, SCALE, device),
            weights: true,
        };
        Drawn { input, columns, output, weights: all_weights }
    }

    fn elsewhere(kv: KvLayout) -> KvLayout {
        let KvLayout::Clustered(kv) = kv else { unreachable!("the case is of clusters") };
        let wide = |x: Tensor<2>| {
            let channels = x.dims()[1];
            Tensor::cat(vec![x.clone(), x], 1).narrow(1, 0, channels)
        };
        // A column of a wider tensor.
        let apart = |x: Tensor<1, Int>| {
            let wide: Tensor<2, Int> = Tensor::stack(vec![x.clone(), x], 1);
            wide.narrow(1, 0, 1).squeeze_dim::<1>(1)
        };
        KvLayout::Clustered(ClusteredKv {
            tokens_by_cluster: turned(&kv.tokens_by_cluster, 0, 2),
            cluster_of_token: turned(&kv.cluster_of_token, 0, 2),
            norms: turned(&kv.norms, 1, 2),
            padding_columns: apart(kv.padding_columns),
            offsets: apart(kv.offsets),
            directions: turned(&kv.directions, 0, 1),
            values: wide(kv.values),
            tail: Tail {
                keys: turned(&kv.tail.keys, 1, 2),
                values: turned(&kv.tail.values, 1, 3),
                ..kv.tail
            },
            rotary: kv
                .rotary
                .map(|rotary| RotaryTables { cosines: wide(rotary.cosines), ..rotary }),
        })
    }
}

#[test]
fn shared_attention_of_cases() {
    attention_of_cases(&cases());
}

#[test]
fn shared_attention_elsewhere() {
    attention_elsewhere(&cases()[2..4]);
}

#[test]
fn shared_attention_refuses() {
    let by = RefusedBy(Case::OPERATION);
    let case = &cases()[1];
    assert_eq!(decode(&case.draw(DType::F32, &host()).input).unwrap_err(), by.device());
    for backend in kernel_backends() {
        // 2 heads of 5 columns and a tail of 1.
        let good = case.draw(DType::F32, &backend.device).input;
        if Case::attend(&backend, &good).is_none() {
            continue;
        }
        let of_queries = |dims: [usize; 4]| {
            let queries = Tensor::zeros(dims, &backend.device);
            decode(&DecodeInput { queries, ..good.clone() }).unwrap_err()
        };
        let refuses = |change: &dyn Fn(&mut ClusteredKv), expected: OpError| {
            let mut input = good.clone();
            let KvLayout::Clustered(kv) = &mut input.kv else { unreachable!() };
            change(kv);
            assert_eq!(decode(&input).unwrap_err(), expected);
        };
        let expected = by.shape("queries", &[1, 2, 2, 16], &[1, 2, 1, 16]);
        assert_eq!(of_queries([1, 2, 2, 16]), expected);
        let expected = by.value("query_heads", 3, "a multiple of 2");
        assert_eq!(of_queries([1, 3, 1, 16]), expected);
        let scoring = Scoring { window: Some(3.into()), ..good.scoring.clone() };
        let error = decode(&DecodeInput { scoring, ..good.clone() }).unwrap_err();
        assert_eq!(error, OpError::NoKernel { operation: Case::OPERATION, what: "window" });
        let expected = by.shape("norms", &[1, 2, 4], &[1, 2, 5]);
        refuses(&|kv| kv.norms = kv.norms.clone().narrow(2, 0, 4), expected);
        let expected = by.shape("padding_columns", &[1], &[2]);
        refuses(&|kv| kv.padding_columns = kv.padding_columns.clone().narrow(0, 0, 1), expected);
        refuses(&|kv| kv.tail.entries = 5, by.value("tail", 5, "at most 4"));
        let expected = by.shape("positions", &[1, 2, 6], &[1, 2, 7]);
        refuses(&|kv| kv.tail.entries = 2, expected);
        let narrow = |kv: &mut ClusteredKv| {
            let rotary = kv.rotary.as_mut().unwrap();
            rotary.sines = rotary.sines.clone().narrow(0, 0, 19);
        };
        refuses(&narrow, by.shape("sines", &[19, 8], &[20, 8]));
    }
}
