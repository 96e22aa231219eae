use briquette_ops::{QuantizedMatrix, QuantizedParts, WeightFormat};
use burn::tensor::Device;
use half::f16;

use super::blocks::{Encoding, factors_of, five_bits, five_bits_of_parts};
use crate::{Error, Result};

impl Encoding {
    /// The format of a matrix whose weights stay quantized; `None` for those that are expanded.
    pub(crate) fn format(self) -> Option<WeightFormat> {
        match self {
            // Levels of fewer bits are numbers of eight.
            Self::Q8_0 | Self::Q5_0 | Self::Iq4Nl | Self::Mxfp4 => Some(WeightFormat::Q8_0),
            Self::Q4_0 => Some(WeightFormat::Q4_0),
            Self::Q4_1 => Some(WeightFormat::Q4_1),
            Self::Q4K => Some(WeightFormat::Q4K),
            Self::Q5_1 => Some(WeightFormat::Q5_1),
            Self::Q5K => Some(WeightFormat::Q5K),
            Self::Q3K | Self::Q6K => Some(WeightFormat::Q6K),
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q2K => None,
        }
    }
}

/// The matrix of these blocks, `[outputs, inputs]`, with its levels; `None` if it cannot stay
/// quantized. They come in pieces of whole blocks. `name` is told in errors.
///
/// # Errors
/// [`Error::LoadTensor`] for what makes no matrix, and those of a piece.
pub(crate) fn matrix(
    name: &str,
    encoding: Encoding,
    dims: [usize; 2],
    pieces: impl IntoIterator<Item = Result<Vec<u8>>>,
    device: &Device,
) -> Result<Option<QuantizedMatrix>> {
    let Some(format) = encoding.format() else { return Ok(None) };
    let numbers = dims[0].saturating_mul(dims[1]);
    let mut parts = QuantizedParts::default();
    parts.words.reserve_exact(format.words(numbers));
    parts.scales.reserve_exact(numbers.div_ceil(encoding.block().0));
    for piece in pieces {
        if extend(&mut parts, format, encoding, &piece?).is_none() {
            return Ok(None);
        }
    }
    match QuantizedMatrix::new(format, dims, parts, device) {
        Ok(matrix) => Ok(Some(matrix)),
        Err(error) => Err(Error::LoadTensor { tensor: name.into(), message: error.to_string() }),
    }
}

/// Adds levels, scales, minima and factors of blocks, each to their own. Bytes that are no whole
/// block are left out. `None` for scales that are no f16: powers of two may be larger or smaller.
fn extend(
    parts: &mut QuantizedParts,
    format: WeightFormat,
    encoding: Encoding,
    bytes: &[u8],
) -> Option<()> {
    let (_, size) = encoding.block();
    for block in bytes.chunks_exact(size) {
        if format == WeightFormat::Q8_0 {
            let (exact, levels) = encoding.levels(block);
            let scale = f16::from_f32(exact);
            if scale.to_f32().to_bits() != exact.to_bits() {
                return None;
            }
            parts.scales.push(scale);
            parts.words.extend(words(&levels.map(i8::cast_unsigned)));
            continue;
        }
        if format == WeightFormat::Q6K {
            let (levels, factors, scale) = encoding.factored(block);
            parts.scales.push(scale);
            parts.factors.extend(words(&factors));
            parts.words.extend(words(&levels.map(i8::cast_unsigned)));
            continue;
        }
        let (scale, rest) = half(block);
        parts.scales.push(scale);
        match format {
            WeightFormat::Q5_1 => {
                let (min, _) = half(rest);
                parts.mins.push(min);
                parts.words.extend(words(&five_bits(block, 4)));
            }
            WeightFormat::Q4_1 => {
                let (min, levels) = half(rest);
                parts.mins.push(min);
                parts.words.extend(words(levels));
            }
            WeightFormat::Q4K | WeightFormat::Q5K => {
                let (min, rest) = half(rest);
                parts.mins.push(min);
                let (packed, levels) = rest.split_at(12);
                let factors = [0, 1, 2, 3, 4, 5, 6, 7].map(|part| factors_of(packed, part));
                parts.factors.extend(words(&factors.map(|(of_scale, _)| of_scale)));
                parts.factors.extend(words(&factors.map(|(_, of_min)| of_min)));
                if format == WeightFormat::Q5K {
                    parts.words.extend(words(&five_bits_of_parts(levels)));
                    continue;
                }
                let (pairs, _) = levels.as_chunks::<32>();
                for pair in pairs {
                    parts.words.extend(words(&side(pair, |byte| byte & 15)));
                    parts.words.extend(words(&side(pair, |byte| byte >> 4)));
                }
            }
            _ => parts.words.extend(words(rest)),
        }
    }
    Some(())
}

