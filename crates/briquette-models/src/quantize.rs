use burn::tensor::{DType, Tensor};

use briquette_ops::QuantizedMatrix;

use crate::{
    Model, Result, WeightBits,
    nn::{
        delta_net::GATES_OF_STATE, embedding::Embedding, latent::READ_BY_HEADS,
        projection::Projection,
    },
};

impl Model {
    /// The same model with quantized weights: those of its linear layers in so many bits, its
    /// embeddings in eight, each level the nearest, and an f16 scale for 128 weights
    /// ([format](WeightBits::format)). Rows of other lengths, the gates of experts and
    /// of recurrent states, what latent attention expands by, and what is quantized already stay as
    /// they are. It takes about
    /// a half or a quarter of the bytes of 16-bit weights.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) for weights that are not finite.
    pub fn quantize_weights(mut self, bits: WeightBits) -> Result<Self> {
        for (path, projection) in self.projections() {
            if !is_quantized(&path) {
                continue;
            }
            let Projection::Dense(dense) = &*projection else { continue };
            let rows = dense.weight.val().transpose();
            if let Some(matrix) = quantized(rows, bits)? {
                *projection = projection.clone().with_quantized(matrix);
            }
        }
        if let Embedding::Dense(dense) = &self.model.embed_tokens {
            let (rows, dtype) = (dense.weight.val(), self.dtype());
            if let Some(matrix) = quantized(rows, WeightBits::Eight)? {
                self.model.embed_tokens = Embedding::quantized(matrix, dtype);
            }
        }
        // What they were.
        self.clean_up();
        // What is quantized already stays as it is.
        self.quantized_to.get_or_insert(bits);
        Ok(self)
    }
}

/// Whether the linear layer of this path is quantized: not the gates of experts and states, nor
/// what heads read their part of.
pub(crate) fn is_quantized(path: &str) -> bool {
    let kept = [".gate", ".shared_expert_gate", GATES_OF_STATE, READ_BY_HEADS];
    !kept.into_iter().any(|name| path.ends_with(name))
}

/// `[outputs, inputs]`; `None` where rows have no format.
fn quantized(rows: Tensor<2>, bits: WeightBits) -> Result<Option<QuantizedMatrix>> {
    let ([outputs, inputs], device) = (rows.dims(), rows.device());
    let Some(format) = bits.format(inputs) else { return Ok(None) };
    let weights = rows.cast(DType::F32).try_into_vec_as::<f32>()?;
    let matrix = QuantizedMatrix::quantize(format, [outputs, inputs], &weights, &device);
    Ok(Some(matrix.map_err(briquette::Error::from)?))
}
