use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Precision of the product of two f32 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// The device's own product.
    Device,
    /// Products of two parts per operand, for f32 operands on a device that rounds them.
    Split,
}

impl Precision {
    /// Returns the precision that operands of these types need on this device: only f32 operands
    /// need more than the device's own product gives.
    pub(crate) fn of(types: &[DType], device: &Device) -> Self {
        let full = types.iter().all(|dtype| *dtype == DType::F32);
        if full && !multiplies_exactly(device) { Self::Split } else { Self::Device }
    }
}

/// Multiplies two f32 tensors, `[batch, heads, m, k]` by `[batch, heads, k, n]`.
///
/// Tensor cores round f32 operands to 11 bits (TF32), and Burn uses them where there are any: on an
/// H200 outputs of attention were off by 4e-4. Where a device does that, each operand is split into
/// its bf16 part and the rest, whose first 11 bits then survive, and the product is the sum of
/// four: 2⁻¹⁹ instead of 2⁻¹¹.
pub(crate) fn product(a: Tensor<4>, b: Tensor<4>, precision: Precision) -> Tensor<4> {
    if precision == Precision::Device {
        return a.matmul(b);
    }
    let (a_high, a_low) = split(a);
    let (b_high, b_low) = split(b);
    // The smallest terms are added first.
    a_low.clone().matmul(b_low.clone())
        + a_low.matmul(b_high.clone())
        + a_high.clone().matmul(b_low)
        + a_high.matmul(b_high)
}

/// Multiplies two f32 tensors, `[batch, heads, m, k]` by `[batch, heads, k, n]`, with a precision
/// of 2⁻¹⁹ at least, also where the device's own product rounds operands to 11 bits.
pub fn precise_product(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    let precision = Precision::of(&[a.dtype(), b.dtype()], &a.device());
    product(a, b, precision)
}

/// Splits numbers into their bf16 part and the rest.
fn split(x: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let high = x.clone().cast(DType::BF16).cast(DType::F32);
    let low = x - high.clone();
    (high, low)
}

/// Whether the device multiplies f32 matrices with all their bits. It is tried out once per device,
/// on products that TF32 gets wrong in every element, in sizes that may go to different kernels.
fn multiplies_exactly(device: &Device) -> bool {
    static TRIED: Mutex<Vec<(Device, bool)>> = Mutex::new(Vec::new());
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, exact)) = tried.iter().find(|(known, _)| known == device) {
        return *exact;
    }
    let exact = [16, 64, 256].into_iter().all(|size| {
        // 1 + 2⁻¹³ has 13 bits behind the point; size times it is still exact in f32.
        let number = 1.0 + 1.0 / 8192.0;
        let matrix = |number: f32| {
            let data = TensorData::new(vec![number; size * size], [1, 1, size, size]);
            Tensor::<4>::from_data(data, (device, DType::F32))
        };
        let sums = matrix(number).matmul(matrix(1.0)).try_into_vec_as::<f32>();
        // A device that cannot answer fails in the call itself, with its own error.
        sums.is_ok_and(|sums| sums.iter().all(|sum| *sum == size as f32 * number))
    });
    tried.push((device.clone(), exact));
    exact
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    #[test]
    fn parts_add_up() {
        let x = Tensor::<4>::random([1, 2, 3, 50], Distribution::Normal(0.0, 3.0), &Device::flex());
        let (high, low) = split(x.clone());
        let sum = (high.clone() + low.clone()).try_into_vec_as::<f32>().unwrap();
        assert_eq!(sum, x.try_into_vec_as::<f32>().unwrap());
        let (high, low) = (high.abs(), low.abs());
        let ratio = (low / high).max().try_into_scalar::<f32>().unwrap();
        assert!(ratio <= 1.0 / 256.0, "{ratio}");
    }

    #[test]
    fn the_sum_of_the_parts_products_is_the_product() {
        let random = |shape| Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex());
        let (a, b) = (random([1, 2, 5, 40]), random([1, 2, 40, 7]));
        let plain = product(a.clone(), b.clone(), Precision::Device);
        let split = product(a, b, Precision::Split);
        let off = (plain - split).abs().max().try_into_scalar::<f32>().unwrap();
        assert!(off < 1e-5, "{off}");
    }

    #[test]
    fn flex_multiplies_exactly() {
        assert!(multiplies_exactly(&Device::flex()));
    }
}
