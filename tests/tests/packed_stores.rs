//! FP8 and TurboQuant, held to references in f64 that share no code with them.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt,
    position::{NoPositionEncoding, RotaryEmbedding},
    state::Replay,
    store::{Dense, Fp8, Quantized, StoreBuilder, TurboQuant},
};
use briquette_tests::{
    backends::{backends, host},
    inputs::{Noise, round},
};
use burn::tensor::{DType, Device, Tensor, TensorData};

const TOKENS: usize = 64;

fn shape(head_dim: usize) -> CacheShape {
    CacheShape { layers: 1, query_heads: 2, kv_heads: 2, head_dim }
}

/// Keys and values of a cache that was given these and has packed them all.
fn packed<S: StoreBuilder>(
    store: S,
    x: &[f64],
    head_dim: usize,
    dtype: DType,
    device: &Device,
) -> Vec<f64> {
    let config = CacheConfig::default().with_dtype(dtype);
    let policy = Policy::full().with_store(store);
    let mut cache = KvCache::with_config(shape(head_dim), policy, config, device).unwrap();
    let numbers = x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let data = TensorData::new(numbers, [1, 2, TOKENS, head_dim]);
    let x = Tensor::<4>::from_data(data, device);
    cache.attend(0, x.clone(), x.clone(), x.neg(), &NoPositionEncoding).unwrap();
    let entries = cache.entries(0).unwrap().unwrap();
    let keys = entries.keys.try_into_vec_as::<f32>().unwrap();
    let values = entries.values.try_into_vec_as::<f32>().unwrap();
    // Both stores are odd: what they make of −x is what they make of x.
    for (key, value) in keys.iter().zip(&values) {
        assert!((key + value).abs() <= 1e-5 * (1.0 + key.abs()), "{key} and {value}");
    }
    keys.into_iter().map(f64::from).collect()
}

/// Vectors as keys are: some channels large everywhere, one all zero, one tiny, some numbers zero.
fn vectors(head_dim: usize, dtype: DType) -> Vec<f64> {
    let noise = Noise::new(11).tensor([1, 2, TOKENS, head_dim], &host());
    let mut numbers: Vec<f64> =
        noise.try_into_vec_as::<f32>().unwrap().into_iter().map(f64::from).collect();
    for (at, number) in numbers.iter_mut().enumerate() {
        let (token, channel) = (at / head_dim % TOKENS, at % head_dim);
        *number *= if channel == 3 { 20.0 } else { 1.0 };
        *number *= match token {
            5 => 0.0,
            6 => 1e-3,
            _ => 1.0,
        };
        if (at * 7) % 31 == 0 {
            *number = 0.0;
        }
        *number = round(*number, dtype);
    }
    numbers
}

/// The finite numbers of E4M3 that are not negative, as the paper defines them.
fn e4m3() -> Vec<f64> {
    let mut all = Vec::new();
    for exponent in 0..16 {
        for mantissa in 0..8 {
            let fraction = f64::from(mantissa) / 8.0;
            all.push(match exponent {
                0 => fraction * 2f64.powi(-6),
                // The last is NaN.
                15 if mantissa == 7 => continue,
                _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
            });
        }
    }
    all
}

