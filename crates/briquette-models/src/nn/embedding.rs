use std::sync::Arc;

use burn::{
    module::Module,
    nn,
    tensor::{DType, Device, Int, Tensor},
};

use briquette::ops::Ops;
use briquette_ops::QuantizedMatrix;

use crate::{
    Result,
    nn::{linear, quantized_linear},
};

/// The embeddings of tokens, which may be the weights of the head too.
#[derive(Module, Debug)]
pub(crate) enum Embedding {
    Dense(nn::Embedding),
    Quantized(QuantizedEmbedding),
}

/// Embeddings that stay quantized.
#[derive(Module, Debug)]
pub(crate) struct QuantizedEmbedding {
    /// `[vocab_size, hidden_size]`
    #[module(skip)]
    weight: Arc<QuantizedMatrix>,
    /// The type that the model computes in.
    #[module(skip)]
    dtype: DType,
}

impl Embedding {
    pub(crate) fn quantized(weight: QuantizedMatrix, dtype: DType) -> Self {
        Self::Quantized(QuantizedEmbedding { weight: Arc::new(weight), dtype })
    }

    /// The type that the model computes in.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Dense(inner) => inner.weight.val().dtype(),
            Self::Quantized(inner) => inner.dtype,
        }
    }

    /// The weights, if they are quantized.
    pub(crate) fn quantized_weight(&self) -> Option<&QuantizedMatrix> {
        match self {
            Self::Dense(_) => None,
            Self::Quantized(inner) => Some(&inner.weight),
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Dense(inner) => inner.weight.lazy_device(),
            Self::Quantized(inner) => inner.weight.device(),
        }
    }

    /// `[batch, tokens]` -> `[batch, tokens, hidden_size]`
    pub(crate) fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        match self {
            Self::Dense(inner) => inner.forward(tokens),
            Self::Quantized(inner) => {
                let [batch, columns] = tokens.dims();
                let rows = inner.weight.select(tokens.reshape([batch * columns]));
                rows.cast(inner.dtype).reshape([batch, columns, inner.weight.dims()[1]])
            }
        }
    }

    /// The product with all embeddings, `[batch, tokens, hidden_size]` -> `[batch, tokens,
    /// vocab_size]`.
    pub(crate) fn logits(&self, hidden: Tensor<3>, ops: &dyn Ops) -> Result<Tensor<3>> {
        match self {
            Self::Dense(inner) => {
                let embedding = inner.weight.val();
                let weight = embedding.clone().transpose();
                if ops.prefers_k_major(&weight) {
                    return linear::multiply(hidden, weight, None, ops);
                }
                let [batch, tokens, channels] = hidden.dims();
                let [vocab_size, _] = embedding.dims();
                // The embedding stands on the left, where its rows are read in order: as a
                // transposed right factor it made a decoded token ten times slower on the CPU.
                let columns = hidden.reshape([batch * tokens, channels]).transpose();
                let logits = embedding.matmul(columns).transpose();
                Ok(logits.reshape([batch, tokens, vocab_size]))
            }
            Self::Quantized(inner) => quantized_linear::multiply(hidden, &inner.weight, None, ops),
        }
    }
}