fn half(block: &[u8]) -> (f16, &[u8]) {
    let ([low, high], rest) = match block.split_first_chunk() {
        Some((bytes, rest)) => (*bytes, rest),
        None => ([0, 0], block),
    };
    (f16::from_le_bytes([low, high]), rest)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|bytes| i32::from_le_bytes(*bytes))
}

/// One half of each of 32 bytes, the first 16 in the lower halves of the result.
fn side(bytes: &[u8; 32], half: impl Fn(u8) -> u8) -> [u8; 16] {
    std::array::from_fn(|place| half(bytes[place]) | half(bytes[place + 16]) << 4)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    /// Blocks by the Python package `gguf`, made by `tests/goldens/gguf_files.py`.
    #[test]
    fn blocks_that_stay_are_those_of_the_python_package() {
        let golden = include_bytes!("../../../tests/fixtures/gguf/blocks.safetensors");
        let golden = SafeTensors::deserialize(golden).unwrap();
        // With the most that a block takes of its bytes in the file; the last ones have eight bits
        // for fewer.
        let kinds = [
            ("Q8_0", 8, 1.0),
            ("Q4_0", 2, 1.0),
            ("Q4_1", 3, 1.0),
            ("Q4_K", 12, 1.03),
            ("Q5_0", 6, 1.55),
            ("IQ4_NL", 20, 1.9),
            ("Q5_1", 7, 1.51),
            ("Q5_K", 13, 1.58),
            ("Q6_K", 14, 1.31),
            ("Q3_K", 11, 2.5),
        ];
        for (name, kind, most) in kinds {
            let encoding = Encoding::numbered(kind).unwrap();
            let format = encoding.format().unwrap();
            let blocks = golden.tensor(&format!("{name}.blocks")).unwrap();
            let numbers = golden.tensor(&format!("{name}.numbers")).unwrap();
            let expected: Vec<f32> = numbers
                .data()
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect();
            let device = briquette::device::open("flex").unwrap();
            let dims = [expected.len() / format.group(), format.group()];
            // In two pieces.
            let (_, size) = encoding.block();
            let (some, rest) = blocks.data().split_at(size);
            let pieces = [Ok(some.to_vec()), Ok(rest.to_vec())];
            let matrix = matrix(name, encoding, dims, pieces, &device).unwrap().unwrap();
            let found: Vec<f32> = matrix.dequantize().into_data().try_to_vec().unwrap();
            assert_eq!(found, expected, "{name}");
            let size = matrix.bytes() as f64 / blocks.data().len() as f64;
            assert!(size <= most, "{name} takes {size} times its bytes in the file");
        }
    }

    /// The blocks of the golden have all exponents.
    #[test]
    fn powers_of_two_stay_that_are_f16() {
        let block = |exponent: u8| [&[exponent][..], &[0x7f; 16]].concat();
        let parts = |exponents: &[u8]| {
            let blocks: Vec<u8> = exponents.iter().flat_map(|exponent| block(*exponent)).collect();
            let mut parts = QuantizedParts::default();
            extend(&mut parts, WeightFormat::Q8_0, Encoding::Mxfp4, &blocks).map(|()| parts)
        };
        let found = parts(&[104, 128, 143]).unwrap();
        let scales = found.scales.iter().map(|scale| scale.to_f32()).collect::<Vec<f32>>();
        assert_eq!(scales, [2_f32.powi(-24), 1.0, 2_f32.powi(15)]);
        // The upper halves are 7, which is twelve halves; the lower ones 15, which is less 12.
        assert_eq!(found.words[..8], [[-0x0b0b_0b0c; 4], [0x0c0c_0c0c; 4]].concat());
        assert!(parts(&[128, 103]).is_none() && parts(&[144]).is_none());
    }
}
