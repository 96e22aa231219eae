//! The architectures, one file each: the keys of its `config.json`, and the layers that no other
//! has.

mod deepseek;
mod falcon;
mod family;
mod gemma;
mod glm;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod mistral;
mod mixtral;
mod olmo;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;

use crate::{ModelConfig, Result, checkpoint::stacked::Stacked, config::keys::Keys};

pub use family::Architecture;
use family::{DEFAULTS, Names};
pub(crate) use family::{Defaults, Norms};

pub(crate) use falcon::{FalconLayer, layer_norm as falcon_norm};

type Read = fn(&Keys) -> Result<ModelConfig>;

const ARCHITECTURES: [(&str, Architecture, Read, Names); 20] = [
    ("llama", Architecture::Llama, llama::read, &[]),
    ("mistral", Architecture::Mistral, mistral::read, &[]),
    ("qwen2", Architecture::Qwen2, qwen2::read, &[]),
    ("qwen3", Architecture::Qwen3, qwen3::read, &[]),
    ("phi3", Architecture::Phi3, phi3::read, &[]),
    ("smollm3", Architecture::SmolLm3, smollm3::read, &[]),
    ("falcon", Architecture::Falcon, falcon::read, falcon::NAMES),
    ("qwen3_moe", Architecture::Qwen3Moe, qwen3_moe::read, &[]),
    ("mixtral", Architecture::Mixtral, mixtral::read, mixtral::NAMES),
    ("gemma2", Architecture::Gemma2, gemma::read_2, gemma::NAMES),
    ("gemma3_text", Architecture::Gemma3, gemma::read_3, gemma::NAMES),
    ("olmo2", Architecture::Olmo2, olmo::read_2, olmo::NAMES),
    ("olmo3", Architecture::Olmo3, olmo::read_3, olmo::NAMES),
    ("glm", Architecture::Glm, glm::read, &[]),
    ("glm4", Architecture::Glm4, glm::read_4, glm::NAMES_4),
    ("granite", Architecture::Granite, granite::read, &[]),
    ("deepseek_v3", Architecture::DeepseekV3, deepseek::read_3, deepseek::NAMES_3),
    ("gpt_oss", Architecture::GptOss, gpt_oss::read, gpt_oss::NAMES),
    ("qwen3_next", Architecture::Qwen3Next, qwen3_next::read, qwen3_next::NAMES),
    ("llama4_text", Architecture::Llama4, llama4::read, llama4::NAMES),
];

/// Models that see more than text, by `model_type`, and the architecture of their text part.
const AROUND: [(&str, Architecture); 2] =
    [("gemma3", Architecture::Gemma3), ("llama4", Architecture::Llama4)];

impl Architecture {
    /// The architecture of this `model_type`.
    pub fn named(model_type: &str) -> Option<Self> {
        let found = ARCHITECTURES.iter().find(|(name, ..)| *name == model_type);
        found.map(|(_, architecture, ..)| *architecture)
    }

    /// The architecture of the text part of this `model_type`, if models of it have other parts.
    pub(crate) fn of_text_in(model_type: &str) -> Option<Self> {
        let found = AROUND.iter().find(|(name, _)| *name == model_type);
        found.map(|(_, architecture)| *architecture)
    }

    /// Every architecture.
    pub fn all() -> impl Iterator<Item = Self> {
        ARCHITECTURES.iter().map(|(_, architecture, ..)| *architecture)
    }

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        self.entry().0
    }

    /// Every `model_type` that is read, separated by commas.
    pub fn names() -> String {
        let names = ARCHITECTURES.iter().map(|(name, ..)| *name);
        names.chain(AROUND.map(|(name, _)| name)).collect::<Vec<_>>().join(", ")
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

    /// The tensors in which its checkpoints hold matrices of all experts of a layer.
    pub(crate) fn stacked(self) -> &'static [Stacked] {
        match self {
            Self::GptOss => gpt_oss::STACKED,
            Self::Llama4 => llama4::STACKED,
            _ => &[],
        }
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
