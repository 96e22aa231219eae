use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette_eval::{files, run, warnings};
use briquette_models::{DeviceMap, Error as ModelError, Model, ModelConfig, Tokenizer, WeightBits};
use burn::tensor::DType;
use clap::ValueEnum;

#[cfg(feature = "persistence")]
use super::compiled;
use crate::terminal::{interrupt, progress};

/// The model the project was given, found in the working directory or where the program was built.
const EMBEDDED: &str = "models/ember-7m";

/// Which model, and what it runs on.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Hugging Face folder or GGUF file [default: the embedded models/ember-7m]
    ///
    /// A folder holds config.json, safetensors or PyTorch files, and tokenizer.json, or one GGUF
    /// file.
    #[arg(long, value_name = "DIR|FILE", env = "BRIQUETTE_MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Data type of weights, activations and cache [default: that of the file, f32 on flex]
    ///
    /// Weights that a GGUF file holds in blocks stay in them.
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Quantize weights to 4 or 8 bits [default: as they are stored]
    ///
    /// 128 weights share a scale.
    #[arg(long, value_name = "BITS")]
    pub(crate) quantize: Option<WeightBits>,
    /// Tokens that a text may have [default: as many as the model was trained for]
    ///
    /// With LongRoPE these are its original_max_position_embeddings: frequencies change beyond
    /// them, so a longer text needs its length here. Otherwise the configuration says how many. Up
    /// to a sliding window no layer has one, and policies compress all.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Accept a profile and results of other weights, tokenizers or configurations
    #[arg(long)]
    pub(crate) other_weights: bool,
}

/// The device that a model runs on.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct DeviceArgs {
    /// Device of this build, as `briquette devices` lists them [default: the first]
    ///
    /// flex, wgpu, cuda, cuda:1, vulkan, metal, rocm, cpu, libtorch or remote:ws://HOST:PORT.
    /// Layers are shared out among several, cuda:0,cuda:1, by memory or as said:
    /// cuda:0=24,cuda:1=8.
    #[arg(long = "device", value_name = "NAME", env = "BRIQUETTE_DEVICE")]
    name: Option<String>,
}

impl DeviceArgs {
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl From<Dtype> for run::Dtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

fn named(dtype: DType) -> run::Dtype {
    match dtype {
        DType::F16 => run::Dtype::F16,
        DType::BF16 => run::Dtype::Bf16,
        _ => run::Dtype::F32,
    }
}

/// The devices of these names, or the first of this build.
pub(crate) fn open_devices(name: Option<&str>) -> Result<(String, DeviceMap)> {
    let built = briquette::device::available();
    let name = match (name, built.first()) {
        (Some(name), _) => name,
        (None, Some(first)) => first,
        (None, None) => {
            bail!("this build has no device: build it with a feature such as `flex`")
        }
    };
    #[cfg(feature = "persistence")]
    compiled::keep();
    Ok((name.to_owned(), DeviceMap::open(name)?))
}

/// A model ready to run.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    /// The folder, the device and the type as they were named.
    pub(crate) dir: PathBuf,
    pub(crate) device: String,
    pub(crate) dtype: String,
    /// Whether a profile and results of other weights are taken.
    pub(crate) other_weights: bool,
}

impl Loaded {
    /// The name of the folder, without those around it.
    pub(crate) fn name(&self) -> String {
        files::last(&self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone()))
    }
}

impl ModelArgs {
    pub(crate) fn load(&self) -> Result<Loaded> {
        let (name, devices) = open_devices(self.device())?;
        let dir = self.dir()?;
        let spinner = progress::spinner(format!("reading {}", dir.display()));
        let failed = || format!("cannot load the model in {}", dir.display());
        let dtype = self.dtype_on(&dir, &devices);
        let mut config = ModelConfig::from_folder(&dir).with_context(failed)?;
        if let Some(context) = self.context {
            config = config.with_context(context)?;
        }
        let read = |read, all| spinner.bytes(read, all);
        let model = Model::load_with_progress(config, &dir, devices, dtype.burn(), read);
        let mut model = model.with_context(failed)?;
        warnings::add(model.warnings().iter().cloned());
        if let Some(bits) = self.quantize {
            model = model.quantize_weights(bits).with_context(failed)?;
        }
        let model = model.with_interrupt(interrupt::flag());
        let tokenizer = Tokenizer::load(&dir).with_context(failed)?;
        warnings::add(tokenizer.warnings().iter().cloned());
        let dtype = dtype.name().to_owned();
        let other_weights = self.other_weights;
        Ok(Loaded { model, tokenizer, dir, device: name, dtype, other_weights })
    }

    /// The type to load a model in: the one named, or the file's where all devices compute in it.
    /// Files that cannot be read are told of when the model is.
    pub(crate) fn dtype_on(&self, dir: &Path, devices: &DeviceMap) -> run::Dtype {
        if let Some(dtype) = self.dtype {
            return dtype.into();
        }
        Model::default_dtype(dir, devices.clone()).map_or(run::Dtype::F32, named)
    }

    /// The folder of the model, which need not be there.
    pub(crate) fn dir_or_embedded(&self) -> Result<PathBuf> {
        self.model.clone().map_or_else(|| self.dir(), Ok)
    }

    /// The name of the device.
    pub(crate) fn device(&self) -> Option<&str> {
        self.device.name()
    }

    /// The type of weights, activations and cache. A device or a model that is not there is told of
    /// when it is opened.
    pub(crate) fn dtype(&self) -> &'static str {
        let of_file = || {
            let (_, devices) = open_devices(self.device()).ok()?;
            Some(self.dtype_on(&self.dir().ok()?, &devices))
        };
        self.dtype.map(run::Dtype::from).or_else(of_file).unwrap_or_default().name()
    }

    /// The folder or file that is read.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        self.dir().into_iter().collect()
    }

    /// The folder of the model.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.model {
            if !dir.exists() {
                return Err(ModelError::NoSuchModel { path: dir.clone() }.into());
            }
            return Ok(dir.clone());
        }
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(EMBEDDED);
        match [PathBuf::from(EMBEDDED), built].into_iter().find(|dir| dir.is_dir()) {
            Some(dir) => Ok(dir),
            None => {
                bail!("the embedded model {EMBEDDED} is not here: name a model with --model DIR")
            }
        }
    }
}
