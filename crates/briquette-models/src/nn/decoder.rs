use burn::{
    module::Module,
    nn::{EmbeddingConfig, LayerNorm},
    tensor::{DType, Int, Tensor},
};

use crate::{
    Architecture, Attend, Result,
    architecture::{FalconLayer, GemmaLayer, falcon_norm},
    interrupt::Interrupt,
    nn::{
        attend::LayerAttention,
        blocks::{Attention, GatedFeedForward},
        build::Build,
        embedding::Embedding,
        experts::Experts,
        merged::{MergedAttention, MergedFeedForward},
        positions::Positions,
        projection::{Projection, Projections, within},
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
}

impl Decoder {
    pub(crate) fn new(build: Build<'_>) -> Self {
        let config = build.config;
        let layer = |layer| Layer::new(build, layer);
        let gemma = matches!(config.architecture, Architecture::Gemma2 | Architecture::Gemma3);
        Self {
            embed_tokens: Embedding::Dense(
                EmbeddingConfig::new(config.vocab_size, config.hidden_size).init(build.device),
            ),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            norm: Norm::new(build),
            embedding_scale: gemma.then(|| (config.hidden_size as f64).sqrt()),
        }
    }

    /// `[batch, tokens]` -> `[batch, tokens, hidden_size]`
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
        for (index, layer) in self.layers.iter().enumerate() {
            interrupt.check()?;
            let positions = positions.of(index);
            let at = LayerAttention { layer: index, positions, attend: &mut *attend };
            residual = layer.forward(residual, at)?;
            interrupt.count(count, index + 1, layers);
        }
        self.norm.forward(residual)
    }

    /// The same layers with one matrix for products of the same rows.
    pub(crate) fn merge_projections(mut self) -> Self {
        self.layers = self.layers.into_iter().map(Layer::merge_projections).collect();
        self
    }

    /// The linear layers, by their paths.
    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let layers = self.layers.iter_mut().enumerate();
        layers
            .flat_map(|(number, layer)| within(&format!("layers.{number}"), layer.projections()))
            .collect()
    }

    /// The weights of each layer's output projection, `[heads * head_dim, hidden_size]`, quantized
    /// ones expanded to `dtype`.
    pub(crate) fn output_projections(&self, dtype: DType) -> Vec<Tensor<2>> {
        self.layers.iter().map(|layer| layer.output_projection().weight(dtype)).collect()
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
    PreNorm(PreNormLayer),
    Falcon(FalconLayer),
    Gemma(GemmaLayer),
}

impl Layer {
    fn new(build: Build<'_>, layer: usize) -> Self {
        match build.config.architecture {
            Architecture::Falcon => Self::Falcon(FalconLayer::new(build)),
            Architecture::Gemma2 | Architecture::Gemma3 => Self::Gemma(GemmaLayer::new(build)),
            _ => Self::PreNorm(PreNormLayer::new(build, layer)),
        }
    }

    fn projections(&mut self) -> Projections<'_> {
        let (attention, mlp) = match self {
            Self::PreNorm(inner) => (inner.self_attn.projections(), inner.mlp.projections()),
            Self::Falcon(inner) => (inner.self_attn.projections(), inner.mlp.projections()),
            Self::Gemma(inner) => (inner.self_attn.projections(), inner.mlp.projections()),
        };
        let mut all = within("self_attn", attention);
        all.extend(within("mlp", mlp));
        all
    }

    fn output_projection(&self) -> &Projection {
        match self {
            Self::PreNorm(inner) => match &inner.self_attn {
                SelfAttention::Separate(attention) => &attention.o_proj,
                SelfAttention::Merged(attention) => &attention.o_proj,
            },
            Self::Falcon(inner) => &inner.self_attn.o_proj,
            Self::Gemma(inner) => &inner.self_attn.o_proj,
        }
    }

    fn forward(&self, residual: Residual, at: LayerAttention<'_>) -> Result<Residual> {
        match self {
            Self::PreNorm(inner) => inner.forward(residual, at),
            Self::Falcon(inner) => inner.forward(residual, at),
            Self::Gemma(inner) => inner.forward(residual, at),
        }
    }

    pub(crate) fn merge_projections(self) -> Self {
        match self {
            Self::PreNorm(inner) => Self::PreNorm(PreNormLayer {
                self_attn: inner.self_attn.merge_projections(),
                mlp: inner.mlp.merge_projections(),
                ..inner
            }),
            other => other,
        }
    }
}

/// Llama's layer: a norm before each of the two blocks.
#[derive(Module, Debug)]
pub(crate) struct PreNormLayer {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl PreNormLayer {
    fn new(build: Build<'_>, layer: usize) -> Self {
        let norm = || build.rms_norm(build.config.hidden_size);
        Self {
            input_layernorm: norm(),
            self_attn: SelfAttention::new(build),
            post_attention_layernorm: norm(),
            mlp: FeedForward::new(build, layer),
        }
    }

    fn forward(&self, residual: Residual, at: LayerAttention<'_>) -> Result<Residual> {
        let (residual, normal) = residual.normalised(&self.input_layernorm)?;
        let residual = residual.with(self.self_attn.forward(normal, at)?);
        let (residual, normal) = residual.normalised(&self.post_attention_layernorm)?;
        Ok(residual.with(self.mlp.forward(normal)?))
    }
}

#[allow(clippy::large_enum_variant)] // As above.
#[derive(Module, Debug)]
enum SelfAttention {
    Separate(Attention),
    Merged(MergedAttention),
}

impl SelfAttention {
    fn new(build: Build<'_>) -> Self {
        match build.config.architecture {
            Architecture::Phi3 => Self::Merged(MergedAttention::new(build)),
            _ => Self::Separate(Attention::new(build)),
        }
    }

    fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        match self {
            Self::Separate(attention) => attention.forward(x, at),
            Self::Merged(attention) => attention.forward(x, at),
        }
    }

    fn projections(&mut self) -> Projections<'_> {
        match self {
            Self::Separate(attention) => attention.projections(),
            Self::Merged(attention) => attention.projections(),
        }
    }

    fn merge_projections(self) -> Self {
        match &self {
            Self::Separate(apart) => MergedAttention::of(apart).map_or(self, Self::Merged),
            Self::Merged(_) => self,
        }
    }
}

#[allow(clippy::large_enum_variant)] // As above.
#[derive(Module, Debug)]
enum FeedForward {
    Gated(GatedFeedForward),
    Merged(MergedFeedForward),
    Experts(Experts),
}

impl FeedForward {
    fn new(build: Build<'_>, layer: usize) -> Self {
        match &build.config.experts {
            Some(experts) if !experts.dense_layers.contains(&layer) => {
                Self::Experts(Experts::new(build, experts))
            }
            _ if build.config.architecture == Architecture::Phi3 => {
                Self::Merged(MergedFeedForward::new(build))
            }
            _ => Self::Gated(GatedFeedForward::new(build, build.config.intermediate_size)),
        }
    }

    /// `[batch, tokens, hidden_size]` -> the same
    fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        match self {
            Self::Gated(inner) => inner.forward(x),
            Self::Merged(inner) => inner.forward(x),
            Self::Experts(inner) => inner.forward(x),
        }
    }

    fn projections(&mut self) -> Projections<'_> {
        match self {
            Self::Gated(inner) => inner.projections(),
            Self::Merged(inner) => inner.projections(),
            Self::Experts(inner) => inner.projections(),
        }
    }

    fn merge_projections(self) -> Self {
        match &self {
            Self::Gated(apart) => MergedFeedForward::of(apart).map_or(self, Self::Merged),
            _ => self,
        }
    }
}
