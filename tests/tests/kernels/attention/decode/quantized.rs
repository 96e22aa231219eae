//! Every number of bits and FP8, groups of few and of many tokens, heads with different numbers of
//! pages and of tokens behind them, sizes that cross a tile and a split.

use briquette::ops::{OpError, PackedNumbers};
use briquette_kernels::decode;
use briquette_ops::{
    DecodeInput, KvLayout, PackedGroups, PackedVectors, QuantizedKv, Scoring, Tail,
};
use briquette_tests::{
    backends::host,
    inputs::{Noise, round},
    reference::{Kind, attention::weighted_mean},
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{Case as _, Drawn, attention_elsewhere, attention_of_cases, capped_with_sinks};
use crate::{
    attention::scoring,
    common::{RefusedBy, floats, integers, kernel_backends, offsets, rows, turned},
};

const SCALE: f64 = 0.3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Bits, and groups of channels of a value.
    Levels(usize, usize),
    Fp8,
}

use Format::{Fp8, Levels};

#[derive(Debug)]
struct Case {
    batch: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    format: Format,
    /// Tokens a page.
    group: usize,
    /// Pages of each batch row and kv head, and its tokens in the tail.
    heads: Vec<(usize, usize)>,
    tail: usize,
    capacity: usize,
    kind: Kind,
}

fn cases() -> Vec<Case> {
    let case = |(batch, query_heads, kv_heads), head_dim, layout, heads: &[_], tail, capacity| {
        let ((format, group), heads, kind) = (layout, heads.to_vec(), Kind::default());
        Case { batch, query_heads, kv_heads, head_dim, format, group, heads, tail, capacity, kind }
    };
    let of_kind = |case: Case| Case { kind: capped_with_sinks(case.query_heads), ..case };
    vec![
        case((1, 8, 2), 128, (Levels(2, 4), 32), &[(5, 17), (9, 17)], 17, 40),
        case((2, 4, 2), 16, (Levels(2, 1), 16), &[(4, 3), (5, 1), (0, 3), (1, 2)], 3, 3),
        case((1, 6, 1), 64, (Levels(4, 2), 32), &[(3, 66)], 66, 70),
        // Words that end in channels that are none.
        case((1, 2, 2), 100, (Levels(8, 1), 32), &[(2, 1), (1, 1)], 1, 1),
        case((1, 1, 1), 12, (Levels(4, 1), 24), &[(7, 0)], 0, 1),
        case((1, 3, 3), 16, (Levels(8, 4), 4), &[(33, 2), (0, 1), (1, 0)], 2, 5),
        case((1, 1, 1), 1, (Levels(2, 1), 128), &[(1, 1)], 1, 2),
        // So many heads that a cube has several tiles of each.
        case((16, 8, 8), 8, (Levels(8, 2), 16), &[(11, 70); 128], 70, 71),
        case((1, 4, 2), 64, (Levels(1, 2), 32), &[(3, 5), (1, 2)], 5, 8),
        case((1, 2, 2), 16, (Levels(1, 1), 64), &[(2, 1), (0, 3)], 3, 4),
        // Where there are tensor cores: more query heads than a cube has, and one page.
        case((2, 12, 1), 128, (Levels(4, 4), 32), &[(9, 17), (0, 33)], 33, 40),
        case((1, 2, 2), 64, (Levels(2, 2), 32), &[(1, 0), (3, 0)], 0, 1),
        case((1, 8, 2), 128, (Fp8, 32), &[(5, 17), (9, 17)], 17, 40),
        case((2, 12, 1), 64, (Fp8, 32), &[(3, 20), (0, 31)], 31, 32),
        // Pages of few tokens and of many, channels that end a word or do not.
        case((2, 4, 2), 16, (Fp8, 5), &[(4, 3), (5, 1), (0, 3), (1, 2)], 3, 3),
        case((1, 3, 3), 100, (Fp8, 96), &[(2, 1), (0, 1), (1, 0)], 1, 1),
        case((1, 5, 1), 30, (Fp8, 32), &[(7, 0)], 0, 1),
        case((1, 1, 1), 1, (Fp8, 1), &[(3, 1)], 1, 2),
        case((1, 2, 1), 256, (Fp8, 32), &[(2, 4)], 4, 4),
        case((16, 8, 8), 8, (Fp8, 16), &[(11, 70); 128], 70, 71),
        of_kind(case((1, 6, 1), 64, (Levels(4, 2), 32), &[(3, 66)], 66, 70)),
        of_kind(case((1, 2, 2), 64, (Levels(2, 2), 32), &[(1, 0), (3, 0)], 0, 1)),
        of_kind(case((1, 1, 1), 12, (Levels(4, 1), 24), &[(7, 0)], 0, 1)),
        of_kind(case((2, 12, 1), 64, (Fp8, 32), &[(3, 20), (0, 31)], 31, 32)),
        of_kind(case((2, 4, 2), 16, (Fp8, 5), &[(4, 3), (5, 1), (0, 3), (1, 2)], 3, 3)),
    ]
}

