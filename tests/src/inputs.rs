//! Seeded queries, keys and values.

use burn::tensor::{DType, Device, Tensor, TensorData, bf16, f16};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::reference::{Head, Profile, Settings};

/// Queries, keys and values of some tokens of one sequence in one layer.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// `[query_heads][tokens][head_dim]`
    pub q: Vec<Head>,
    /// `[kv_heads][tokens][head_dim]`
    pub k: Vec<Head>,
    /// `[kv_heads][tokens][head_dim]`
    pub v: Vec<Head>,
}

impl Tokens {
    /// Some of the tokens.
    pub fn range(&self, from: usize, to: usize) -> Self {
        let cut = |heads: &[Head]| heads.iter().map(|head| head[from..to].to_vec()).collect();
        Self { q: cut(&self.q), k: cut(&self.k), v: cut(&self.v) }
    }
}

/// Distribution of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// The deviation of normal noise in every channel of queries and of keys; values have 1.
    pub noise: (f64, f64),
    /// If so, each key has its own level of importance, evenly spaced, so that scores stand well
    /// apart and the rounding of half precision cannot swap two of them.
    pub levels: Option<Levels>,
    /// If so, keys and values gather around so many directions per head, so that some are
    /// redundant.
    pub directions: Option<usize>,
}

/// Levels of importance of the tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Whether all heads agree on the levels.
    pub shared: bool,
    /// Strength, from 0 to 1, with which queries differ in how they mind the levels: without, all
    /// attend alike.
    pub swing: f64,
}

impl Pattern {
    /// Normal noise.
    pub const NOISE: Self = Self { noise: (1.0, 1.0), levels: None, directions: None };
}

/// Draws `count` tokens whose numbers are exact in `dtype`.
pub fn draw(
    seed: u64,
    settings: &Settings,
    count: usize,
    pattern: Pattern,
    dtype: DType,
) -> Tokens {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let Settings { query_heads, kv_heads, head_dim, scale, .. } = *settings;
    let mut tokens = Tokens {
        q: normal(&mut rng, [query_heads, count, head_dim], pattern.noise.0),
        k: normal(&mut rng, [kv_heads, count, head_dim], pattern.noise.1),
        v: normal(&mut rng, [kv_heads, count, head_dim], 1.0),
    };
    if let Some(directions) = pattern.directions {
        const AROUND: f64 = 0.4;
        // Merged over and over in half precision, values add their rounding up; what is off by it
        // is off in proportion to them.
        const VALUES: f64 = 0.5;
        let of_keys = normal(&mut rng, [kv_heads, directions, head_dim], 1.0);
        let of_values = normal(&mut rng, [kv_heads, directions, head_dim], 1.0);
        for head in 0..kv_heads {
            for token in 0..count {
                let direction = rng.random_range(0..directions);
                let gather = |x: &mut [f64], centre: &[f64], size: f64| {
                    let near = |(x, centre): (&mut f64, &f64)| *x = size * (centre + AROUND * *x);
                    x.iter_mut().zip(centre).for_each(near);
                };
                gather(&mut tokens.k[head][token], &of_keys[head][direction], 1.0);
                gather(&mut tokens.v[head][token], &of_values[head][direction], VALUES);
            }
        }
    }
    if let Some(Levels { shared, swing }) = pattern.levels {
        // RoPE turns this channel least.
        let channel = head_dim / 2 - 1;
        let evenly = |from: f64, to: f64| -> Vec<f64> {
            (0..count).map(|i| from + (to - from) * i as f64 / count as f64).collect()
        };
        let mut minds = evenly(1.0 - swing, 1.0 + swing);
        minds.shuffle(&mut rng);
        for head in &mut tokens.q {
            for (query, minds) in head.iter_mut().zip(&minds) {
                query[channel] = minds / scale;
            }
        }
        let mut levels = evenly(-3.0, 3.0);
        levels.shuffle(&mut rng);
        for head in &mut tokens.k {
            if !shared {
                levels.shuffle(&mut rng);
            }
            for (key, level) in head.iter_mut().zip(&levels) {
                key[channel] = *level;
            }
        }
    }
    for heads in [&mut tokens.q, &mut tokens.k, &mut tokens.v] {
        for number in heads.iter_mut().flatten().flatten() {
            *number = round(*number, dtype);
        }
    }
    tokens
}

/// A profile of a model that was never trained: scores and errors between 0 and 1, the three kinds
/// of scores different from each other.
pub fn draw_profile(seed: u64, layers: usize, query_heads: usize) -> Profile {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut numbers = |count| (0..count).map(|_| rng.random()).collect::<Vec<f64>>();
    let layer_errors = numbers(layers);
    let mut heads = || (0..layers).map(|_| numbers(query_heads)).collect();
    Profile {
        semantic: heads(),
        copy_paste: heads(),
        headkv: heads(),
        layer_errors,
        ..Profile::default()
    }
}

/// The same profile with statistics of queries, `[query heads, kv heads, head_dim]`.
pub fn with_queries(profile: Profile, [query_heads, kv_heads, head_dim]: [usize; 3]) -> Profile {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let layers = profile.layer_errors.len();
    let directions = (0..layers).map(|_| normal(&mut rng, [1, kv_heads, head_dim], 0.3).remove(0));
    let directions = directions.collect();
    let means = (0..layers).map(|_| normal(&mut rng, [1, query_heads, head_dim], 0.7).remove(0));
    let means: Vec<Head> = means.collect();
    // The mean of lengths is at least the length of the mean.
    let half = head_dim / 2;
    let mut length = |mean: &Vec<f64>| -> Vec<f64> {
        let of_pair = |c: usize| mean[c].hypot(mean[c + half]);
        (0..half).map(|c| of_pair(c) + rng.random::<f64>()).collect()
    };
    let lengths = means.iter().map(|layer| layer.iter().map(&mut length).collect()).collect();
    let reach = (0..layers).map(|_| (0..kv_heads).map(|_| rng.random()).collect()).collect();
    Profile { directions, means, lengths, reach, ..profile }
}

fn normal(
    rng: &mut ChaCha8Rng,
    [heads, tokens, head_dim]: [usize; 3],
    deviation: f64,
) -> Vec<Head> {
    let mut token = || (0..head_dim).map(|_| deviation * standard_normal(rng)).collect();
    let mut head = || (0..tokens).map(|_| token()).collect();
    (0..heads).map(|_| head()).collect()
}

/// The nearest number of this type.
pub fn round(number: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(number).to_f64(),
        DType::BF16 => bf16::from_f64(number).to_f64(),
        _ => f64::from(number as f32),
    }
}

/// Tensors of normal noise, the same for the same seed on every device.
#[derive(Clone, Debug)]
pub struct Noise(ChaCha8Rng);

impl Noise {
    /// Noise from this seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// The next tensor, f32.
    pub fn tensor(&mut self, shape: [usize; 4], device: &Device) -> Tensor<4> {
        let numbers =
            (0..shape.iter().product()).map(|_| standard_normal(&mut self.0) as f32).collect();
        Tensor::from_data(TensorData::new(numbers, shape), device)
    }
}

fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    // Box-Muller; 1 − u is never zero.
    let (radius, angle): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}
