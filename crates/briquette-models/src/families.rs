//! The families of models, as they are listed.

use serde::Serialize;

use crate::{Architecture, checkpoint::gguf};

/// A family of models that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ModelFamily {
    /// The `model_type` of its configuration.
    pub model_type: &'static str,
    /// Models of it.
    pub models: &'static str,
    /// Whether GGUF files of it are read, beside safetensors and PyTorch files.
    pub gguf: bool,
    /// What it has and Llama has not; empty for Llama.
    pub own: &'static str,
}

/// Every family of models, Llama first.
pub fn families() -> Vec<ModelFamily> {
    let family = |architecture: Architecture| {
        let (models, own) = texts(architecture);
        let model_type = architecture.model_type();
        ModelFamily { model_type, models, gguf: gguf::is_read(model_type), own }
    };
    Architecture::all().map(family).collect()
}

/// Models of an architecture, and what is its own.
fn texts(architecture: Architecture) -> (&'static str, &'static str) {
    match architecture {
        Architecture::Llama => ("Llama 1 to 3.2, CodeLlama, LongChat, SmolLM2", ""),
        Architecture::Mistral => ("Mistral 7B v0.1 to v0.3", "a sliding window (v0.1)"),
        Architecture::Qwen2 => ("Qwen2, Qwen2.5", "biases of queries, keys and values"),
        Architecture::Qwen3 => ("Qwen3", "norms of queries and keys"),
        Architecture::Phi3 => (
            "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
            "fused projections, LongRoPE, part of the channels rotated",
        ),
        Architecture::SmolLm3 => ("SmolLM3", "layers without positions"),
        Architecture::Falcon => ("Falcon-7B", "one kv head, parallel blocks, LayerNorm, no gate"),
        Architecture::Qwen3Moe => ("Qwen3-30B-A3B", "Qwen3's, experts"),
        Architecture::Mixtral => ("Mixtral 8x7B, 8x22B", "experts"),
        Architecture::Gemma2 => ("Gemma 2", "norms behind blocks too, capped scores, windows"),
        Architecture::Gemma3 => {
            ("Gemma 3, text part", "norms behind blocks too, two rotary embeddings, windows")
        }
        Architecture::Olmo2 => ("OLMo 2", "norms behind blocks, norms over all heads"),
        Architecture::Olmo3 => ("OLMo 3", "OLMo 2's, windows"),
        Architecture::Glm => ("GLM-4 of 2024", "fused feed-forward, half of the channels rotated"),
        Architecture::Glm4 => ("GLM-4-0414", "GLM's, norms behind blocks too"),
        Architecture::Granite => ("Granite 3", "factors of embeddings, blocks and logits"),
        Architecture::DeepseekV3 => {
            ("DeepSeek V3 and R1 in bf16", "latent attention, experts of the best groups")
        }
        Architecture::GptOss => ("gpt-oss-20b, -120b", "sinks, windows, experts in MXFP4"),
        Architecture::Qwen3Next => {
            ("Qwen3-Next-80B-A3B", "recurrent layers, gated attention, gated shared expert")
        }
        Architecture::Llama4 => {
            ("Llama 4, text part", "chunks, queries scaled by position, experts of weighed input")
        }
    }
}
