use std::{ops::Range, path::Path};

use briquette_ops::is_host;
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Device, Tensor},
};

use crate::{
    Architecture, DeviceMap, Error, Model, ModelConfig, Result,
    checkpoint::{
        fill::Fill,
        progress::Progress,
        source, unstack,
        weights::{Expected, Slot, Weights},
    },
    config::generation::GenerationKeys,
    model::lay_out,
    nn::{
        decoder::Layer,
        embedding::Embedding,
        projection::{Projection, Projections},
    },
};

impl Model {
    /// Reads a model from a Hugging Face folder, a GGUF file, or a folder that holds one. Of a
    /// Hugging Face folder: `config.json`, `generation_config.json` if there is one, and
    /// `model.safetensors` or the shards named in `model.safetensors.index.json`, else
    /// `pytorch_model.bin` or the shards of `pytorch_model.bin.index.json`. Weights are converted
    /// to `dtype` (F32, F16 or BF16).
    ///
    /// Names, shapes and file lengths are checked on the headers before a weight is read; the files
    /// are read one tensor at a time. Code in a PyTorch file is never run.
    ///
    /// Of the types of a GGUF file F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K,
    /// IQ4_NL and MXFP4 are read. Matrices of Q8_0, Q4_0, Q4_1 and Q4_K stay as they are stored,
    /// and products read them so. Those of Q5_0, Q5_1, Q5_K, Q6_K, Q3_K, IQ4_NL and MXFP4 stay with
    /// eight bits for a level, which has their numbers exactly; the others are expanded. The
    /// experts of gpt-oss that a folder holds in MXFP4 stay so too.
    ///
    /// # Errors
    /// As [`ModelConfig::from_folder`], and [`Error::InvalidSetting`] for more layers than the
    /// folder has tensors for; [`Error::UnsupportedType`] if the device cannot compute in `dtype`;
    /// [`Error::NoWeights`], [`Error::OriginalFormat`], [`Error::MissingShard`],
    /// [`Error::ShardOutside`], [`Error::NotInShard`], [`Error::InTwoShards`], [`Error::Truncated`]
    /// and [`Error::Container`] for the files; [`Error::Pytorch`], [`Error::PytorchNested`] and
    /// [`Error::PytorchObject`] for PyTorch files; [`Error::Gguf`], [`Error::MissingPart`] and
    /// [`Error::BlockType`] for a GGUF file;
    /// [`Error::MissingTensor`], [`Error::PrefixedTensor`], [`Error::ExtraTensor`],
    /// [`Error::TensorShape`], [`Error::TensorType`] and [`Error::LoadTensor`] for the tensors in
    /// them.
    pub fn load(
        dir: impl AsRef<Path>,
        devices: impl Into<DeviceMap>,
        dtype: DType,
    ) -> Result<Self> {
        let config = ModelConfig::from_folder(&dir)?;
        Self::load_as(config, dir, devices, dtype)
    }

    /// The type that most weights of a folder or file have, of those that do not stay quantized.
    ///
    /// # Errors
    /// As [`load`](Self::load) for the files.
    pub fn stored_dtype(dir: impl AsRef<Path>) -> Result<DType> {
        Ok(Weights::open(dir.as_ref())?.most_common_type().unwrap_or(DType::F32))
    }

    /// The type to [`load`](Self::load) a folder or file in where nobody chooses one: the
    /// [stored](Self::stored_dtype) one, or F32 where a device has no arithmetic for it, or is the
    /// host, which multiplies in F32 and would convert to it and back.
    ///
    /// # Errors
    /// As [`load`](Self::load) for the files.
    pub fn default_dtype(dir: impl AsRef<Path>, devices: impl Into<DeviceMap>) -> Result<DType> {
        let stored = Self::stored_dtype(dir)?;
        let narrow = matches!(stored, DType::F16 | DType::BF16);
        let takes = |device: &Device| !is_host(device) && device.supports_dtype(stored);
        let here = narrow && devices.into().devices().iter().all(takes);
        Ok(if here { stored } else { DType::F32 })
    }

