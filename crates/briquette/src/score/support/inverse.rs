//! Inverses of small symmetric matrices, on the host.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{Error, Result};

/// Inverses of symmetric positive definite matrices, `[batch, heads, n, n]`, f32; computed in f64.
/// Read from the device and written back: n² numbers per head.
///
/// # Errors
/// [`Error::Stage`] if one is not positive definite. One that holds a NaN or an infinity has an
/// inverse of NaN.
pub(crate) fn inverse(matrices: Tensor<4>, stage: &str) -> Result<Tensor<4>> {
    let dims = matrices.dims();
    let (device, n) = (matrices.device(), dims[3]);
    let numbers = matrices.cast(DType::F32).try_into_vec_as::<f32>()?;
    let mut inverses = Vec::with_capacity(numbers.len());
    for matrix in numbers.chunks(n * n) {
        let matrix: Vec<f64> = matrix.iter().map(|&x| f64::from(x)).collect();
        let inverse = inverse_of(matrix, n).ok_or_else(|| Error::Stage {
            stage: "scorer",
            name: stage.to_owned(),
            reason: "met a matrix that is not positive definite".to_owned(),
        })?;
        inverses.extend(inverse.into_iter().map(|x| x as f32));
    }
    Ok(Tensor::from_data(TensorData::new(inverses, dims), (&device, DType::F32)))
}

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
