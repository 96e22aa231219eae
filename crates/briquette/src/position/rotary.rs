use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::{Result, check};

/// Rotary position embedding (RoPE; Su et al., 2021), in the layout of Llama checkpoints: channel
/// `i` is paired with channel `i + head_dim / 2`.
///
/// Cosines and sines come from a table made on the host from angles rounded to f32 (as
/// `transformers` does), so every backend rotates by the same numbers. The table grows with the
/// positions requested: a model of a million positions that reads a thousand has a table of a few
/// thousand. Clones share it.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// Radians per position, one number per pair of channels.
    frequencies: Arc<[f32]>,
    attention_scaling: f64,
    device: Device,
    tables: Arc<Mutex<Tables>>,
    pub(super) max_positions: usize,
}

/// Cosines and sines of the first positions.
#[derive(Debug)]
struct Tables {
    /// Rows of each table.
    positions: usize,
    /// Cosines and sines, each `[positions, head_dim / 2]`, f32.
    whole: (Tensor<2>, Tensor<2>),
    /// Cosines and sines in half precision, once they are requested.
    half: Option<(Tensor<2>, Tensor<2>)>,
    /// Cosines and sines that turn back, once they are requested.
    inverse: Option<(Tensor<2>, Tensor<2>)>,
}

/// Number of positions of the first table.
const FIRST: usize = 4096;

impl RotaryEmbedding {
    /// Creates the plain embedding: frequency `i` is `theta^(-2i / head_dim)`.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) if `head_dim` is odd or zero,
    /// `max_positions` is zero, or `theta` is not positive.
    pub fn new(head_dim: usize, max_positions: usize, theta: f64, device: &Device) -> Result<Self> {
        if !(theta.is_finite() && theta > 0.0) {
            return check::refuse("theta", theta, "a positive number");
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return check::refuse("head_dim", head_dim, "even and at least 2");
        }
        let frequencies = Self::inverse_frequencies(head_dim, theta);
        Self::with_inverse_frequencies(&frequencies, max_positions, 1.0, device)
    }

    /// Returns the frequencies of the plain embedding in radians per position, one per pair of
    /// channels: `[head_dim / 2]`.
    ///
    /// Every step is rounded to f32 in the order of `transformers`: at position 4096 one unit in
    /// the last place of a frequency already shows in the logits.
    pub fn inverse_frequencies(head_dim: usize, theta: f64) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32))
            .collect()
    }

    /// Creates an embedding with these frequencies (radians per position), one per pair of
    /// channels; for scaled variants. `attention_scaling` multiplies cosines and sines.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) if there are no frequencies or
    /// no positions, or a number is not finite.
    pub fn with_inverse_frequencies(
        frequencies: &[f32],
        max_positions: usize,
        attention_scaling: f64,
        device: &Device,
    ) -> Result<Self> {
        if frequencies.is_empty() || frequencies.iter().any(|f| !f.is_finite()) {
            let found = format!("{frequencies:?}");
            return check::refuse("frequencies", found, "finite and at least one");
        }
        check::count("max_positions", max_positions)?;
        if !attention_scaling.is_finite() || attention_scaling == 0.0 {
            return check::refuse("attention_scaling", attention_scaling, "finite and not 0");
        }
        let tables = Tables::new(frequencies, max_positions.min(FIRST), attention_scaling, device);
        Ok(Self {
            frequencies: frequencies.into(),
            attention_scaling,
            device: device.clone(),
            tables: Arc::new(Mutex::new(tables)),
            max_positions,
        })
    }

    /// Returns the cosines and sines of at least the first `positions` positions, or of all if
    /// there are fewer: each `[positions or more, head_dim / 2]`, f32.
    pub fn tables(&self, positions: usize) -> (Tensor<2>, Tensor<2>) {
        self.grown(positions).whole.clone()
    }

    /// Returns cosines and sines for a kernel that encodes keys of this type as it reads them, like
    /// [`tables`](Self::tables). They are f16 where keys have 16 bits and the device has it,
    /// otherwise f32.
    ///
    /// A kernel reads the tables once per token, four times as many bytes as the key if tokens
    /// share it. f16 holds a cosine to 2^-12, where a rotated key is rounded to 2^-9 of itself in
    /// bf16 and 2^-12 in f16.
    pub fn tables_for(&self, keys: DType, positions: usize) -> (Tensor<2>, Tensor<2>) {
        let short = matches!(keys, DType::BF16 | DType::F16);
        if !short || !self.device.supports_dtype(DType::F16) {
            return self.tables(positions);
        }
        let half = |table: &Tensor<2>| table.clone().cast(DType::F16);
        let mut tables = self.grown(positions);
        let Tables { whole: (cosines, sines), half: known, .. } = &mut *tables;
        known.get_or_insert_with(|| (half(cosines), half(sines))).clone()
    }

    /// Returns the cosines and sines that turn back what [`tables`](Self::tables) turn, of as many
    /// positions.
    pub(crate) fn inverse_tables(&self, positions: usize) -> (Tensor<2>, Tensor<2>) {
        let squared = self.attention_scaling * self.attention_scaling;
        let mut tables = self.grown(positions);
        let Tables { whole: (cosines, sines), inverse, .. } = &mut *tables;
        let made = || (cosines.clone() / squared, sines.clone() / -squared);
        inverse.get_or_insert_with(made).clone()
    }

    /// Returns tables of at least `positions` positions. They double, so that few sizes occur and
    /// few tables are made.
    fn grown(&self, positions: usize) -> MutexGuard<'_, Tables> {
        // Tables are replaced whole: one that was being made when a thread panicked is not there.
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if tables.positions < positions.min(self.max_positions) {
            let doubled = positions.checked_next_power_of_two().unwrap_or(usize::MAX);
            let positions = doubled.min(self.max_positions);
            *tables =
                Tables::new(&self.frequencies, positions, self.attention_scaling, &self.device);
        }
        tables
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Number of channels per head.
    pub fn head_dim(&self) -> usize {
        2 * self.frequencies.len()
    }
}

