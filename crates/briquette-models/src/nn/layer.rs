use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use crate::{
    Architecture, Result,
    architecture::Norms,
    nn::{
        attend::LayerAttention,
        blocks::{Attention, GatedFeedForward},
        build::Build,
        delta_net::DeltaNet,
        experts::Experts,
        latent::LatentAttention,
        merged::{MergedAttention, MergedFeedForward},
        projection::{Projections, within},
        residual::Residual,
        rms_norm::RmsNorm,
    },
};

/// A layer of attention and a feed-forward network. The norms behind blocks have names of their own
/// here, as those of checkpoints differ.
#[derive(Module, Debug)]
pub(crate) struct BlockLayer {
    input_layernorm: Option<RmsNorm>,
    self_attn: SelfAttention,
    attention_output_norm: Option<RmsNorm>,
    /// Before the feed-forward network.
    post_attention_layernorm: Option<RmsNorm>,
    mlp: FeedForward,
    feedforward_output_norm: Option<RmsNorm>,
    /// Factor of what a block adds to the stream.
    residual_scale: Option<f64>,
}

impl BlockLayer {
    pub(crate) fn new(build: Build<'_>, layer: usize) -> Self {
        let norms = build.config.architecture.norms();
        let norm = |here: bool| here.then(|| build.rms_norm(build.config.hidden_size));
        let (before, behind) = (norms != Norms::Behind, norms != Norms::Before);
        Self {
            input_layernorm: norm(before),
            self_attn: SelfAttention::new(build, layer),
            attention_output_norm: norm(behind),
            post_attention_layernorm: norm(before),
            mlp: FeedForward::new(build, layer),
            feedforward_output_norm: norm(behind),
            residual_scale: build.config.residual_multiplier,
        }
    }

    pub(crate) fn forward(&self, residual: Residual, at: LayerAttention<'_>) -> Result<Residual> {
        let (residual, x) = residual.before_block(self.input_layernorm.as_ref())?;
        let x = self.self_attn.forward(x, at)?;
        let residual = residual.with(self.behind(x, self.attention_output_norm.as_ref())?);
        let (residual, x) = residual.before_block(self.post_attention_layernorm.as_ref())?;
        let x = self.mlp.forward(x)?;
        Ok(residual.with(self.behind(x, self.feedforward_output_norm.as_ref())?))
    }

    /// What a block has found, as it is added to the stream.
    fn behind(&self, x: Tensor<3>, norm: Option<&RmsNorm>) -> Result<Tensor<3>> {
        let x = match norm {
            Some(norm) => norm.forward(x)?,
            None => x,
        };
        Ok(match self.residual_scale {
            Some(scale) => x * scale,
            None => x,
        })
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let mut all = within("self_attn", self.self_attn.projections());
        all.extend(within("mlp", self.mlp.projections()));
        all
    }

    /// See [`Decoder::output_projections`](super::decoder::Decoder::output_projections).
    pub(crate) fn output_weight(&self, dtype: DType) -> Option<Tensor<2>> {
        match &self.self_attn {
            SelfAttention::Separate(attention) => Some(attention.o_proj.weight(dtype)),
            SelfAttention::Merged(attention) => Some(attention.o_proj.weight(dtype)),
            SelfAttention::Latent(attention) => Some(attention.output_weight(dtype)),
            SelfAttention::Recurrent(_) => None,
        }
    }

    /// Whether it keeps a state in place of entries.
    pub(crate) fn is_recurrent(&self) -> bool {
        matches!(self.self_attn, SelfAttention::Recurrent(_))
    }

    /// The sinks of its attention, if that has some.
    pub(crate) fn sinks(&self) -> Option<Tensor<1>> {
        let sinks = match &self.self_attn {
            SelfAttention::Separate(attention) => &attention.sinks,
            SelfAttention::Merged(attention) => &attention.sinks,
            SelfAttention::Latent(_) | SelfAttention::Recurrent(_) => return None,
        };
        Some(sinks.as_ref()?.val())
    }

    pub(crate) fn merge_projections(self) -> Self {
        let (self_attn, mlp) = (self.self_attn.merge_projections(), self.mlp.merge_projections());
        Self { self_attn, mlp, ..self }
    }
}

// One a layer: what the smaller variant wastes is nothing beside the weights.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub(crate) enum SelfAttention {
    Separate(Attention),
    Merged(MergedAttention),
    Latent(LatentAttention),
    Recurrent(DeltaNet),
}

impl SelfAttention {
    fn new(build: Build<'_>, layer: usize) -> Self {
        let delta_net = build.config.delta_net.as_ref();
        if let Some(delta_net) = delta_net.filter(|own| own.layers.contains(&layer)) {
            return Self::Recurrent(DeltaNet::new(build, delta_net));
        }
        if let Some(latent) = build.config.latent {
            return Self::Latent(LatentAttention::new(build, latent));
        }
        match build.config.architecture {
            Architecture::Phi3 => Self::Merged(MergedAttention::new(build)),
            _ => Self::Separate(Attention::new(build, layer)),
        }
    }

    fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        match self {
            Self::Separate(attention) => attention.forward(x, at),
            Self::Merged(attention) => attention.forward(x, at),
            Self::Latent(attention) => attention.forward(x, at),
            Self::Recurrent(attention) => attention.forward(x, at),
        }
    }

    fn projections(&mut self) -> Projections<'_> {
        match self {
            Self::Separate(attention) => attention.projections(),
            Self::Merged(attention) => attention.projections(),
            Self::Latent(attention) => attention.projections(),
            Self::Recurrent(attention) => attention.projections(),
        }
    }

    fn merge_projections(self) -> Self {
        match &self {
            Self::Separate(apart) => MergedAttention::of(apart).map_or(self, Self::Merged),
            _ => self,
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
            _ => match build.config.architecture {
                Architecture::Phi3 | Architecture::Glm | Architecture::Glm4 => {
                    Self::Merged(MergedFeedForward::new(build))
                }
                _ => Self::Gated(GatedFeedForward::new(build, build.config.intermediate_size)),
            },
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
