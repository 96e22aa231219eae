use burn::tensor::{Device, f16};
use rayon::prelude::*;

use super::{
    format::{BLOCK, WeightFormat},
    matrix::QuantizedMatrix,
    parts::QuantizedParts,
};
use crate::error::{OpError, Result};

const NAME: &str = "quantize_weights";

impl QuantizedMatrix {
    /// Quantizes rows of weights, `[outputs, inputs]`, to the nearest level. As in ggml the scale
    /// of a group is the magnitude of its largest weight over 127, or where levels have four bits
    /// that weight over -8.
    ///
    /// # Errors
    /// [`OpError::Value`] for a format with minima or factors, which are not chosen here, and for
    /// weights that are not finite or too large for f16 scales; as [`new`](Self::new) for shapes.
    pub fn quantize(
        format: WeightFormat,
        [outputs, inputs]: [usize; 2],
        weights: &[f32],
        device: &Device,
    ) -> Result<Self> {
        let group = format.group();
        let whole = inputs > 0 && inputs.is_multiple_of(group);
        OpError::check_value(NAME, "inputs", inputs, whole, format!("a multiple of {group}"))?;
        let scaled = !format.has_min() && !format.has_factors();
        let what = "minima or factors";
        OpError::check_value(NAME, what, usize::from(!scaled), scaled, "a format without")?;
        OpError::check_shape(NAME, "weights", [weights.len()], [outputs.saturating_mul(inputs)])?;
        let groups: Vec<(f16, Vec<i32>)> =
            weights.par_chunks(group).map(|group| quantized(format, group)).collect();
        let finite = groups.iter().all(|(scale, _)| scale.is_finite());
        let found = usize::from(!finite);
        OpError::check_value(NAME, "weights without a scale", found, finite, "finite weights")?;
        let mut parts = QuantizedParts::default();
        for (scale, words) in groups {
            parts.scales.push(scale);
            parts.words.extend(words);
        }
        Self::new(format, [outputs, inputs], parts, device)
    }
}

/// The scale of a group, and its levels.
fn quantized(format: WeightFormat, group: &[f32]) -> (f16, Vec<i32>) {
    let largest = group.iter().copied().fold(0.0_f32, |largest, weight| {
        // NaN is no less than anything, and stays.
        if weight.abs() <= largest.abs() { largest } else { weight }
    });
    let eight = format.bits() == 8;
    let scale = if eight { largest.abs() / 127.0 } else { largest / -8.0 };
    let scale = f16::from_f32(scale);
    let inverse = match scale.to_f32() {
        0.0 => 0.0,
        scale => scale.recip(),
    };
    let level = |weight: f32| (weight * inverse).round();
    let (blocks, _) = group.as_chunks::<BLOCK>();
    let bytes = blocks.iter().flat_map(|block| match eight {
        true => block.iter().map(|&x| (level(x) as i8).cast_unsigned()).collect::<Vec<u8>>(),
        false => {
            let half = |x: f32| (level(x) + 8.0).clamp(0.0, 15.0) as u8;
            let (low, high) = block.split_at(BLOCK / 2);
            low.iter().zip(high).map(|(&low, &high)| half(low) | half(high) << 4).collect()
        }
    });
    let bytes: Vec<u8> = bytes.collect();
    let words = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    (scale, words.collect())
}
