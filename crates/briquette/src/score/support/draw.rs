//! Random numbers of tokens, the same on every device and in every batch.

use burn::tensor::{FloatDType, Int, Tensor};

use crate::ops::constant_ints;

/// Random number in 0..1 of each token at these positions of a layer, `[batch, kv_heads, tokens]`,
/// f32: a function of seed, layer, head and position. Permutations modulo a prime small enough for
/// 32-bit integers.
pub(crate) fn draw(seed: u64, layer: usize, positions: Tensor<3, Int>) -> Tensor<3> {
    const PRIME: i64 = 46_337;
    const FACTOR: i64 = 25_173;
    const TERM: i64 = 13_849;
    let [_, heads, _] = positions.dims();
    let of_head = |head: usize| {
        let parts = [seed % PRIME as u64, layer as u64, head as u64];
        parts.into_iter().fold(0, |x, part| {
            let x = (x + part as i64 % PRIME) % PRIME;
            let x = (x * FACTOR + TERM) % PRIME;
            x * x % PRIME * x % PRIME
        })
    };
    let of_heads: Vec<i64> = (0..heads).map(of_head).collect();
    let of_heads = constant_ints("draw", of_heads, [1, heads, 1], &positions.device());
    let permuted = |x: Tensor<3, Int>| {
        let x = (x.remainder_scalar(PRIME) * FACTOR + TERM).remainder_scalar(PRIME);
        (x.clone() * x.clone()).remainder_scalar(PRIME).mul(x).remainder_scalar(PRIME)
    };
    let x = permuted(of_heads + positions.clamp_min(0).remainder_scalar(PRIME));
    permuted(x).cast(FloatDType::F32) / PRIME as f64
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn draws_are_even() {
        let positions = Tensor::<1, Int>::arange(0..10_000, &Device::flex());
        let positions = positions.reshape([1, 1, 10_000]).expand([1, 3, 10_000]);
        for layer in [0, 3] {
            let drawn = draw(7, layer, positions.clone()).try_into_vec_as::<f32>().unwrap();
            for drawn in drawn.chunks(10_000) {
                let mut tenths = [0; 10];
                drawn.iter().for_each(|x| tenths[(x * 10.0) as usize] += 1);
                assert!(tenths.iter().all(|&count| (850..1150).contains(&count)), "{tenths:?}");
            }
        }
    }
}
