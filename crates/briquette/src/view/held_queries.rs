use burn::tensor::{DType, Tensor, TensorData};

use crate::ops::{precise_product, send};

/// The queries of a layer since its last compression, before their positions are encoded.
#[derive(Clone, Debug)]
pub struct HeldQueries {
    /// `[batch, query_heads, queries, head_dim]`.
    pub queries: Tensor<4>,
    /// The position of each query, `[batch][queries]`; queries at −1 do not count.
    pub positions: Vec<Vec<i64>>,
}

impl HeldQueries {
    /// Returns the mean and the covariance of the queries, without those at positions before
    /// `first`: `[batch, query_heads, 1, head_dim]` and `[batch, query_heads, head_dim, head_dim]`,
    /// f32. Zeros where no query is left.
    pub fn moments(&self, first: usize) -> (Tensor<4>, Tensor<4>) {
        let (queries, mask, number) = self.counted(first);
        let mean = (queries.clone() * mask.clone()).sum_dim(2) / number.clone();
        let centred = (queries - mean.clone()) * mask;
        let covariance = precise_product(centred.clone().swap_dims(2, 3), centred) / number;
        (mean, covariance)
    }

    /// Returns the mean alone.
    pub fn mean(&self, first: usize) -> Tensor<4> {
        let (queries, mask, number) = self.counted(first);
        (queries * mask).sum_dim(2) / number
    }

    /// Returns the queries in f32, which of them count, `[batch, 1, queries, 1]`, and how many do,
    /// at least 1, `[batch, 1, 1, 1]`.
    fn counted(&self, first: usize) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let queries = self.queries.clone().cast(DType::F32);
        let [batch, _, columns, _] = queries.dims();
        let counts = |&position: &i64| position >= first as i64;
        let mask = self.positions.iter().flatten();
        let mask: Vec<f32> = mask.map(|position| f32::from(counts(position))).collect();
        let of_row = |row: &Vec<i64>| row.iter().filter(|it| counts(it)).count().max(1) as f32;
        let number: Vec<f32> = self.positions.iter().map(of_row).collect();
        let device = queries.device();
        let options = (&device, DType::F32);
        let mask: Tensor<4> =
            send("queries that count", TensorData::new(mask, [batch, 1, columns, 1]), options);
        let number: Tensor<4> =
            send("queries that count", TensorData::new(number, [batch, 1, 1, 1]), options);
        (queries, mask, number)
    }
}
