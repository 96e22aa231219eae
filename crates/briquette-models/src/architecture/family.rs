use crate::Activation;

/// A family of models, by the `model_type` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 1 to 3.2, CodeLlama, LongChat, SmolLM 1 and 2.
    Llama,
    /// Mistral 7B, v0.1 to v0.3.
    Mistral,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Phi-3, Phi-3.5 and Phi-4.
    Phi3,
    /// SmolLM3.
    SmolLm3,
    /// Falcon-7B.
    Falcon,
    /// Qwen3 with a mixture of experts.
    Qwen3Moe,
    /// Mixtral.
    Mixtral,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, its text part.
    Gemma3,
    /// OLMo 2.
    Olmo2,
    /// OLMo 3.
    Olmo3,
    /// GLM-4 of 2024.
    Glm,
    /// GLM-4-0414.
    Glm4,
    /// Granite 3.
    Granite,
    /// DeepSeek V3 and R1.
    DeepseekV3,
    /// gpt-oss.
    GptOss,
    /// Qwen3-Next.
    Qwen3Next,
    /// Llama 4, its text part.
    Llama4,
}

/// Where the norms of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norms {
    /// Before each block (Llama).
    Before,
    /// Behind each block (OLMo 2).
    Behind,
    /// Before and behind each block (Gemma 2).
    Both,
}

impl Architecture {
    /// Where its layers have norms.
    pub(crate) fn norms(self) -> Norms {
        match self {
            Self::Gemma2 | Self::Gemma3 | Self::Glm4 => Norms::Both,
            Self::Olmo2 | Self::Olmo3 => Norms::Behind,
            _ => Norms::Before,
        }
    }

    /// Whether its attention has a learned logit per query head, which has no value.
    pub(crate) fn has_sinks(self) -> bool {
        matches!(self, Self::GptOss)
    }

    /// Whether each query head has a gate of its output, which its projection gives behind it.
    pub(crate) fn gates_heads(self) -> bool {
        matches!(self, Self::Qwen3Next)
    }

    /// Whether norms are stored less one, but those that say otherwise.
    pub(crate) fn stores_norms_less_one(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3 | Self::Qwen3Next)
    }

    /// Whether it may leave channels of a head as they are.
    pub(crate) fn rotates_partly(self) -> bool {
        matches!(self, Self::Phi3 | Self::Glm | Self::Glm4 | Self::Qwen3Next)
    }

    /// Whether its checkpoints have rotated pairs of channels beside each other, and not in two
    /// halves.
    pub(crate) fn interleaves_pairs(self) -> bool {
        matches!(self, Self::Glm | Self::Glm4 | Self::Llama4)
    }
}

/// Defaults of `transformers` for keys that a file leaves out.
pub(crate) struct Defaults {
    pub(crate) vocabulary: usize,
    pub(crate) hidden: usize,
    /// `intermediate_size`.
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// `None`: as many as query heads.
    pub(crate) kv_heads: Option<usize>,
    pub(crate) epsilon: f64,
    pub(crate) theta: f64,
    pub(crate) context: usize,
    pub(crate) tied: bool,
    /// `None`: `hidden_size / num_attention_heads`.
    pub(crate) head_dim: Option<usize>,
    pub(crate) activation: Activation,
}

/// The defaults of Llama, from which the others are told.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocabulary: 32_000,
    hidden: 4096,
    inner: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    epsilon: 1e-6,
    theta: 10_000.0,
    context: 2048,
    tied: false,
    head_dim: None,
    activation: Activation::Silu,
};

/// Pairs of a module's path and its name in a checkpoint, where these differ.
pub(crate) type Names = &'static [(&'static str, &'static str)];
