//! The architectures, a file each: what its `config.json` says, and the layers that no other has.

mod falcon;
mod gemma;
mod llama;
mod mistral;
mod mixtral;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod smollm3;

use crate::{Activation, ModelConfig, Result, keys::Keys};

pub(crate) use falcon::{FalconLayer, layer_norm as falcon_norm};
pub(crate) use gemma::GemmaLayer;
pub(crate) use phi3::{FusedAttention, FusedFeedForward};

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
    /// Gemma 3, its text model.
    Gemma3,
}

/// What `transformers` takes for keys that a file leaves out.
pub(crate) struct Defaults {
    pub(crate) epsilon: f64,
    pub(crate) theta: f64,
    pub(crate) context: usize,
    pub(crate) tied: bool,
    /// `None`: `hidden_size / num_attention_heads`.
    pub(crate) head_dim: Option<usize>,
    pub(crate) activation: Activation,
}

/// Llama's, which most share.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-6,
    theta: 10_000.0,
    context: 2048,
    tied: false,
    head_dim: None,
    activation: Activation::Silu,
};

type Read = fn(&Keys) -> Result<ModelConfig>;

/// Where the names of a checkpoint differ from the paths of the modules: ours, theirs.
type Names = &'static [(&'static str, &'static str)];

const ARCHITECTURES: [(&str, Architecture, Read, Names); 11] = [
    ("llama", Architecture::Llama, llama::read, &[]),
    ("mistral", Architecture::Mistral, mistral::read, &[]),
    ("qwen2", Architecture::Qwen2, qwen2::read, &[]),
    ("qwen3", Architecture::Qwen3, qwen3::read, &[]),
    ("phi3", Architecture::Phi3, phi3::read, &[]),
    ("smollm3", Architecture::SmolLm3, smollm3::read, &[]),
    ("falcon", Architecture::Falcon, falcon::read, falcon::NAMES),
    ("qwen3_moe", Architecture::Qwen3Moe, qwen3_moe::read, &[]),
    ("mixtral", Architecture::Mixtral, mixtral::read, mixtral::NAMES),
    ("gemma2", Architecture::Gemma2, gemma::read_2, &[]),
    ("gemma3_text", Architecture::Gemma3, gemma::read_3, &[]),
];

impl Architecture {
    /// The architecture of this `model_type`.
    pub fn named(model_type: &str) -> Option<Self> {
        let found = ARCHITECTURES.iter().find(|(name, ..)| *name == model_type);
        found.map(|(_, architecture, ..)| *architecture)
    }

    /// Every `model_type` that is read, separated by commas.
    pub fn names() -> String {
        ARCHITECTURES.map(|(name, ..)| name).join(", ")
    }

    pub(crate) fn read(self, keys: &Keys) -> Result<ModelConfig> {
        let (_, _, read, _) = self.entry();
        read(keys)
    }

    /// The name of a tensor in a checkpoint, by the path of its module here.
    pub(crate) fn checkpoint_name(self, path: &str) -> String {
        let (_, _, _, names) = self.entry();
        names.iter().fold(path.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
    }

    fn entry(self) -> &'static (&'static str, Self, Read, Names) {
        // In the order of the variants; a test compares them.
        &ARCHITECTURES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_architectures() {
        for (name, architecture, ..) in ARCHITECTURES {
            assert_eq!(architecture.entry().0, name);
            assert_eq!(Architecture::named(name), Some(architecture));
        }
        assert_eq!(Architecture::named("gpt2"), None);
    }
}