/// Numbers of pages, `[pages][rows][numbers]`.
type Numbers = Vec<Vec<Vec<f64>>>;

/// Words of so many rows on a device.
fn word_tensor(packed: Vec<u32>, rows: usize, device: &Device) -> Tensor<2, Int> {
    let width = packed.len() / rows;
    let packed: Vec<i32> = packed.into_iter().map(|word| word as i32).collect();
    Tensor::from_data(TensorData::new(packed, [rows, width]), (device, DType::I32))
}

fn pack(
    rng: &mut ChaCha8Rng,
    [pages, rows, numbers, groups]: [usize; 4],
    bits: usize,
    dtype: DType,
    device: &Device,
) -> (PackedGroups, Numbers) {
    let a_word = 32 / bits;
    let words = numbers.div_ceil(a_word);
    let mut packed = vec![0_u32; pages * rows * words];
    let mut line = |from: f64, to: f64| -> Vec<f64> {
        let draw = |_| round(from + (to - from) * rng.random::<f64>(), dtype);
        (0..pages * rows * groups).map(draw).collect()
    };
    let (scale, min) = (line(0.0, 3.0 / f64::from((1 << bits) - 1)), line(-2.0, 0.0));
    let mut all = Vec::new();
    for page in 0..pages {
        let mut of_page = Vec::new();
        for row in 0..rows {
            let place = page * rows + row;
            let number = |index: usize| {
                let level: u32 = rng.random_range(0..1 << bits);
                packed[place * words + index / a_word] |= level << (index % a_word * bits);
                let group = place * groups + index / (numbers / groups);
                f64::from(level) * scale[group] + min[group]
            };
            of_page.push((0..numbers).map(number).collect());
        }
        all.push(of_page);
    }
    let float = |numbers: &[f64]| {
        let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
        floats(&numbers, [pages, rows * groups], device).cast(dtype)
    };
    let words = word_tensor(packed, pages, device);
    (PackedGroups { words, scale: float(&scale), min: float(&min) }, all)
}

/// The number of an E4M3 byte, as the paper defines it.
fn e4m3(byte: u32) -> f64 {
    let (exponent, fraction) = ((byte >> 3 & 15) as i32, f64::from(byte & 7) / 8.0);
    let size = match exponent {
        0 => fraction * 2f64.powi(-6),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
    };
    if byte & 128 == 0 { size } else { -size }
}

/// Vectors of random bytes, some of numbers so small that most are subnormal.
fn pack_fp8(
    rng: &mut ChaCha8Rng,
    [pages, tokens, head_dim]: [usize; 3],
    dtype: DType,
    device: &Device,
) -> (PackedVectors, Numbers) {
    let words = head_dim.div_ceil(4);
    let mut packed = vec![0_u32; pages * tokens * words];
    let mut scales = Vec::new();
    let mut vector = |token: usize| {
        let most: u32 = if rng.random() { 126 } else { 13 };
        let scale = round(3.0 * rng.random::<f64>() / e4m3(most), dtype);
        scales.push(scale as f32);
        let number = |channel: usize| {
            let byte = rng.random_range(0..=most) | rng.random_range(0..2) << 7;
            packed[token * words + channel / 4] |= byte << (channel % 4 * 8);
            e4m3(byte) * scale
        };
        (0..head_dim).map(number).collect()
    };
    let page = |page| (page * tokens..(page + 1) * tokens).map(&mut vector).collect();
    let numbers = (0..pages).map(page).collect();
    let scale = floats(&scales, [pages, tokens], device).cast(dtype);
    (PackedVectors { words: word_tensor(packed, pages, device), scale }, numbers)
}

/// Rows as columns.
fn columns_of(page: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (0..page[0].len()).map(|at| page.iter().map(|row| row[at]).collect()).collect()
}

impl super::Case for Case {
    const OPERATION: &'static str = "quantized_attention";

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// FP8 is held as it is.
    fn is_rounded(&self) -> bool {
        self.format != Fp8
    }

