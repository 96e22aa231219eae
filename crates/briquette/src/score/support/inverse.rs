//! Inverses of small symmetric matrices.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{Error, Result, ops::inverses};

/// Inverses of symmetric positive semidefinite matrices with `ridge` added to their diagonals,
/// `[batch, heads, n, n]`, f32; computed in f64, on all cores of the host. Read from the device and
/// written back: n² numbers per head.
///
/// # Errors
/// [`Error::Stage`] if one is not positive definite with [ten thousand times](inverses) the ridge.
/// One that holds a NaN or an infinity has an inverse of NaN.
pub(crate) fn inverse(matrices: Tensor<4>, ridge: f64, stage: &str) -> Result<Tensor<4>> {
    let dims = matrices.dims();
    let device = matrices.device();
    let numbers = matrices.cast(DType::F32).try_into_vec_as::<f32>()?;
    let inverses = inverses(&numbers, dims[3], ridge).ok_or_else(|| {
        let met = "met a matrix that is not positive definite with";
        Error::stage("scorer", stage, format!("{met} {ridge} to 10⁴ times that added"))
    })?;
    Ok(Tensor::from_data(TensorData::new(inverses, dims), (&device, DType::F32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounding took the least eigenvalue of a matrix below zero.
    #[test]
    fn a_ridge_grows_until_it_lifts_a_matrix() {
        let device = crate::device::open("flex").unwrap();
        let inverse = |least: f32, ridge| {
            let numbers = TensorData::new(vec![4000.0, 0.0, 0.0, least], [1, 1, 2, 2]);
            let matrix = Tensor::from_data(numbers, (&device, DType::F32));
            super::inverse(matrix, ridge, "leverage")
        };
        let found = |least, ridge| inverse(least, ridge).unwrap().try_into_vec_as::<f32>().unwrap();
        assert_eq!(found(1.0, 1.0)[3], 0.5);
        let lifted = found(-0.05, 0.01)[3];
        assert!((lifted - 1.0 / 0.05).abs() < 1e-3, "{lifted}");
        let error = inverse(-1000.0, 0.01).unwrap_err().to_string();
        assert!(error.contains("not positive definite with 0.01"), "{error}");
    }
}
