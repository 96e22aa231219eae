use burn::tensor::DType;
use half::{bf16, f16};

/// Storage of a tensor's numbers: as they are, or in blocks of quantized ones. The layouts are
/// those of [ggml](https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c), whose names
/// they carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Mxfp4,
}

impl Encoding {
    /// The encoding that has this number in a file.
    pub(super) fn numbered(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            30 => Self::Bf16,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// The number of an encoding that is not read, and its name if it has one.
    pub(super) fn shown(kind: u32) -> String {
        let name = match kind {
            9 => "Q8_1",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            40 => "NVFP4",
            _ => return kind.to_string(),
        };
        format!("{kind} ({name})")
    }

    /// Numbers of a block, and its bytes.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 | Self::Iq4Nl => (32, 2 + 16),
            Self::Q4_1 => (32, 4 + 16),
            Self::Q5_0 => (32, 2 + 4 + 16),
            Self::Q5_1 => (32, 4 + 4 + 16),
            Self::Q8_0 => (32, 2 + 32),
            Self::Mxfp4 => (32, 1 + 16),
            Self::Q2K => (256, 16 + 64 + 4),
            Self::Q3K => (256, 32 + 64 + 12 + 2),
            Self::Q4K => (256, 4 + 12 + 128),
            Self::Q5K => (256, 4 + 12 + 32 + 128),
            Self::Q6K => (256, 128 + 64 + 16 + 2),
        }
    }

    /// Bytes of a tensor of these dimensions, the innermost first: `None` if it is not made of
    /// whole blocks, or larger than a number says.
    pub(super) fn bytes(self, dimensions: &[u64]) -> Option<u64> {
        let (numbers, bytes) = self.block();
        let inner = *dimensions.first()?;
        if !inner.is_multiple_of(numbers as u64) {
            return None;
        }
        let count = dimensions.iter().try_fold(1_u64, |count, &size| count.checked_mul(size))?;
        (count / numbers as u64).checked_mul(bytes as u64)
    }

    /// The type that [`plain`](Self::plain) gives.
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            _ => DType::F32,
        }
    }

    /// The numbers without blocks, little-endian. Bytes that are no whole block are left out.
    pub(crate) fn plain(self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => bytes,
            _ => self.numbers(&bytes).iter().flat_map(|number| number.to_le_bytes()).collect(),
        }
    }

    /// The numbers in f32.
    pub(super) fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        let (numbers, size) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / size * numbers);
        for block in bytes.chunks_exact(size) {
            match self {
                Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl | Self::Mxfp4 => {
                    let (scale, levels) = self.levels(block);
                    out.extend(levels.map(|level| scale * f32::from(level)));
                }
                Self::Q4_1 => {
                    let (scale, least) = (number(block, 0), number(block, 2));
                    out.extend(four_bits(block, 4).map(|level| scale * f32::from(level) + least));
                }
                Self::Q5_1 => {
                    let (scale, least) = (number(block, 0), number(block, 2));
                    out.extend(five_bits(block, 4).map(|level| scale * f32::from(level) + least));
                }
                Self::Q2K => two_bits(block, &mut out),
                Self::Q4K => {
                    let (head, quants) = block.split_at(16);
                    super_block(head, &four_bits_of_parts(quants), &mut out);
                }
                Self::Q5K => {
                    let (head, quants) = block.split_at(16);
                    super_block(head, &five_bits_of_parts(quants), &mut out);
                }
                Self::Q3K | Self::Q6K => {
                    let (levels, factors, scale) = self.factored(block);
                    let factors = factors.iter().flat_map(|factor| [*factor; 16]);
                    out.extend(levels.into_iter().zip(factors).map(|(level, factor)| {
                        scale.to_f32() * f32::from(factor.cast_signed()) * f32::from(level)
                    }));
                }
                Self::F32 => {
                    out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]));
                }
                Self::F16 => out.push(number(block, 0)),
                Self::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            }
        }
        out
    }
}

