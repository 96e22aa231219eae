//! Seeded queries, keys and values.

use burn::tensor::{DType, Device, Tensor, TensorData, bf16, f16};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::reference::{Head, Settings};

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

/// What queries and keys look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Normal noise in every channel.
    Noise,
    /// Each key has its own level of importance, evenly spaced, so that scores stand well apart and the
    /// rounding of half precision cannot swap two of them. A little noise in the other channels.
    Levels {
        /// Whether all heads agree on the levels.
        shared: bool,
    },
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
    let mut normal = |heads: usize, deviation: f64| -> Vec<Head> {
        let mut number = || deviation * standard_normal(&mut rng);
        let mut token = || (0..settings.head_dim).map(|_| number()).collect();
        let mut head = || (0..count).map(|_| token()).collect();
        (0..heads).map(|_| head()).collect()
    };
    let deviation = if pattern == Pattern::Noise { 1.0 } else { 0.15 };
    let mut tokens = Tokens {
        q: normal(settings.query_heads, deviation),
        k: normal(settings.kv_heads, deviation),
        v: normal(settings.kv_heads, 1.0),
    };
    if let Pattern::Levels { shared } = pattern {
        // RoPE turns this channel least.
        let channel = settings.head_dim / 2 - 1;
        for query in tokens.q.iter_mut().flatten() {
            query[channel] = 1.0 / settings.scale;
        }
        let mut levels: Vec<f64> =
            (0..count).map(|i| 6.0 * i as f64 / count as f64 - 3.0).collect();
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
