use std::io;

use briquette_ops::QuantizedMatrix;
use burn::tensor::{DType, Device};
use burn_store::burn_pack::{Bytes, Error as PackError, Tensor};

use crate::{
    Error, Result,
    checkpoint::{
        gguf::{Encoding, matrix},
        stacked::Outputs,
        tensors::Stored,
    },
};

/// Numbers of a block, which has one scale, and its bytes.
const BLOCK: (usize, usize) = (32, 16);

/// Matrices of experts in MXFP4, the Open Compute Project's Microscaling Formats 1.0 (2023), with
/// outputs as rows.
#[derive(Clone)]
pub(super) struct Mxfp4 {
    /// `[experts, outputs, groups, 16]`: two numbers a byte, the first in the lower half.
    blocks: Stored,
    /// `[experts, outputs, groups]`: the power of two of each block, and 127.
    scales: Stored,
    /// Outputs of a matrix.
    outputs: usize,
    /// Blocks of a row.
    groups: usize,
}

/// The rows of one expert that belong to a projection.
#[derive(Clone)]
pub(super) struct Rows {
    all: Mxfp4,
    expert: usize,
    chosen: Outputs,
}

impl Mxfp4 {
    /// `None` for tensors that are not of so many experts.
    pub(super) fn of(blocks: Stored, scales: Stored, experts: usize) -> Option<Self> {
        let (&[count, outputs, groups, 16], of_scales) =
            (blocks.tensor.shape.as_slice(), scales.tensor.shape.as_slice())
        else {
            return None;
        };
        let bytes = [blocks.tensor.dtype, scales.tensor.dtype] == [DType::U8; 2];
        let fits = count == experts && of_scales == [count, outputs, groups] && bytes;
        // As with other tensors of experts, each has a number.
        let fits = fits && outputs > 0 && groups > 0;
        fits.then_some(Self { blocks, scales, outputs, groups })
    }

    pub(super) fn rows(&self, expert: usize, chosen: Outputs) -> Rows {
        Rows { all: self.clone(), expert, chosen }
    }
}

impl Rows {
    /// `[outputs, inputs]`
    fn shape(&self) -> [usize; 2] {
        [self.chosen.among(self.all.outputs).len(), self.all.groups.saturating_mul(BLOCK.0)]
    }

    /// The matrix with its levels; `None` if its scales are no f16.
    ///
    /// # Errors
    /// [`Error::LoadTensor`] for one that cannot be read.
    pub(super) fn quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        let failed = |error: io::Error| Error::LoadTensor {
            tensor: name.into(),
            message: error.to_string(),
        };
        let blocks = self.read().map_err(failed);
        matrix(name, Encoding::Mxfp4, self.shape(), [blocks], device)
    }

    /// The matrix with its numbers, when it is read.
    pub(super) fn deferred(&self, name: String) -> Stored {
        let (shape, rows) = (self.shape(), self.clone());
        let length = shape.iter().product::<usize>().saturating_mul(DType::F32.size());
        let provider = move || match rows.read() {
            Ok(blocks) => Ok(Bytes::from_bytes_vec(Encoding::Mxfp4.plain(blocks))),
            Err(error) => Err(PackError::IoError(error.to_string())),
        };
        // Each block has a byte of scale.
        let blocks = self.chosen.among(self.all.outputs).len().saturating_mul(self.all.groups);
        let bytes = blocks.saturating_mul(BLOCK.1.saturating_add(1));
        let numbers = Tensor::deferred(name, DType::F32, shape, None, length, provider);
        Stored::of_size(numbers, bytes as u64)
    }

    /// The blocks as GGUF files have them: the scale, then bytes with a number of the first half
    /// and one of the second.
    fn read(&self) -> io::Result<Vec<u8>> {
        let Mxfp4 { blocks, scales, outputs, groups } = &self.all;
        let row = groups.saturating_mul(BLOCK.1);
        let of_expert = |stored: &Stored, row: usize| {
            let bytes = outputs.saturating_mul(row);
            let start = self.expert.saturating_mul(bytes);
            stored.bytes(start..start.saturating_add(bytes))
        };
        let (blocks, scales) = (of_expert(blocks, row)?, of_expert(scales, *groups)?);
        let rows = blocks.chunks_exact(row.max(1)).zip(scales.chunks_exact((*groups).max(1)));
        let rows: Vec<(&[u8], &[u8])> = rows.collect();
        let mut out = Vec::with_capacity(blocks.len().saturating_add(scales.len()));
        let chosen = self.chosen.among(*outputs).filter_map(|output| rows.get(output));
        for (pairs, scales) in chosen {
            let (pairs, _) = pairs.as_chunks();
            for (scale, pairs) in scales.iter().zip(pairs) {
                out.push(*scale);
                push_halves(pairs, &mut out);
            }
        }
        Ok(out)
    }
}

/// Numbers in pairs of neighbours as pairs of one of each half.
fn push_halves(pairs: &[u8; BLOCK.1], out: &mut Vec<u8>) {
    let (first, second) = pairs.split_at(BLOCK.1 / 2);
    for (first, second) in first.iter().zip(second) {
        out.extend([first & 15 | second << 4, first >> 4 | second & 0xf0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_the_numbers_of_pairs() {
        // The numbers 0 to 15, twice; those of the second half from 15 on.
        let pairs: [u8; 16] = std::array::from_fn(|byte| match byte as u8 {
            byte @ 0..8 => (2 * byte) | ((2 * byte + 1) << 4),
            byte => (31 - 2 * byte) | ((30 - 2 * byte) << 4),
        });
        let expected: Vec<u8> = (0..16).map(|place| place | ((15 - place) << 4)).collect();
        let mut found = Vec::new();
        push_halves(&pairs, &mut found);
        assert_eq!(found, expected);
    }
}
