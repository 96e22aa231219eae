use std::path::{Path, PathBuf};

use briquette_models::{ChatTemplate, DeviceMap, Model, ModelConfig, Tokenizer, WeightBits};
use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{
    form::ChatForm,
    header::ModelHeader,
    tasks::{Planned, Work},
};
use crate::{Error, Result, files, profiles::Profiles, warnings};

/// A model in a run file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelSpec {
    /// A Hugging Face folder, a GGUF file, or a folder that holds one.
    pub dir: PathBuf,
    label: Option<String>,
    /// The type of weights, activations and cache.
    #[serde(default)]
    pub dtype: Dtype,
    /// Bits that weights are quantized to; by default they stay as they are stored.
    pub quantize: Option<WeightBits>,
    /// Tokens that a text may have; by default as many as [`ModelConfig`] says.
    pub context: Option<usize>,
    /// Profile by `briquette calibrate`; by default `profile.json` in the folder, if it is there.
    pub profile: Option<PathBuf>,
    /// Tokens of a prompt given to the model at a time; the whole by default.
    pub chunk: Option<usize>,
    /// Whether context and questions are put into the chat template of the model, as a user's
    /// messages.
    #[serde(default)]
    pub chat: bool,
}

/// The type of weights, activations and cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Dtype {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, of IEEE 754.
    F16,
    /// 16 bits, with the exponent of 32.
    Bf16,
}

impl Dtype {
    /// As Burn names it.
    pub fn burn(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }

    /// As a run file names it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl ModelSpec {
    pub(super) fn resolve(&mut self, base: &Path) {
        self.dir = files::joined(base, &self.dir);
        if let Some(profile) = &mut self.profile {
            *profile = files::joined(base, profile);
        }
    }

    /// Label in results: its own, or the name of its folder.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| {
            let whole = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
            files::last(&whole)
        })
    }

    /// Reads what a plan needs of it; of the weights only the fingerprint. `other_weights` says
    /// that a profile of other weights is taken.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::Setting`] for a chunk of 0, and what [`Profiles::of`] refuses.
    pub fn open(&self, other_weights: bool) -> Result<OpenModel> {
        if self.chunk == Some(0) {
            return Err(Error::Setting { name: "chunk", reason: "at least 1 is needed".into() });
        }
        let config = ModelConfig::from_folder(&self.dir)?;
        let config = match self.context {
            Some(context) => config.with_context(context)?,
            None => config,
        };
        let profiles = Profiles::of(&self.dir, self.profile.as_deref(), other_weights)?;
        let tokenizer = Tokenizer::load(&self.dir)?;
        warnings::add(tokenizer.warnings().iter().cloned());
        let chat = match self.chat {
            true => {
                let template = ChatTemplate::load(&self.dir)?.ok_or_else(|| Error::Setting {
                    name: "chat",
                    reason: format!("{} has no chat template", self.dir.display()),
                })?;
                Some(ChatForm::new(&template, &tokenizer)?)
            }
            false => None,
        };
        Ok(OpenModel {
            label: self.label(),
            tokenizer,
            chat,
            header: ModelHeader {
                dtype: self.dtype.name().into(),
                quantize: self.quantize,
                shape: config.cache_shape(),
                context: config.max_position_embeddings,
                chunk: self.chunk,
                chat: self.chat,
                stop: config.eos_token_ids.clone(),
                weights: profiles.weights()?.to_owned(),
            },
            config,
            profiles,
            spec: self.clone(),
        })
    }
}

/// A model without its weights.
#[derive(Debug)]
pub struct OpenModel {
    /// Label in results.
    pub label: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens of the chat template around its prompts.
    pub(super) chat: Option<ChatForm>,
    /// Its configuration.
    pub config: ModelConfig,
    /// Profiles measured on it, for policies that read one.
    pub profiles: Profiles,
    /// Its description in the results.
    pub header: ModelHeader,
    /// As the run file has it.
    pub spec: ModelSpec,
}

impl OpenModel {
    /// Bytes of the keys and values of a token, all kept.
    pub(super) fn bytes_of_token(&self) -> usize {
        self.config.token_bytes(self.spec.dtype.burn())
    }

    /// Warning where tasks do not use the chat template of the model, or cannot.
    pub(super) fn ignored_template(&self, tasks: &[Planned]) -> Result<Option<String>> {
        let asks = |task: &&Planned| matches!(task.work, Work::Ask { .. });
        let names = |tasks: Vec<&Planned>| -> Option<String> {
            let names: Vec<String> = tasks.iter().map(|task| format!("`{}`", task.label)).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let (asked, read): (Vec<_>, Vec<_>) = tasks.iter().partition(asks);
        if self.spec.chat {
            return Ok(names(read).map(|read| {
                format!(
                    "{}: {read} reads a text as it is: `chat` is for prompts that ask",
                    self.label
                )
            }));
        }
        let Some(asked) = names(asked) else { return Ok(None) };
        Ok(ChatTemplate::load(&self.spec.dir)?.map(|_| {
            format!(
                "{}: {asked} is asked without the model's chat template, which `chat = true` beside its `dir` (--chat) puts \
                 around prompts",
                self.label
            )
        }))
    }

    /// Reads the weights.
    ///
    /// # Errors
    /// [`Error::Model`].
    pub fn load(&self, devices: &DeviceMap) -> Result<Model> {
        let dtype = self.spec.dtype.burn();
        let model = Model::load_as(self.config.clone(), &self.spec.dir, devices.clone(), dtype)?;
        warnings::add(model.warnings().iter().cloned());
        Ok(match self.spec.quantize {
            Some(bits) => model.quantize_weights(bits)?,
            None => model,
        })
    }
}
