use std::sync::Arc;

use burn::{
    module::Module,
    nn,
    tensor::{DType, Device, Int, Tensor},
};

use briquette::ops::{LinearInput, Ops, QuantizedMatrix};

use crate::{Result, nn::quantized_linear::multiply};

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
    #[module(skip)]
    ops: Arc<dyn Ops>,
}

impl Embedding {
    pub(crate) fn quantized(weight: QuantizedMatrix, dtype: DType, ops: Arc<dyn Ops>) -> Self {
        Self::Quantized(QuantizedEmbedding { weight: Arc::new(weight), dtype, ops })
    }

    /// The type that the model computes in.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Dense(inner) => inner.weight.val().dtype(),
            Self::Quantized(inner) => inner.dtype,
        }
    }

    /// Bytes of the weights, if they are quantized.
    pub(crate) fn quantized_bytes(&self) -> usize {
        match self {
            Self::Dense(_) => 0,
            Self::Quantized(inner) => inner.weight.bytes(),
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
                let [batch, tokens, channels] = hidden.dims();
                let embedding = inner.weight.val();
                let [vocab_size, _] = embedding.dims();
                let weight = embedding.clone().transpose();
                if ops.prefers_k_major(&weight) {
                    let x = hidden.reshape([batch * tokens, channels]);
                    let logits = ops.linear(LinearInput { x, weight, bias: None });
                    let logits = logits.map_err(briquette::Error::from)?;
                    return Ok(logits.reshape([batch, tokens, vocab_size]));
                }
                // The embedding stands on the left, where its rows are read in order: as a
                // transposed right factor it made a decoded token ten times slower on the CPU.
                let columns = hidden.reshape([batch * tokens, channels]).transpose();
                let logits = embedding.matmul(columns).transpose();
                Ok(logits.reshape([batch, tokens, vocab_size]))
            }
            Self::Quantized(inner) => multiply(hidden, &inner.weight, None, inner.ops.as_ref()),
        }
    }
}
