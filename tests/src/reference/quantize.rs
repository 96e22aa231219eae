//! KIVI and FP8: all but the last tokens in a few bits.

use super::cache::Entry;
use super::margin::Margin;

/// Storage of entries. Whether heads hold the same number, or members share an entry, makes no
/// difference to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As they are.
    Plain,
    /// KIVI: all but the last in a few bits, keys by channel, values by token.
    Quantized {
        /// Bits per number.
        bits: u32,
        /// Numbers that share a scale.
        group: usize,
        /// Last tokens that are never quantized.
        residual: usize,
    },
    /// E4M3, a page of 32 tokens at a time, each key and each value with a scale of its own.
    Fp8,
}

/// The type keys and values are held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 24 significant bits.
    F32,
    /// 11 significant bits.
    F16,
    /// 8 significant bits.
    Bf16,
}

impl Precision {
    /// The nearest number of this type, of two equally near ones the even one.
    pub fn round(self, number: f64) -> f64 {
        let (bits, least_exponent) = match self {
            Self::F32 => (24, -126),
            Self::F16 => (11, -14),
            Self::Bf16 => (8, -126),
        };
        if number == 0.0 {
            return 0.0;
        }
        let exponent = (number.abs().log2().floor() as i32).max(least_exponent);
        let unit = f64::powi(2.0, exponent + 1 - bits);
        (number / unit).round_ties_even() * unit
    }
}

/// The quantization of one head.
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    /// See [`Store::Quantized`].
    pub bits: u32,
    /// See [`Store::Quantized`].
    pub group: usize,
    /// See [`Store::Quantized`].
    pub residual: usize,
    /// The type of the least number and the scale of a group.
    pub precision: Precision,
}

impl Pack {
    /// Quantizes whole groups of the oldest tokens as long as the residual is left: each number
    /// becomes what reading it back gives. The first `quantized` entries have been through it
    /// before.
    pub fn apply(&self, entries: &mut [Entry], quantized: &mut usize, margin: &mut Margin) {
        while entries.len() - *quantized >= self.residual + self.group {
            let tokens = &mut entries[*quantized..*quantized + self.group];
            let head_dim = tokens[0].key.len();
            for channel in 0..head_dim {
                let mut column: Vec<f64> = tokens.iter().map(|token| token.key[channel]).collect();
                self.numbers(&mut column, margin);
                for (token, number) in tokens.iter_mut().zip(column) {
                    token.key[channel] = number;
                }
            }
            for token in tokens {
                for channels in token.value.chunks_mut(self.group.min(head_dim)) {
                    self.numbers(channels, margin);
                }
            }
            *quantized += self.group;
        }
    }

    /// Numbers that share a scale, quantized and back.
    fn numbers(&self, numbers: &mut [f64], margin: &mut Margin) {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let steps = f64::from((1_u32 << self.bits) - 1);
        let least = self.precision.round(least);
        let scale = self.precision.round((most - least) / steps);
        for number in numbers {
            if scale == 0.0 {
                *number = least;
                continue;
            }
            let exact = (*number - least) / scale;
            *number = exact.round_ties_even().clamp(0.0, steps) * scale + least;
            margin.step((exact - exact.floor() - 0.5).abs() * scale);
        }
    }
}

/// Tokens that become FP8 together.
const PAGE: usize = 32;

/// Rounds whole pages of the oldest tokens to E4M3. The first `quantized` entries have been through
/// it before.
pub fn to_fp8(
    entries: &mut [Entry],
    quantized: &mut usize,
    precision: Precision,
    margin: &mut Margin,
) {
    while entries.len() - *quantized >= PAGE {
        for token in &mut entries[*quantized..*quantized + PAGE] {
            vector_to_fp8(&mut token.key, precision, margin);
            vector_to_fp8(&mut token.value, precision, margin);
        }
        *quantized += PAGE;
    }
}

