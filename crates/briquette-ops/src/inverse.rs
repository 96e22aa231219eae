//! Inverses of small symmetric matrices, on the host.

use rayon::{iter::ParallelIterator, slice::ParallelSlice};

/// Ridges that are tried, each ten times that before.
const TRIES: i32 = 5;

/// Inverses of symmetric positive semidefinite matrices of `n` rows with `ridge` added to their
/// diagonals, one after another, row by row; computed in f64, on all cores. One that holds a NaN or
/// an infinity has an inverse of NaN; `None` if one is not positive definite.
///
/// A matrix of sums that were rounded to f32 may have an eigenvalue further below zero than the
/// ridge lifts it, as keys that repeat have: there the ridge is ten times as large, up to ten
/// thousand times, as in kvpress's `chol_with_jitter`.
pub fn inverses(matrices: &[f32], n: usize, ridge: f64) -> Option<Vec<f32>> {
    let of_matrix = |matrix: &[f32]| {
        let with_ridge = |ridge: f64| {
            let entry =
                |(at, x): (usize, &f32)| f64::from(*x) + if at / n == at % n { ridge } else { 0.0 };
            matrix.iter().enumerate().map(entry).collect::<Vec<f64>>()
        };
        let mut ridges = (0..TRIES).map(|tries| ridge * 10f64.powi(tries));
        let inverse = ridges.find_map(|ridge| inverse_of(with_ridge(ridge), n))?;
        Some(inverse.into_iter().map(|x| x as f32).collect())
    };
    let all: Option<Vec<Vec<f32>>> = matrices.par_chunks((n * n).max(1)).map(of_matrix).collect();
    all.map(|all| all.concat())
}

/// Inverse of one matrix, row by row, by Cholesky: A = L Lᵀ, A⁻¹ = L⁻ᵀ L⁻¹.
fn inverse_of(mut lower: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    for column in 0..n {
        for row in column..n {
            let known: f64 = lower[row * n..][..column]
                .iter()
                .zip(&lower[column * n..][..column])
                .map(|(a, b)| a * b)
                .sum();
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
    let mut inverse = vec![0.0; n * n];
    for row in 0..n {
        for column in 0..=row {
            let entry: f64 = (row..n).map(|k| roots[k * n + row] * roots[k * n + column]).sum();
            inverse[row * n + column] = entry;
            inverse[column * n + row] = entry;
        }
    }
    Some(inverse)
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