impl Encoding {
    /// The scale of a block of 32, and its levels, where a number is their product.
    pub(super) fn levels(self, block: &[u8]) -> (f32, [i8; 32]) {
        let levels = match self {
            Self::Q4_0 => four_bits(block, 2).map(|level| level.cast_signed() - 8),
            Self::Q5_0 => five_bits(block, 2).map(|level| level.cast_signed() - 16),
            Self::Iq4Nl => four_bits(block, 2).map(|level| IQ4_NL[usize::from(level)]),
            Self::Mxfp4 => {
                let levels = four_bits(block, 1).map(|level| MXFP4[usize::from(level)]);
                return (half_power(block[0]), levels);
            }
            _ => std::array::from_fn(|i| block[2 + i].cast_signed()),
        };
        (number(block, 0), levels)
    }

    /// What numbers of 256 are products of.
    pub(super) fn factored(self, block: &[u8]) -> Factored {
        if self == Self::Q3K { three_bits(block) } else { six_bits(block) }
    }
}

/// The levels of IQ4_NL, which are closer together around 0.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the numbers of four bits (E2M1) of the Open Compute Project's microscaling formats.
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an exponent of eight bits stands for; the smallest have no whole
/// exponent left.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x20_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

fn number(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The levels of 32 numbers of four bits: the lower halves of the bytes from `at` on, then the
/// upper ones.
fn four_bits(block: &[u8], at: usize) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { block[at + i] & 15 } else { block[at + i - 16] >> 4 })
}

/// The levels of 32 numbers of five bits: the highest lie in a word at `at`, the others behind it.
pub(super) fn five_bits(block: &[u8], at: usize) -> [u8; 32] {
    let word = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let four = four_bits(block, at + 4);
    std::array::from_fn(|i| four[i] | u8::from(word >> i & 1 == 1) << 4)
}

/// The levels of eight parts of 32 numbers of four bits: two parts have the halves of 32 bytes.
fn four_bits_of_parts(quants: &[u8]) -> [u8; 256] {
    std::array::from_fn(|i| {
        let byte = quants[i / 64 * 32 + i % 32];
        if i % 64 < 32 { byte & 15 } else { byte >> 4 }
    })
}

/// The levels of eight parts of 32 numbers of five bits, the highest of which are before the
/// others.
pub(super) fn five_bits_of_parts(quants: &[u8]) -> [u8; 256] {
    let (high, low) = quants.split_at(32);
    let low = four_bits_of_parts(low);
    std::array::from_fn(|i| low[i] | (high[i % 32] >> (i / 32) & 1) << 4)
}

/// Eight parts of 32 numbers with these levels: two scales of the whole and a scale and a minimum
/// of six bits a part in `head`.
fn super_block(head: &[u8], levels: &[u8; 256], out: &mut Vec<f32>) {
    let (scale, least) = (number(head, 0), number(head, 2));
    let packed = &head[4..16];
    for (part, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        let (of_scale, of_least) = factors_of(packed, part);
        let (scale, least) = (scale * f32::from(of_scale), least * f32::from(of_least));
        out.extend(levels.map(|level| scale * f32::from(level) - least));
    }
}

/// The factors of scale and minimum of one of eight parts: six bits each, in twelve bytes.
pub(super) fn factors_of(packed: &[u8], part: usize) -> (u8, u8) {
    match part {
        0..4 => (packed[part] & 63, packed[part + 4] & 63),
        _ => (
            (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4),
            (packed[part + 4] >> 4) | (packed[part] >> 6 << 4),
        ),
    }
}