impl Tables {
    fn new(frequencies: &[f32], positions: usize, scaling: f64, device: &Device) -> Self {
        let angles = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| f64::from(position as f32 * f)));
        let (cosines, sines): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sine, cosine) = angle.sin_cos();
                ((cosine * scaling) as f32, (sine * scaling) as f32)
            })
            .unzip();
        let shape = [positions, frequencies.len()];
        let table = |data| Tensor::from_data(TensorData::new(data, shape), (device, DType::F32));
        Self { positions, whole: (table(cosines), table(sines)), half: None, inverse: None }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn keys_of_16_bits_have_tables_of_16_bits() {
        let device = Device::flex();
        let rope = RotaryEmbedding::new(8, 5, 10_000.0, &device).unwrap();
        let numbers = |x: Tensor<2>| x.cast(DType::F32).try_into_vec_as::<f32>().unwrap();
        let (cosines, sines) = rope.tables(5);
        let (same, _) = rope.tables_for(DType::F32, 5);
        assert_eq!(same.dtype(), DType::F32);
        assert_eq!(numbers(same), numbers(cosines.clone()));
        for keys in [DType::BF16, DType::F16] {
            let (half_cosines, half_sines) = rope.tables_for(keys, 5);
            for (half, whole) in [(half_cosines, &cosines), (half_sines, &sines)] {
                assert_eq!(half.dtype(), DType::F16);
                let both = numbers(half).into_iter().zip(numbers(whole.clone()));
                both.for_each(|(half, whole)| assert!((half - whole).abs() <= 2_f32.powi(-12)));
            }
        }
    }
    #[test]
    fn tables_grow_with_what_is_asked_for() {
        let device = Device::flex();
        // All of it would be 200 GB.
        let rope = RotaryEmbedding::new(8, 10_000_000_000, 10_000.0, &device).unwrap();
        let rows = |rope: &RotaryEmbedding, positions| rope.tables(positions).0.dims()[0];
        assert_eq!([0, 4096, 4097].map(|positions| rows(&rope, positions)), [4096, 4096, 8192]);
        assert_eq!(rope.tables_for(DType::F16, 9000).1.dims(), [16_384, 4]);
        // A clone has them, and no table shrinks or ends beyond the last position.
        assert_eq!(rows(&rope.clone(), 1), 16_384);
        let short = RotaryEmbedding::new(8, 5000, 10_000.0, &device).unwrap();
        assert_eq!(
            [1, 4097, usize::MAX].map(|positions| rows(&short, positions)),
            [4096, 5000, 5000]
        );
        let numbers = |table: Tensor<2>| table.try_into_vec_as::<f32>().unwrap();
        let (long, short) = (rope.tables(5000), short.tables(5000));
        assert_eq!(numbers(long.0.narrow(0, 0, 5000)), numbers(short.0));
        assert_eq!(numbers(long.1.narrow(0, 0, 5000)), numbers(short.1));
    }
}