    fn draw(&self, dtype: DType, device: &Device) -> Drawn {
        let Self { batch, query_heads, kv_heads, head_dim, format, group, tail, capacity, .. } =
            *self;
        let host = host();
        let mut noise = Noise::new(head_dim as u64);
        let mut rng = ChaCha8Rng::seed_from_u64(head_dim as u64);
        let mut random = |shape| noise.tensor(shape, &host).cast(dtype);
        let queries = random([batch, query_heads, 1, head_dim]);
        let [tail_keys, tail_values] =
            [(); 2].map(|()| random([batch, kv_heads, capacity, head_dim]));
        let (of_heads, own): (Vec<usize>, Vec<usize>) = self.heads.iter().copied().unzip();
        let first_pages = offsets(&of_heads);
        let used: usize = of_heads.iter().sum();
        // Pages of nobody lie between those of others, in no order.
        let pages = used + 2;
        let (packed, keys, values) = match format {
            Levels(bits, groups) => {
                let keys = [pages, head_dim, group, 1];
                let (keys, channels) = pack(&mut rng, keys, bits, dtype, device);
                let values = [pages, group, head_dim, groups];
                let (values, numbers) = pack(&mut rng, values, bits, dtype, device);
                let packed = PackedNumbers::Levels { keys, values, bits };
                (packed, channels.iter().map(|page| columns_of(page)).collect(), numbers)
            }
            Fp8 => {
                let mut pack = || pack_fp8(&mut rng, [pages, group, head_dim], dtype, device);
                let ((keys, of_keys), (values, of_values)) = (pack(), pack());
                (PackedNumbers::Fp8 { keys, values }, of_keys, of_values)
            }
        };
        let (keys, values): (Numbers, Numbers) = (keys, values);
        let mut list: Vec<usize> = (0..pages).collect();
        list.shuffle(&mut rng);
        list.truncate(used);
        let columns = self.heads.iter().map(|(pages, own)| pages * group + own).max().unwrap();

        let (mut output, mut all_weights) = (Vec::new(), Vec::new());
        let (tail_keys_held, tail_values_held) = (rows(&tail_keys), rows(&tail_values));
        for (head, query) in rows(&queries).iter().enumerate() {
            let kv = head * kv_heads / query_heads;
            let (mut seen_keys, mut seen_values) = (Vec::new(), Vec::new());
            for &page in &list[first_pages[kv]..first_pages[kv + 1]] {
                seen_keys.extend_from_slice(&keys[page]);
                seen_values.extend_from_slice(&values[page]);
            }
            let end = kv * capacity + tail;
            seen_keys.extend_from_slice(&tail_keys_held[end - own[kv]..end]);
            seen_values.extend_from_slice(&tail_values_held[end - own[kv]..end]);
            all_weights.extend(std::iter::repeat_n(0.0, columns - seen_keys.len()));
            let unordered = vec![0; seen_keys.len()];
            let seen = (&seen_keys[..], &unordered[..]);
            let weights = self.kind.weights(head % query_heads, (query, 0), seen, SCALE);
            output.extend(weighted_mean(&weights, &seen_values));
            all_weights.extend(weights);
        }
        let padding: Vec<usize> = own.iter().map(|own| tail - own).collect();
        let kv = KvLayout::Quantized(QuantizedKv {
            numbers: packed,
            group,
            pages: integers(&list, [used], device),
            offsets: integers(&first_pages, [first_pages.len()], device),
            most_pages: of_heads.iter().copied().max().unwrap(),
            tail: Tail {
                keys: tail_keys.to_device(device),
                values: tail_values.to_device(device),
                entries: tail,
            },
            tail_padding: integers(&padding, [padding.len()], device),
            columns,
        });
        let queries = queries.to_device(device);
        let scoring = scoring(&self.kind, SCALE, device);
        let input = DecodeInput { queries, kv, scoring, weights: true };
        Drawn { input, columns, output, weights: all_weights }
    }

    fn elsewhere(kv: KvLayout) -> KvLayout {
        let KvLayout::Quantized(kv) = kv else { unreachable!("the case is of numbers") };
        let narrowed = |words: Tensor<2, Int>| {
            let width = words.dims()[1];
            Tensor::cat(vec![words.clone(), words], 1).narrow(1, 0, width)
        };
        let numbers = match kv.numbers {
            PackedNumbers::Levels { keys, values, bits } => {
                let [keys, values] = [keys, values].map(|packed| PackedGroups {
                    words: narrowed(packed.words),
                    scale: turned(&packed.scale, 0, 1),
                    min: packed.min,
                });
                PackedNumbers::Levels { keys, values, bits }
            }
            PackedNumbers::Fp8 { keys, values } => {
                let [keys, values] = [keys, values].map(|vectors| PackedVectors {
                    words: narrowed(vectors.words),
                    scale: turned(&vectors.scale, 0, 1),
                });
                PackedNumbers::Fp8 { keys, values }
            }
        };
        let tail = Tail { keys: turned(&kv.tail.keys, 1, 3), ..kv.tail };
        KvLayout::Quantized(QuantizedKv { numbers, tail, ..kv })
    }
}

#[test]
fn quantized_attention_of_cases() {
    attention_of_cases(&cases());
}

#[test]
fn quantized_attention_elsewhere() {
    attention_elsewhere(cases().iter().skip(1).step_by(12).chain(&cases()[2..3]));
}

