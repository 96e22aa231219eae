//! Inverses of small symmetric matrices, on the host.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{Error, Result};

/// Inverses of symmetric positive semidefinite matrices with `ridge` added to their diagonals,
/// `[batch, heads, n, n]`, f32; computed in f64. Read from the device and written back: n² numbers
/// per head.
///
/// A matrix of sums that were rounded to f32 may have an eigenvalue further below zero than the
/// ridge lifts it, as keys that repeat have: there the ridge is ten times as large, up to
/// [`TRIES`] times, as in kvpress's `chol_with_jitter`.
///
/// # Errors
/// [`Error::Stage`] if one is not positive definite then. One that holds a NaN or an infinity has
/// an inverse of NaN.
pub(crate) fn inverse(matrices: Tensor<4>, ridge: f64, stage: &str) -> Result<Tensor<4>> {
    let dims = matrices.dims();
    let (device, n) = (matrices.device(), dims[3]);
    let numbers = matrices.cast(DType::F32).try_into_vec_as::<f32>()?;
    let mut inverses = Vec::with_capacity(numbers.len());
    for matrix in numbers.chunks(n * n) {
        let with_ridge = |ridge: f64| {
            let entry =
                |(at, x): (usize, &f32)| f64::from(*x) + if at / n == at % n { ridge } else { 0.0 };
            matrix.iter().enumerate().map(entry).collect::<Vec<f64>>()
        };
        let mut ridges = (0..TRIES).map(|tries| ridge * 10f64.powi(tries));
        let inverse = ridges.find_map(|ridge| inverse_of(with_ridge(ridge), n));
        let inverse = inverse.ok_or_else(|| Error::Stage {
            stage: "scorer",
            name: stage.to_owned(),
            reason: format!(
                "met a matrix that is not positive definite with {ridge} to 10⁴ times that added"
            ),
        })?;
        inverses.extend(inverse.into_iter().map(|x| x as f32));
    }
    Ok(Tensor::from_data(TensorData::new(inverses, dims), (&device, DType::F32)))
}

/// Ridges that are tried, each ten times that before.
const TRIES: i32 = 5;

/// Inverse of one matrix, row by row, by Cholesky: A = L Lᵀ, A⁻¹ = L⁻ᵀ L⁻¹.
fn inverse_of(mut lower: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    for column in 0..n {
        for row in column..n {
            let known: f64 = (0..column).map(|k| lower[row * n + k] * lower[column * n + k]).sum();
            let rest = lower[row * n + column] - known;
            if row > column {
                lower[row * n + column] = rest / lower[column * n + column];
            } else if rest > 0.0 && rest.is_finite() {
                lower[row * n + column] = rest.sqrt();
            } else if rest.is_finite() {
                return None;
            } else {
                return Some(vec![f64::NAN; n * n]);
            }
        }
    }
    // L⁻¹, lower too.
    let mut roots = vec![0.0; n * n];
    for column in 0..n {
        for row in column..n {
            let known: f64 =
                (column..row).map(|k| lower[row * n + k] * roots[k * n + column]).sum();
            let unit = if row == column { 1.0 } else { 0.0 };
            roots[row * n + column] = (unit - known) / lower[row * n + row];
        }
    }
    let entry = |row: usize, column: usize| -> f64 {
        (row.max(column)..n).map(|k| roots[k * n + row] * roots[k * n + column]).sum()
    };
    Some((0..n * n).map(|at| entry(at / n, at % n)).collect())
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

    #[test]
    fn a_matrix_times_its_inverse_is_one() {
        let matrix = [4.0, 2.0, 0.6, 2.0, 5.0, -1.0, 0.6, -1.0, 3.0];
        let inverse = inverse_of(matrix.to_vec(), 3).unwrap();
        for row in 0..3 {
            for column in 0..3 {
                let product: f64 =
                    (0..3).map(|k| matrix[row * 3 + k] * inverse[k * 3 + column]).sum();
                let unit = if row == column { 1.0 } else { 0.0 };
                assert!((product - unit).abs() < 1e-12, "{row}, {column}: {product}");
            }
        }
        assert_eq!(inverse_of(vec![1.0, 2.0, 2.0, 1.0], 2), None);
        assert!(inverse_of(vec![f64::NAN], 1).is_some_and(|inverse| inverse[0].is_nan()));
    }
}
