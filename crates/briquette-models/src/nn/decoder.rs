use std::sync::Arc;

use burn::{
    module::Module,
    nn::{EmbeddingConfig, LayerNorm},
    tensor::{DType, Int, Tensor},
};

use crate::{
    Architecture, Attend, Result,
    architecture::{FalconLayer, falcon_norm},
    device_map::Placed,
    interrupt::Interrupt,
    nn::{
        attend::LayerAttention,
        build::Build,
        embedding::Embedding,
        layer::BlockLayer,
        positions::Positions,
        projection::{Projections, within},
        residual::Residual,
        rms_norm::RmsNorm,
    },
};

// Fields carry the names of the Hugging Face checkpoint, so a weight's path here is its name there.
// The variants of an enum do not count in a path.

/// The decoder without its head.
#[derive(Module, Debug)]
pub(crate) struct Decoder {
    pub(crate) embed_tokens: Embedding,
    pub(crate) layers: Vec<Layer>,
    norm: Norm,
    /// Factor of the embeddings, if there is one.
    embedding_scale: Option<f64>,
    #[module(skip)]
    placed: Placed,
}

impl Decoder {
    pub(crate) fn new(build: Build<'_>, placed: Placed) -> Self {
        let config = build.config;
        let layer = |layer| Layer::new(Build { device: placed.of(layer), ..build }, layer);
        Self {
            embed_tokens: Embedding::Dense(
                EmbeddingConfig::new(config.vocab_size, config.hidden_size).init(placed.first()),
            ),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            norm: Norm::new(Build { device: placed.last(), ..build }),
            embedding_scale: config.embedding_multiplier,
            placed,
        }
    }

    /// `[batch, tokens]` -> `[batch, tokens, hidden_size]`, on the device of the last layer.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) between two layers, and what `attend`
    /// refuses.
    pub(crate) fn forward(
        &self,
        tokens: Tensor<2, Int>,
        positions: &Positions,
        attend: &mut dyn Attend,
        interrupt: &Interrupt,
    ) -> Result<Tensor<3>> {
        let (count, layers) = (tokens.shape().num_elements(), self.layers.len());
        let mut x = self.embed_tokens.forward(tokens);
        if let Some(scale) = self.embedding_scale {
            x = x * scale;
        }
        let mut residual = Residual::new(x);
        // A cache counts layers of attention and recurrent ones apart.
        let mut of_kind = [0; 2];
        for (index, layer) in self.layers.iter().enumerate() {
            interrupt.check()?;
            if let Some(devices) = self.placed.of_layers() {
                residual = residual.on(&devices[index]);
            }
            let positions = positions.of(index);
            let number = &mut of_kind[usize::from(layer.is_recurrent())];
            let at = LayerAttention { layer: *number, positions, attend: &mut *attend };
            *number += 1;
            residual = layer.forward(residual, at)?;
            interrupt.count(count, index + 1, layers);
        }
        if self.placed.of_layers().is_some() {
            residual = residual.on(self.placed.last());
        }
        self.norm.forward(residual)
    }

    /// The same layers with one matrix for products of the same rows.
    pub(crate) fn merge_projections(mut self) -> Self {
        self.layers = self.layers.into_iter().map(Layer::merge_projections).collect();
        self
    }

    /// What each layer has, in the order that a cache counts layers in: those of attention first.
    pub(crate) fn in_order_of_cache<T: Clone>(&self, of_layers: &[T]) -> Arc<[T]> {
        let all = || self.layers.iter().zip(of_layers);
        let attends = all().filter(|(layer, _)| !layer.is_recurrent());
        let others = all().filter(|(layer, _)| layer.is_recurrent());
        attends.chain(others).map(|(_, of_layer)| of_layer.clone()).collect()
    }

    /// The linear layers, by their paths.
    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let layers = self.layers.iter_mut().enumerate();
        layers
            .flat_map(|(number, layer)| within(&format!("layers.{number}"), layer.projections()))
            .collect()
    }

    /// The weights of the output projection of each layer of attention, `[heads * value_dim,
    /// hidden_size]`, where `value_dim` is that of a cache; quantized ones expanded to `dtype`.
    pub(crate) fn output_projections(&self, dtype: DType) -> Vec<Tensor<2>> {
        self.layers.iter().filter_map(|layer| layer.output_weight(dtype)).collect()
    }

    /// The sinks of each layer, if its attention has some.
    pub(crate) fn sinks(&self) -> Option<Vec<Tensor<1>>> {
        self.layers.iter().map(Layer::sinks).collect()
    }
}

/// The norm after the last layer.
#[derive(Module, Debug)]
enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl Norm {
    fn new(build: Build<'_>) -> Self {
        match build.config.architecture {
            Architecture::Falcon => Self::Layer(falcon_norm(build)),
            _ => Self::Rms(build.rms_norm(build.config.hidden_size)),
        }
    }

    fn forward(&self, residual: Residual) -> Result<Tensor<3>> {
        match self {
            Self::Rms(norm) => Ok(residual.normalised(norm)?.1),
            Self::Layer(norm) => Ok(norm.forward(residual.summed())),
        }
    }
}

// One a layer: what the smaller variant wastes is nothing beside the weights.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub(crate) enum Layer {
    Blocks(BlockLayer),
    Falcon(FalconLayer),
}

impl Layer {
    fn new(build: Build<'_>, layer: usize) -> Self {
        match build.config.architecture {
            Architecture::Falcon => Self::Falcon(FalconLayer::new(build)),
            _ => Self::Blocks(BlockLayer::new(build, layer)),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        match self {
            Self::Blocks(inner) => inner.projections(),
            Self::Falcon(inner) => inner.projections(),
        }
    }

    fn is_recurrent(&self) -> bool {
        matches!(self, Self::Blocks(inner) if inner.is_recurrent())
    }

    fn output_weight(&self, dtype: DType) -> Option<Tensor<2>> {
        match self {
            Self::Blocks(inner) => inner.output_weight(dtype),
            Self::Falcon(inner) => Some(inner.self_attn.o_proj.weight(dtype)),
        }
    }

    fn sinks(&self) -> Option<Tensor<1>> {
        match self {
            Self::Blocks(inner) => inner.sinks(),
            Self::Falcon(_) => None,
        }
    }

    fn forward(&self, residual: Residual, at: LayerAttention<'_>) -> Result<Residual> {
        match self {
            Self::Blocks(inner) => inner.forward(residual, at),
            Self::Falcon(inner) => inner.forward(residual, at),
        }
    }

    pub(crate) fn merge_projections(self) -> Self {
        match self {
            Self::Blocks(inner) => Self::Blocks(inner.merge_projections()),
            other => other,
        }
    }
}