    /// As [`load`](Self::load), with a configuration that was read before, for a context
    /// [chosen](ModelConfig::with_context).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_as(
        config: ModelConfig,
        dir: impl AsRef<Path>,
        devices: impl Into<DeviceMap>,
        dtype: DType,
    ) -> Result<Self> {
        Self::load_with_progress(config, dir, devices, dtype, |_, _| {})
    }

    /// As [`load_as`](Self::load_as). `progress` is told after each tensor how many of how many
    /// bytes are read: of the files, without headers and what the model does not take.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with_progress(
        config: ModelConfig,
        dir: impl AsRef<Path>,
        devices: impl Into<DeviceMap>,
        dtype: DType,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self> {
        let (dir, devices) = (dir.as_ref(), devices.into());
        let open = || Weights::open(dir);
        let mut model = Self::load_weights(config, dir, open, &devices, dtype, &mut progress)?;
        let asks = GenerationKeys::of_folder(dir)?.map_or_else(Vec::new, |keys| keys.not_applied());
        model.warnings.extend(asks.into_iter().map(|asked| {
            format!("{}: generation_config.json says {asked}, which is not applied", dir.display())
        }));
        Ok(model)
    }

    /// As [`load_as`](Self::load_as), of the bytes of a safetensors file: for a program without
    /// files, such as a page in a browser. Errors call it `model.safetensors`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_safetensors(
        config: ModelConfig,
        bytes: Vec<u8>,
        devices: impl Into<DeviceMap>,
        dtype: DType,
    ) -> Result<Self> {
        let path = Path::new(source::WEIGHTS[0]);
        let open = || Weights::of_bytes(path, bytes);
        Self::load_weights(config, path, open, &devices.into(), dtype, &mut |_, _| {})
    }

    /// The model of a checkpoint before a weight is read, with the headers of its files, which have
    /// been checked.
    pub(crate) fn without_weights(
        config: ModelConfig,
        origin: &Path,
        open: impl FnOnce() -> Result<Weights>,
        devices: &DeviceMap,
        dtype: DType,
    ) -> Result<(Self, Weights)> {
        devices.devices().iter().try_for_each(|device| check_type(device, dtype))?;
        let mut weights = open()?;
        let embedding = config.architecture.checkpoint_name(EMBEDDING);
        if config.is_text_part {
            weights.take_text_part();
        }
        weights.complete_names(&embedding);
        weights.leave_out(|name| drafts(&config, name));
        unstack::unstack(&mut weights, &config)?;
        config.check_checkpoint(weights.count(), weights.longest_side())?;
        let mut config = config;
        let mut warnings = Vec::new();
        if config.tie_word_embeddings && !weights.tie(&embedding)? {
            config.tie_word_embeddings = false;
            warnings.push(format!(
                "{}: tie_word_embeddings says that {embedding} is the head, but lm_head.weight is stored too and \
                 differs: it is taken, as transformers does",
                origin.display()
            ));
        }
        let mut model = Self::new(config, devices.clone())?;
        model.warnings = warnings;
        let expected = expected_tensors(&model);
        weights.check(&expected, model.config().tie_word_embeddings)?;
        Ok((model, weights))
    }

    fn load_weights(
        config: ModelConfig,
        origin: &Path,
        open: impl FnOnce() -> Result<Weights>,
        devices: &DeviceMap,
        dtype: DType,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let (mut model, weights) = Self::without_weights(config, origin, open, devices, dtype)?;
        let mut progress = Progress::new(weights.bytes(&expected_tensors(&model)), progress);
        let stored = weights.take(&expected_tensors(&model));
        let (mut stored, mut rest): (Vec<_>, Vec<_>) =
            stored.into_iter().partition(|tensor| tensor.name.starts_with(LAYERS));
        let architecture = model.config().architecture;
        let fill = Fill { weights: &weights, architecture, dtype };
        let turned = pairs(model.config());
        let layers = std::mem::take(&mut model.model.layers).into_iter().enumerate();
        let embedding = architecture.checkpoint_name(EMBEDDING);
        if let Some(matrix) = weights.quantized(&embedding, &model.device())? {
            model.model.embed_tokens = Embedding::quantized(matrix, dtype);
            rest.retain(|tensor| tensor.name != EMBEDDING);
            progress.count(EMBEDDING);
        }
        fill.part(&mut model, "", rest, Model::projections, &mut progress)?;
        lay_out(model.projections());
        // What lay apart leaves room for the next layer.
        let whole = layers.map(|(number, mut layer)| {
            let prefix = format!("{LAYERS}{number}.");
            let own = stored.extract_if(.., |tensor| tensor.name.starts_with(&prefix)).collect();
            fill.part(&mut layer, &prefix, own, Layer::projections, &mut progress)?;
            put_pairs_in_halves(layer.projections(), &turned);
            let mut layer = layer.merge_projections();
            lay_out(layer.projections());
            Ok(layer)
        });
        model.model.layers = whole.collect::<Result<_>>()?;
        model.clean_up();
        Ok(model)
    }
}

