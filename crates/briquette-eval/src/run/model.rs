use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use briquette::Profile;
use briquette_models::{Model, ModelConfig, Tokenizer};
use burn::tensor::{DType, Device};
use serde::{Deserialize, Serialize};

use super::results::ModelHeader;
use crate::{Error, Result, policy::PROFILE, tasks::seed};

/// A model in a run file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelSpec {
    /// A Hugging Face folder.
    pub dir: PathBuf,
    label: Option<String>,
    /// The type of weights, activations and cache.
    #[serde(default)]
    pub dtype: Dtype,
    /// What `briquette calibrate` found; by default `profile.json` in the folder, if it is there.
    pub profile: Option<PathBuf>,
    /// Tokens of a prompt given to the model at a time; the whole by default.
    pub chunk: Option<usize>,
}

/// The type of weights, activations and cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
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
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl ModelSpec {
    pub(super) fn resolve(&mut self, base: &Path) {
        self.dir = base.join(&self.dir);
        if let Some(profile) = &mut self.profile {
            *profile = base.join(&*profile);
        }
    }

    /// What results call it: its own label, or the name of its folder.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| {
            let whole = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
            whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned()
        })
    }

    /// Reads what a plan needs of it, which is all but the weights.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::Read`], [`Error::Cache`] for a profile that is damaged, and [`Error::Grid`] for a
    /// chunk of 0.
    pub fn open(&self) -> Result<OpenModel> {
        if self.chunk == Some(0) {
            return Err(Error::Grid { axis: "chunk", reason: "at least 1 is needed".into() });
        }
        if !self.dir.is_dir() {
            let source = std::io::Error::other("there is no such model folder");
            return Err(Error::Read { path: self.dir.clone(), source });
        }
        let config = ModelConfig::from_file(self.dir.join("config.json"))?;
        let beside = Some(self.dir.join(PROFILE)).filter(|path| path.is_file());
        let profile = match self.profile.clone().or(beside) {
            Some(path) => Some(Arc::new(Profile::from_file(path)?)),
            None => None,
        };
        Ok(OpenModel {
            label: self.label(),
            tokenizer: Tokenizer::load(&self.dir)?,
            header: ModelHeader {
                dtype: self.dtype.name().into(),
                shape: config.cache_shape(),
                context: config.max_position_embeddings,
                chunk: self.chunk,
                fingerprint: fingerprint(&self.dir)?,
            },
            config,
            profile,
            spec: self.clone(),
        })
    }
}

/// A model without its weights.
#[derive(Debug)]
pub struct OpenModel {
    /// What results call it.
    pub label: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its configuration.
    pub config: ModelConfig,
    /// What was measured of it, for policies that ask.
    pub profile: Option<Arc<Profile>>,
    /// What stands of it in the results.
    pub header: ModelHeader,
    /// As the run file has it.
    pub spec: ModelSpec,
}

impl OpenModel {
    /// Reads the weights.
    ///
    /// # Errors
    /// [`Error::Model`].
    pub fn load(&self, device: &Device) -> Result<Model> {
        Ok(Model::load(&self.spec.dir, device, self.spec.dtype.burn())?)
    }
}

/// Blocks read of each file of weights, spread over it, and their bytes: another checkpoint of one shape differs in
/// all of them, and a large model is told from another in a second.
const BLOCKS: u64 = 64;
const BLOCK: u64 = 64 << 10;

/// A number that differs between models: of their configuration, their tokenizer, and samples of their weights.
fn fingerprint(dir: &Path) -> Result<String> {
    let failed = |path: &Path, source| Error::Read { path: path.into(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|source| failed(dir, source))? {
        let path = entry.map_err(|source| failed(dir, source))?.path();
        let weights = path.extension().is_some_and(|ending| ending == "safetensors");
        let name = path.file_name().unwrap_or_default();
        if weights || name == "config.json" || name == "tokenizer.json" {
            files.push((path, weights));
        }
    }
    files.sort();
    let mut bytes = Vec::new();
    for (path, weights) in files {
        if weights {
            samples(&path, &mut bytes).map_err(|source| failed(&path, source))?;
        } else {
            bytes.extend(fs::read(&path).map_err(|source| failed(&path, source))?);
        }
    }
    Ok(format!("{:016x}", seed::hash(bytes)))
}

fn samples(path: &Path, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    bytes.extend(length.to_le_bytes());
    let last = length.saturating_sub(BLOCK);
    for block in 0..BLOCKS {
        file.seek(SeekFrom::Start(last * block / (BLOCKS - 1)))?;
        file.by_ref().take(BLOCK).read_to_end(bytes)?;
    }
    Ok(())
}