#[test]
fn fp8_is_the_nearest_number_of_the_type() {
    let table = e4m3();
    assert_eq!((table.len(), table[1], table[table.len() - 1]), (127, 2f64.powi(-9), 448.0));
    for backend in backends() {
        for dtype in backend.dtypes() {
            let x = vectors(24, dtype);
            let found = packed(Fp8 {}, &x, 24, dtype, &backend.device);
            for (x, found) in x.chunks(24).zip(found.chunks(24)) {
                let most = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let scale = round(f64::from(most as f32 / 448.0), dtype);
                for (&x, &found) in x.iter().zip(found) {
                    let what = format!("{x} became {found}, {dtype:?}, {}", backend.name);
                    if scale == 0.0 {
                        assert_eq!(found, 0.0, "{what}");
                        continue;
                    }
                    let wanted = (x.abs() / scale).min(448.0);
                    let of = |number: &f64| (number - wanted).abs();
                    let nearest = table.iter().map(of).fold(f64::INFINITY, f64::min);
                    let level = found.abs() / scale;
                    let known = table.iter().map(|number| (number - level).abs() / (number + 1e-3));
                    assert!(
                        known.fold(f64::INFINITY, f64::min) < 1e-5,
                        "{what}: no number of the type"
                    );
                    // Halfway between two either is as near.
                    assert!((level - wanted).abs() <= nearest + 1e-5 * wanted.max(0.01), "{what}");
                    assert!(found == 0.0 || (found < 0.0) == (x < 0.0), "{what}");
                }
            }
        }
    }
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// The integral of `f` times the normal density, by Simpson's rule.
fn integral(from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
    const STEPS: usize = 400;
    let width = (to - from) / STEPS as f64;
    let at = |step: usize| {
        let x = from + width * step as f64;
        f(x) * density(x)
    };
    let inner = |step: usize| if step % 2 == 1 { 4.0 } else { 2.0 } * at(step);
    (at(0) + at(STEPS) + (1..STEPS).map(inner).sum::<f64>()) * width / 3.0
}

/// The codebook of Lloyd and Max for normal numbers, by their iteration.
fn lloyd_max(bits: u32) -> Vec<f64> {
    let half = 1 << (bits - 1);
    let mut upper: Vec<f64> =
        (0..half).map(|i| (f64::from(i) + 0.5) * 2.5 / f64::from(half)).collect();
    for _ in 0..3000 {
        let middle = |i: usize| (upper[i] + upper[i + 1]) / 2.0;
        let ends: Vec<f64> =
            [0.0].into_iter().chain((0..upper.len() - 1).map(middle)).chain([12.0]).collect();
        upper = ends
            .windows(2)
            .map(|ends| integral(ends[0], ends[1], |x| x) / integral(ends[0], ends[1], |_| 1.0))
            .collect();
    }
    upper.iter().rev().map(|x| -x).chain(upper.iter().copied()).collect()
}

/// The rotation, written out.
fn rotation(channels: usize) -> Vec<Vec<f64>> {
    let inner = (1..=16)
        .rev()
        .find(|&size: &usize| size.is_power_of_two() && channels.is_multiple_of(size))
        .unwrap();
    let sylvester = |size: usize| {
        let mut h = vec![vec![1.0]];
        while h.len() < size {
            let twice = |row: &Vec<f64>, sign: f64| {
                [&row[..], &row.iter().map(|x| sign * x).collect::<Vec<_>>()].concat()
            };
            h = h
                .iter()
                .map(|row| twice(row, 1.0))
                .chain(h.iter().map(|row| twice(row, -1.0)))
                .collect();
        }
        let root = (size as f64).sqrt();
        h.into_iter()
            .map(|row| row.into_iter().map(|x| x / root).collect())
            .collect::<Vec<Vec<f64>>>()
    };
    let cosine = |size: usize| -> Vec<Vec<f64>> {
        let row = |k: usize| {
            let norm = if k == 0 { 1.0 } else { 2.0 } / size as f64;
            let of = |n: usize| {
                let turn = (2 * n + 1) as f64 * k as f64 / (4 * size) as f64;
                norm.sqrt() * (std::f64::consts::TAU * turn).cos()
            };
            (0..size).map(of).collect()
        };
        (0..size).map(row).collect()
    };
    let square = |size: usize| if size.is_power_of_two() { sylvester(size) } else { cosine(size) };
    let (a, b) = (square(channels / inner), square(inner));
    // SplitMix64, seeded with 0.
    let mut state = 0u64;
    let mut signs = || {
        state = state.wrapping_add(0x9E3779B97F4A7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
        if (z ^ (z >> 31)).is_multiple_of(2) { 1.0 } else { -1.0 }
    };
    let signs: Vec<f64> = (0..channels).map(|_| signs()).collect();
    let row = |r: usize| {
        (0..channels)
            .map(|c| a[r / inner][c / inner] * b[r % inner][c % inner] * signs[c])
            .collect()
    };
    (0..channels).map(row).collect()
}

fn times(matrix: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    matrix.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn turbo_quant_is_the_nearest_of_its_codebook() {
    let codebooks = [2, 3, 4].map(lloyd_max);
    for backend in backends() {
        let sizes = if backend.is_quick() { &[16, 24, 64, 80, 128][..] } else { &[64, 80] };
        for &channels in sizes {
            let matrix = rotation(channels);
            for (row, other) in matrix.iter().zip(&matrix[1..]) {
                let product: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                assert!((norm(row) - 1.0).abs() < 1e-12 && product.abs() < 1e-12, "{channels}");
            }
            for (bits, codebook) in (2..).zip(&codebooks) {
                for dtype in backend.dtypes() {
                    let what =
                        format!("{bits} bits, {channels} channels, {dtype:?}, {}", backend.name);
                    let x = vectors(channels, dtype);
                    let store = TurboQuant::new(bits, bits);
                    let found = packed(store, &x, channels, dtype, &backend.device);
                    for (x, found) in x.chunks(channels).zip(found.chunks(channels)) {
                        let size = round(norm(x), dtype);
                        if norm(x) == 0.0 {
                            assert!(found.iter().all(|&x| x == 0.0), "{what}");
                            continue;
                        }
                        let root = (channels as f64).sqrt();
                        let wanted = times(&matrix, x);
                        let level = times(&matrix, found);
                        for (wanted, level) in wanted.iter().zip(level) {
                            let (wanted, level) = (wanted / norm(x) * root, level / size * root);
                            let of = |number: &f64| (number - wanted).abs();
                            let nearest = codebook.iter().map(of).fold(f64::INFINITY, f64::min);
                            let off = codebook.iter().map(|number| (number - level).abs());
                            let off = off.fold(f64::INFINITY, f64::min);
                            // The norm is rounded to the type of the cache: by up to one place more
                            // than it is here.
                            let fine = if dtype == DType::F32 { 1e-4 } else { 2e-2 };
                            assert!(off < fine, "{what}: {level} is no number of the codebook");
                            assert!(
                                (level - wanted).abs() <= nearest + fine,
                                "{what}: {wanted} became {level}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The distortion of the paper (Theorem 1: 0.117, 0.03 and 0.009 for 2, 3 and 4 bits).
#[test]
fn turbo_quant_loses_what_the_paper_says() {
    let channels = 128;
    let noise = Noise::new(14).tensor([1, 2, TOKENS, channels], &host());
    let noise = noise.try_into_vec_as::<f32>().unwrap();
    let x: Vec<f64> = noise.into_iter().map(f64::from).collect();
    for (bits, expected) in [(2, 0.1175), (3, 0.03454), (4, 0.009497)] {
        let found = packed(TurboQuant::new(bits, bits), &x, channels, DType::F32, &host());
        let mut losses = Vec::new();
        for (x, found) in x.chunks(channels).zip(found.chunks(channels)) {
            let difference: Vec<f64> = x.iter().zip(found).map(|(a, b)| a - b).collect();
            if norm(x) > 0.0 {
                losses.push((norm(&difference) / norm(x)).powi(2));
            }
        }
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        assert!((mean / expected - 1.0).abs() < 0.05, "{bits} bits: {mean}, expected {expected}");
    }
}

/// Bytes of each store as a share of a cache in 16 bits, with everything that a store needs.
#[test]
fn memory_is_what_the_bits_say() {
    let device = host();
    let shape = CacheShape { layers: 4, query_heads: 2, kv_heads: 2, head_dim: 128 };
    let tokens = 2048;
    let mut noise = Noise::new(12);
    let mut random = || noise.tensor([1, 2, tokens, 128], &device);
    let qkv: Vec<_> = (0..4).map(|_| [random(), random(), random()]).collect();
    let rope = RotaryEmbedding::new(128, 4096, 10_000.0, &device).unwrap();
    let held = |policy: Policy| {
        let config = CacheConfig::default().with_dtype(DType::F16);
        let mut cache = KvCache::with_config(shape, policy, config, &device).unwrap();
        for (layer, [q, k, v]) in qkv.iter().enumerate() {
            cache.attend(layer, q.clone(), k.clone(), v.clone(), &rope).unwrap();
        }
        cache.bytes_held()
    };
    let pair = 2 * 2 * 128 * 2;
    let positions = 2 * DType::from(device.settings().int_dtype).size();
    // Two pages of room for tokens to come, as they are.
    let room = 4 * 64 * (pair + positions);
    let packed = |key_bits: usize, value_bits: usize| {
        let token = 2 * (128 * (key_bits + value_bits) / 8 + 2 * 2) + positions;
        4 * tokens * token + room
    };
    let full = held(Policy::full().with_store(Dense {}));
    let all = 4 * tokens * (pair + positions);
    assert!((all..all + all / 7).contains(&full), "{full} of {all}");
    let bits = |store: TurboQuant| held(Policy::full().with_store(store));
    for (what, found, expected) in [
        ("fp8", held(Policy::full().with_store(Fp8 {})), packed(8, 8)),
        ("2 bits", bits(TurboQuant::new(2, 2)), packed(2, 2)),
        ("3 bits", bits(TurboQuant::new(3, 3)), packed(3, 3)),
        ("4 bits", bits(TurboQuant::new(4, 4)), packed(4, 4)),
        ("4 and 2 bits", bits(TurboQuant::new(4, 2)), packed(4, 2)),
    ] {
        println!("{what}: {found} bytes, {:.1} % of {all}", 100.0 * found as f64 / all as f64);
        assert_eq!(found, expected, "{what}");
    }
    // The outer two of four layers as they are.
    let outer = bits(TurboQuant { whole_layers: 1, ..TurboQuant::new(2, 2) });
    assert!(
        outer > packed(2, 2) / 2 + full / 2 - full / 10
            && outer < packed(2, 2) / 2 + full / 2 + full / 10,
        "{outer}"
    );
    println!("KIVI 2 bits: {} bytes", held(Policy::kivi(2)));
}

/// Under methods that evict it is the same tokens that stay, and what attention gives is near what
/// it was.
#[test]
fn stores_go_with_methods_that_evict() {
    let shape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 64 };
    for backend in backends() {
        let device = &backend.device;
        let mut noise = Noise::new(13);
        let mut random = |heads| noise.tensor([2, heads, 260, 64], device);
        let qkv: Vec<_> = (0..2).map(|_| [random(4), random(2), random(2)]).collect();
        let rope = RotaryEmbedding::new(64, 512, 10_000.0, device).unwrap();
        let play = |policy: Policy| {
            let mut cache = KvCache::new(shape, policy, device).unwrap();
            let mut outputs = Vec::new();
            let mut kept = Vec::new();
            for (from, to) in [(0, 200), (200, 201), (201, 202), (202, 240), (240, 241)] {
                for (layer, qkv) in qkv.iter().enumerate() {
                    let [q, k, v] = qkv.clone().map(|x| x.narrow(2, from, to - from));
                    let output = cache.attend(layer, q, k, v, &rope).unwrap();
                    outputs.extend(output.try_into_vec_as::<f32>().unwrap());
                }
                if from == 0 {
                    kept = (0..2).map(|layer| cache.kept_positions(layer).unwrap()).collect();
                }
            }
            (outputs, kept)
        };
        let off = |a: &[f32], b: &[f32]| {
            let (mut difference, mut all) = (0.0, 0.0);
            for (a, b) in a.iter().zip(b) {
                difference += f64::from(a - b).powi(2);
                all += f64::from(*b).powi(2);
            }
            (difference / all).sqrt()
        };
        let methods = ["snapkv", "adakv", "h2o", "cake"];
        for method in methods.into_iter().take(if backend.is_quick() { 4 } else { 1 }) {
            let policy = || Policy::named(method, Budget::Tokens(96)).unwrap();
            let (expected, kept) = play(policy());
            let mut last = f64::INFINITY;
            for (bits, most) in [(2, 0.6), (3, 0.35), (4, 0.2)] {
                let (found, same) = play(policy().with_store(TurboQuant::new(bits, bits)));
                assert_eq!(same, kept, "{method}, {bits} bits, {}", backend.name);
                let off = off(&found, &expected);
                assert!(off < most && off < last, "{method}, {bits} bits, {}: {off}", backend.name);
                last = off;
            }
            let (found, same) = play(policy().with_store(Fp8 {}));
            let off = off(&found, &expected);
            assert_eq!(same, kept, "{method}, fp8, {}", backend.name);
            assert!(off < 0.1 && off < last, "{method}, fp8, {}: {off}", backend.name);
        }
    }
}

#[test]
fn bits_that_do_not_exist_are_refused() {
    for bits in [0, 1, 5, 8] {
        for store in [TurboQuant::new(bits, 4), TurboQuant::new(4, bits)] {
            let error = Policy::full().with_store(store).check().unwrap_err().to_string();
            assert!(error.contains("-bits is") && error.contains("2, 3 or 4"), "{error}");
        }
    }
    let text = Policy::full().with_store(TurboQuant::new(4, 3)).to_toml().unwrap();
    assert!(text.contains("kind = \"turbo-quant\"") && text.contains("key-bits = 4"), "{text}");
    assert!(Policy::from_toml(&text.replace("key-bits = 4", "key-bits = 9")).is_err());
    assert_eq!(Policy::full().with_store(Quantized::kivi(2)).store().name(), "quantized");
}

/// Tokens that the device counts lie newest first, and are the same; so are forks, and what is left
/// when a step fails.
#[test]
fn tokens_that_the_device_counts_are_the_same() {
    const PROMPT: usize = 83;
    const STEPS: usize = 75;
    let shape = shape(64);
    for backend in backends() {
        let levels = Quantized { bits: 2, group: 32, residual: 32 };
        for policy in [Policy::fp8(), Policy::full().with_name("levels").with_store(levels)] {
            let name = policy.name().to_owned();
            let device = &backend.device;
            let rope = RotaryEmbedding::new(64, 512, 10_000.0, device).unwrap();
            let mut noise = Noise::new(5);
            let mut cache = KvCache::new(shape, policy, device).unwrap();
            let mut given = |cache: &mut [&mut KvCache], columns: usize| -> Vec<Vec<f32>> {
                let qkv = [(); 3].map(|()| noise.tensor([2, 2, columns, 64], device));
                let attend = |cache: &mut &mut KvCache| {
                    let [q, k, v] = qkv.clone();
                    let output = cache.attend(0, q, k, v, &rope).unwrap();
                    output.try_into_vec_as::<f32>().unwrap()
                };
                cache.iter_mut().map(attend).collect()
            };
            cache.begin_prompt(Prompt::new(PROMPT).left_padding(vec![0, 9])).unwrap();
            given(&mut [&mut cache], PROMPT);
            // Nobody knows yet whether pages are read as they are.
            assert_eq!(cache.open_columns(), None, "{name}");
            given(&mut [&mut cache], 1);
            let packed = cache.open_columns().is_some();
            assert!(packed || !backend.is_quick(), "{name} on {}", backend.name);
            if !packed {
                continue;
            }
            let mut counted = cache.fork();
            let mut apart = 0;
            for step in 0..STEPS {
                let what = format!("{name}, step {step} on {}", backend.name);
                if counted.open_columns() == Some(0) {
                    counted.begin_device_indexing(40).unwrap();
                    assert_eq!(counted.open_columns(), Some(40), "{what}");
                }
                let packs = counted.step_kind().is_none();
                apart += usize::from(packs);
                if step % 29 == 28 {
                    // Of a step that fails nothing is left; the host counts again.
                    let error = Error::LayerOutOfRange { layer: 1, layers: 1 };
                    let x = Noise::new(1).tensor([2, 2, 1, 64], device);
                    let failed: Result<(), Error> = counted.transaction(|counted| {
                        counted.attend(0, x.clone(), x.clone(), x.clone(), &rope)?;
                        Err(error)
                    });
                    assert!(failed.is_err(), "{what}");
                    assert_eq!(counted.open_columns(), Some(0), "{what}");
                    counted.begin_device_indexing(40).unwrap();
                }
                let outputs = given(&mut [&mut cache, &mut counted], 1);
                for (plain, found) in outputs[0].iter().zip(&outputs[1]) {
                    let off = (plain - found).abs();
                    assert!(off <= 2e-5 * (1.0 + plain.abs()), "{what}: {found}, {plain}");
                }
                let kept = |cache: &KvCache| cache.kept_positions(0).unwrap();
                assert_eq!(kept(&counted), kept(&cache), "{what}");
                let held = |cache: &KvCache| cache.bytes_held() - cache.bytes_spare();
                // The next token tells a device that the host counts for where new pages lie.
                assert!(packs || held(&counted) == held(&cache), "{what}");
            }
            // A row's tokens are packed with every 32nd, and the rows are 9 apart.
            assert!((4..=6).contains(&apart), "{name}: {apart}");
            let numbers = |cache: &KvCache| {
                let entries = cache.entries(0).unwrap().unwrap();
                let read = |x: Tensor<4>| x.try_into_vec_as::<f32>().unwrap();
                (read(entries.keys), read(entries.values))
            };
            assert_eq!(numbers(&counted), numbers(&cache), "{name} on {}", backend.name);
            let fork = counted.fork();
            counted.end_device_indexing();
            assert_eq!(numbers(&counted), numbers(&fork));
            let outputs = given(&mut [&mut cache, &mut counted], 3);
            for (plain, found) in outputs[0].iter().zip(&outputs[1]) {
                assert!((plain - found).abs() <= 2e-5 * (1.0 + plain.abs()), "{name}");
            }
        }
    }
}

/// Below its residual a store holds all in full precision, and says so.
#[test]
fn packed_tokens_are_told() {
    let device = host();
    let shape = CacheShape { layers: 3, ..shape(32) };
    let told = |policy: Policy, prompts: &[usize]| -> Vec<Option<Vec<usize>>> {
        let mut cache = KvCache::new(shape, policy, &device).unwrap();
        for &tokens in prompts {
            let x = Tensor::<4>::ones([2, 2, tokens, 32], &device);
            for layer in 0..shape.layers {
                cache.attend(layer, x.clone(), x.clone(), x.clone(), &NoPositionEncoding).unwrap();
            }
        }
        (0..shape.layers).map(|layer| cache.tokens_packed(layer).unwrap()).collect()
    };
    let all = |tokens| vec![Some(vec![tokens; 2]); 3];
    assert_eq!(told(Policy::kivi(2), &[]), vec![None; 3]);
    assert_eq!(told(Policy::kivi(2), &[64]), all(0));
    // 128 stay, and the 5 behind the last whole group.
    assert_eq!(told(Policy::kivi(2), &[64, 101]), all(32));
    assert_eq!(told(Policy::fp8(), &[70]), all(64));
    let bits = TurboQuant { whole_layers: 1, ..TurboQuant::new(3, 2) };
    let in_the_middle = vec![None, Some(vec![64; 2]), None];
    assert_eq!(told(Policy::full().with_store(bits), &[70]), in_the_middle);
    assert_eq!(told(Policy::full(), &[70]), vec![None; 3]);
}