/// Checks that a model can run in a type on a device.
fn check_type(device: &Device, dtype: DType) -> Result<()> {
    let unsupported = |reason: &str| {
        let (device, reason) = (format!("{device:?}"), reason.into());
        Err(Error::UnsupportedType { dtype, device, reason })
    };
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return unsupported("models run in F32, F16 or BF16");
    }
    if !device.supports_dtype(dtype) {
        let types: Vec<String> =
            briquette::device::float_types(device).iter().map(|it| format!("{it:?}")).collect();
        return unsupported(&format!("the device computes in {}", types.join(" or ")));
    }
    Ok(())
}

/// The path of the embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The path of the layers.
const LAYERS: &str = "model.layers.";

/// A projection of queries or keys: its name, the channels of a head, and the rotated ones.
type Rotates = (&'static str, usize, Range<usize>);

/// The projections whose rotated pairs a checkpoint has beside each other.
fn pairs(config: &ModelConfig) -> Vec<Rotates> {
    let head_dim = config.head_dim;
    match config.latent {
        Some(latent) if latent.rope_interleave => {
            let (query, key) = (latent.query_dim(), latent.key_dim());
            let queries = latent.qk_nope_head_dim..query;
            vec![
                (".q_proj", query, queries.clone()),
                (".q_b_proj", query, queries),
                (".kv_a_proj_with_mqa", key, latent.kv_lora_rank..key),
            ]
        }
        None if config.architecture.interleaves_pairs() => {
            let rotated = 0..config.rope.rotated(head_dim);
            vec![(".q_proj", head_dim, rotated.clone()), (".k_proj", head_dim, rotated)]
        }
        _ => Vec::new(),
    }
}

/// Puts the channels of queries and keys into the order that the position encoding rotates.
fn put_pairs_in_halves(projections: Projections<'_>, pairs: &[Rotates]) {
    for (path, projection) in projections {
        let turns = pairs.iter().find(|(name, ..)| path.ends_with(name));
        if let (Some((_, head_dim, rotated)), Projection::Dense(linear)) = (turns, &*projection) {
            *projection = Projection::Dense(linear.clone().in_halves(*head_dim, rotated));
        }
    }
}

/// Whether a tensor is of the layers that draft tokens: DeepSeek stores one behind the others,
/// Qwen3-Next has them apart.
fn drafts(config: &ModelConfig, name: &str) -> bool {
    match config.architecture {
        Architecture::DeepseekV3 => {
            name.starts_with(&format!("{LAYERS}{}.", config.num_hidden_layers))
        }
        Architecture::Qwen3Next => name.starts_with("mtp."),
        _ => false,
    }
}

fn expected_tensors(model: &Model) -> Expected {
    struct Collector {
        architecture: Architecture,
        path: Vec<String>,
        /// The innermost module.
        container: String,
        tensors: Expected,
    }
    impl ModuleVisitor for Collector {
        fn enter_module(&mut self, name: &str, container: &str) {
            if !container.starts_with("Enum:") {
                self.path.push(name.into());
            }
            self.container = container.into();
        }
        fn exit_module(&mut self, _name: &str, container: &str) {
            if !container.starts_with("Enum:") {
                self.path.pop();
            }
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // The lazy shape: nothing is allocated for weights that will be replaced.
            let mut shape = param.lazy_shape().to_vec();
            if self.container == "Struct:Linear" {
                // `[output, input]` in a checkpoint, the other way round in Burn.
                shape.reverse();
            }
            let path = self.path.join(".");
            let mut name = self.architecture.checkpoint_name(&path);
            if self.container == "Struct:LayerNorm" {
                name = name.replace(".gamma", ".weight").replace(".beta", ".bias");
            }
            self.tensors.insert(name, Slot { path, shape });
        }
    }
    let mut collector = Collector {
        architecture: model.config().architecture,
        path: Vec::new(),
        container: String::new(),
        tensors: Expected::new(),
    };
    model.visit(&mut collector);
    collector.tensors
}