/// The two bits of a number: each byte has those of four numbers that are 32 apart.
fn two_of(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// A scale and a minimum of four bits for 16 numbers of two.
fn two_bits(block: &[u8], out: &mut Vec<f32>) {
    let (factors, rest) = block.split_at(16);
    let (quants, _) = rest.split_at(64);
    let (scale, least) = (number(block, 80), number(block, 82));
    out.extend((0..256).map(|i| {
        let factor = factors[i / 16];
        let (scale, least) = (scale * f32::from(factor & 15), least * f32::from(factor >> 4));
        scale * f32::from(two_of(quants, i)) - least
    }));
}

/// The levels of 256 numbers, a signed factor for 16 of them, and the scale of all: a number is the
/// product of the three.
pub(super) type Factored = ([i8; 256], [u8; 16], f16);

/// Numbers of three bits, the highest of which is set where 4 is not taken off, with factors of six
/// bits, from which 32 are taken off.
fn three_bits(block: &[u8]) -> Factored {
    let (high, rest) = block.split_at(32);
    let (quants, rest) = rest.split_at(64);
    let (packed, _) = rest.split_at(12);
    let level = |i: usize| {
        let less = if high[i % 32] >> (i / 32) & 1 == 1 { 0 } else { 4 };
        two_of(quants, i).cast_signed() - less
    };
    let factor = |part: usize| {
        let low = packed[part % 8] >> (part / 8 * 4) & 15;
        let whole = low | (packed[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
        (whole.cast_signed() - 32).cast_unsigned()
    };
    let scale = f16::from_le_bytes([block[108], block[109]]);
    (std::array::from_fn(level), std::array::from_fn(factor), scale)
}

/// Numbers of six bits: of two halves of 128 four bits are in 64 bytes, and two in 32. Factors have
/// eight.
fn six_bits(block: &[u8]) -> Factored {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let level = |i: usize| {
        let (half, part, place) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[half * 64 + part % 2 * 32 + place];
        let four = if part < 2 { byte & 15 } else { byte >> 4 };
        let two = high[half * 32 + place] >> (2 * part) & 3;
        (four | two << 4).cast_signed() - 32
    };
    let scale = f16::from_le_bytes([block[208], block[209]]);
    (std::array::from_fn(level), std::array::from_fn(|part| rest[part]), scale)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    /// Blocks by the Python package `gguf`, made by `tests/goldens/gguf_files.py`.
    #[test]
    fn blocks_are_expanded_as_by_the_python_package() {
        let golden = include_bytes!("../../../tests/fixtures/gguf/blocks.safetensors");
        let golden = SafeTensors::deserialize(golden).unwrap();
        let kinds = [
            ("Q4_0", 2),
            ("Q4_1", 3),
            ("Q5_0", 6),
            ("Q5_1", 7),
            ("Q8_0", 8),
            ("Q4_K", 12),
            ("Q5_K", 13),
            ("Q6_K", 14),
            ("Q2_K", 10),
            ("Q3_K", 11),
            ("IQ4_NL", 20),
            ("MXFP4", 39),
        ];
        for (name, kind) in kinds {
            let encoding = Encoding::numbered(kind).unwrap();
            let blocks = golden.tensor(&format!("{name}.blocks")).unwrap().data().to_vec();
            let numbers = golden.tensor(&format!("{name}.numbers")).unwrap();
            let (count, size) = encoding.block();
            assert_eq!(blocks.len() / size * count * 4, numbers.data().len(), "{name}");
            assert!(blocks.len() / size >= 4, "{name}");
            assert!(encoding.plain(blocks) == numbers.data(), "{name}");
        }
    }

    #[test]
    fn sizes_are_of_whole_blocks_and_do_not_overflow() {
        assert_eq!(Encoding::Q4K.bytes(&[512, 3]), Some(2 * 3 * 144));
        assert_eq!(Encoding::F16.bytes(&[5, 3]), Some(30));
        assert_eq!(Encoding::Q8_0.bytes(&[33, 32]), None);
        assert_eq!(Encoding::F32.bytes(&[u64::MAX / 4, 2]), None);
        assert_eq!(Encoding::F32.bytes(&[1 << 40, 1 << 40]), None);
    }
}