/// A vector over the scale that makes its largest number 448, the largest of the type.
fn vector_to_fp8(vector: &mut [f64], precision: Precision, margin: &mut Margin) {
    let most = vector.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
    let scale = precision.round(most / 448.0);
    for number in vector.iter_mut().filter(|_| scale > 0.0) {
        let exact = *number / scale;
        let exponent = exact.abs().max(f64::MIN_POSITIVE).log2().floor().clamp(-6.0, 8.0);
        let steps = exact / (exponent - 3.0).exp2();
        let step = (exponent - 3.0).exp2() * scale;
        *number = (steps.round_ties_even() * step).clamp(-448.0 * scale, 448.0 * scale);
        margin.step((steps - steps.floor() - 0.5).abs() * step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::entry;

    #[test]
    fn precision_is_the_nearest_number_of_the_type() {
        for number in [1.0, -0.1, 7.7, 1e-3, 12345.678] {
            assert_eq!(Precision::F32.round(number), f64::from(number as f32));
        }
        assert_eq!(Precision::F16.round(0.1), 0.0999755859375);
        assert_eq!(Precision::Bf16.round(0.1), 0.10009765625);
        // 257 lies between 256 and 258; 259 between 258 and 260.
        assert_eq!(Precision::Bf16.round(257.0), 256.0);
        assert_eq!(Precision::Bf16.round(259.0), 260.0);
    }

    #[test]
    fn fp8_is_the_nearest_number_of_the_type() {
        let mut margin = Margin::default();
        let mut found = |vector: [f64; 4]| {
            let mut vector = vector;
            vector_to_fp8(&mut vector, Precision::F32, &mut margin);
            vector
        };
        // From 256 on numbers are 32 apart, from 16 on 2, below 2⁻⁶ they are 2⁻⁹ apart.
        assert_eq!(found([448.0, -300.0, 17.0, 0.005]), [448.0, -288.0, 16.0, 3.0 / 512.0]);
        assert_eq!(found([224.0, 0.0, 0.015625, 1e-9]), [224.0, 0.0, 0.015625, 0.0]);
        assert_eq!(found([0.0; 4]), [0.0; 4]);
        // 17 lies in the middle.
        assert_eq!(margin.steps, 0.0);

        let numbers = [448.0, 300.0];
        let mut entries: Vec<Entry> =
            (0..40).map(|position| entry(position, &numbers, &numbers, 0.0)).collect();
        let mut quantized = 0;
        to_fp8(&mut entries[..31], &mut quantized, Precision::F16, &mut margin);
        assert_eq!(quantized, 0, "31 tokens are no page");
        to_fp8(&mut entries, &mut quantized, Precision::F16, &mut margin);
        assert_eq!(quantized, 32);
        assert_eq!(
            (&entries[31].key[..], &entries[32].key[..]),
            (&[448.0, 288.0][..], &numbers[..])
        );
    }

    #[test]
    fn keys_by_channel_values_by_token_and_the_residual_as_it_is() {
        let rows = [
            ([0.0, 5.0], [3.0, 0.0]),
            ([1.0, 5.0], [0.4, 3.4]),
            ([1.4, 5.0], [9.0, 9.0]),
            ([3.0, 5.0], [0.0, 1.0]),
            ([7.7, 7.7], [7.7, 7.7]),
            ([8.8, 8.8], [8.8, 8.8]),
        ];
        let mut entries: Vec<Entry> = rows
            .iter()
            .enumerate()
            .map(|(position, (key, value))| entry(position, key, value, 0.0))
            .collect();
        // Two bits: four levels. Four tokens share a scale in each channel of keys, both channels
        // in each value.
        let pack = Pack { bits: 2, group: 4, residual: 2, precision: Precision::F32 };
        let (mut quantized, mut margin) = (0, Margin::default());
        pack.apply(&mut entries[..5], &mut quantized, &mut margin);
        assert_eq!(quantized, 0, "5 tokens are fewer than 4 and a residual of 2");
        pack.apply(&mut entries, &mut quantized, &mut margin);
        assert_eq!(quantized, 4);

        let channel = |channel: usize| entries.iter().map(|e| e.key[channel]).collect::<Vec<f64>>();
        // From 0 to 3 in steps of 1; 1.4 is nearest to 1. A channel of one number stays.
        assert_eq!(channel(0), [0.0, 1.0, 1.0, 3.0, 7.7, 8.8]);
        assert_eq!(channel(1), [5.0, 5.0, 5.0, 5.0, 7.7, 8.8]);
        let ends: Vec<&[f64]> = entries.iter().map(|entry| entry.value.as_slice()).collect();
        assert_eq!(ends[0], [3.0, 0.0]);
        assert_eq!(ends[2], [9.0, 9.0]);
        assert!((ends[1][0] - 0.4).abs() < 1e-7 && (ends[1][1] - 3.4).abs() < 1e-7);
        assert_eq!(ends[5], [8.8, 8.8]);
        // 1.4 is a tenth from the border between 1 and 2.
        assert!((margin.steps - 0.1).abs() < 1e-9);
    }
}
