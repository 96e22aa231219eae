use burn::tensor::Tensor;

use crate::{
    Result,
    ops::Ops,
    position::{Encode, PositionEncoding, mean_rotation},
};

/// How positions enter the queries and keys of a layer in this call.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    /// How keys are encoded, if they are held as they came.
    pub(crate) keys: Option<Encode<'a>>,
    pub(crate) encoding: &'a dyn PositionEncoding,
    /// The position that the next token will be encoded at, one number a batch row.
    pub(crate) next: Vec<usize>,
}

impl Encoded<'_> {
    /// Keys as they are held, encoded.
    pub(crate) fn keys(&self, keys: Tensor<4>, ops: &dyn Ops) -> Result<Tensor<4>> {
        Encode::keys(self.keys.as_ref(), keys, ops)
    }

    /// The mean rotation of the next `count` positions, `[batch, 1, head_dim, head_dim]`.
    pub(crate) fn mean_rotation(&self, count: usize, like: &Tensor<4>) -> Result<Tensor<4>> {
        mean_rotation(self.encoding, &self.next, count, like.dims()[3], &like.device())
    }
}