#[test]
fn quantized_attention_refuses() {
    let by = RefusedBy(Case::OPERATION);
    let case = &cases()[2];
    assert_eq!(decode(&case.draw(DType::F32, &host()).input).unwrap_err(), by.device());
    for backend in kernel_backends() {
        // 6 query heads of one, 3 pages of 32 tokens, 66 behind them.
        let good = case.draw(DType::F32, &backend.device).input;
        if Case::attend(&backend, &good).is_none() {
            continue;
        }
        let sinks = Tensor::zeros([5], &backend.device);
        for (scoring, expected) in [
            (
                Scoring { window: Some(3.into()), ..good.scoring.clone() },
                OpError::NoKernel { operation: Case::OPERATION, what: "window" },
            ),
            (Scoring { sinks: Some(sinks), ..good.scoring.clone() }, by.shape("sinks", &[5], &[6])),
        ] {
            let error = decode(&DecodeInput { scoring, ..good.clone() }).unwrap_err();
            assert_eq!(error, expected);
        }
        let refuses = |change: &dyn Fn(&mut QuantizedKv), expected: OpError| {
            let mut input = good.clone();
            let KvLayout::Quantized(kv) = &mut input.kv else { unreachable!() };
            change(kv);
            assert_eq!(decode(&input).unwrap_err(), expected);
        };
        let of_levels = |change: &dyn Fn([&mut PackedGroups; 2], &mut usize), expected: OpError| {
            let change = |kv: &mut QuantizedKv| {
                let PackedNumbers::Levels { keys, values, bits } = &mut kv.numbers else {
                    panic!("the case is of levels")
                };
                change([keys, values], bits);
            };
            refuses(&change, expected);
        };
        of_levels(&|_, bits| *bits = 3, by.value("bits", 3, "1, 2, 4 or 8"));
        of_levels(&|_, bits| *bits = 8, by.shape("keys.words", &[5, 256], &[5, 512]));
        let expected = by.shape("keys.min", &[4, 64], &[5, 64]);
        of_levels(&|[keys, _], _| keys.min = keys.min.clone().narrow(0, 0, 4), expected);
        refuses(&|kv| kv.group = 12, by.value("group", 12, "a multiple of 8"));
        refuses(&|kv| kv.group = 520, by.size("group", 520, 512));
        let three = |[_, values]: [&mut PackedGroups; 2], _: &mut usize| {
            let scale = values.scale.clone();
            values.scale = Tensor::cat(vec![scale.clone(), scale.narrow(1, 0, 32)], 1);
        };
        let expected = "1, or a divisor of 64 that leaves multiples of 8";
        of_levels(&three, by.value("groups of a value", 3, expected));
        refuses(&|kv| kv.most_pages = 4, by.value("most_pages", 4, "1 to 3"));
        refuses(&|kv| kv.columns = 163, by.value("columns", 163, "96 to 162"));
        refuses(&|kv| kv.tail.entries = 71, by.value("tail", 71, "at most 70"));
        let two = |kv: &mut QuantizedKv| {
            kv.tail_padding = integers(&[0, 0], [2], &backend.device);
        };
        refuses(&two, by.shape("tail_padding", &[2], &[1]));
    }
}

#[test]
fn fp8_attention_refuses() {
    let by = RefusedBy(Case::OPERATION);
    for backend in kernel_backends() {
        // 16 pages of 32 tokens of 128 channels.
        let case = cases().into_iter().find(|case| case.format == Fp8).unwrap();
        let good = case.draw(DType::F32, &backend.device).input;
        if Case::attend(&backend, &good).is_none() {
            continue;
        }
        let refuses =
            |group: usize, change: &dyn Fn([&mut PackedVectors; 2]), expected: OpError| {
                let mut input = good.clone();
                let KvLayout::Quantized(kv) = &mut input.kv else { unreachable!() };
                kv.group = group;
                let PackedNumbers::Fp8 { keys, values } = &mut kv.numbers else {
                    panic!("the case is of FP8")
                };
                change([keys, values]);
                assert_eq!(decode(&input).unwrap_err(), expected);
            };
        refuses(0, &|_| (), by.value("group", 0, "at least 1"));
        refuses(31, &|_| (), by.shape("keys.words", &[16, 1024], &[16, 992]));
        let expected = by.shape("keys.scale", &[16, 31], &[16, 32]);
        refuses(32, &|[keys, _]| keys.scale = keys.scale.clone().narrow(1, 0, 31), expected);
        let expected = by.shape("values.words", &[9, 1024], &[16, 1024]);
        refuses(32, &|[_, values]| values.words = values.words.clone().narrow(0, 0, 9), expected);
        let expected = by.shape("values.scale", &[9, 32], &[16, 32]);
        refuses(32, &|[_, values]| values.scale = values.scale.clone().narrow(0, 0, 9), expected);
    }
}
