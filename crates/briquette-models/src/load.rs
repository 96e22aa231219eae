use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Device, Tensor},
};
use burn_store::{
    ApplyError, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter,
    SafetensorsStore, burn_pack,
};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;

use crate::{
    Error, Llama, LlamaConfig, Result,
    json::{check_regular, parse, read_text},
};

/// The format's own limit, which keeps a damaged length from allocating the memory it claims.
const MAX_HEADER: u64 = 100_000_000;

impl Llama {
    /// Reads a model from a Hugging Face folder: `config.json`, and `model.safetensors` or the shards named
    /// in `model.safetensors.index.json`. Weights are converted to `dtype` (F32, F16 or BF16).
    ///
    /// Names, shapes and file lengths are checked on the headers before a weight is read; the files are
    /// mapped into memory and read one tensor at a time.
    ///
    /// # Errors
    /// As [`LlamaConfig::from_file`]; [`Error::UnsupportedType`] if the device cannot compute in `dtype`;
    /// [`Error::NoWeights`], [`Error::MissingShard`], [`Error::NotInShard`], [`Error::Truncated`] and
    /// [`Error::Container`] for the files; [`Error::MissingTensor`], [`Error::ExtraTensor`],
    /// [`Error::TensorShape`], [`Error::TensorType`] and [`Error::LoadTensor`] for the tensors in them.
    pub fn load(dir: impl AsRef<Path>, device: &Device, dtype: DType) -> Result<Self> {
        let dir = dir.as_ref();
        let unsupported =
            |reason| Error::UnsupportedType { dtype, device: format!("{device:?}"), reason };
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(unsupported("models run in F32, F16 or BF16"));
        }
        if !device.supports_dtype(dtype) {
            return Err(unsupported("the device has no arithmetic for it"));
        }
        let config = LlamaConfig::from_file(dir.join("config.json"))?;
        let mut model = Self::new(config, device)?;
        let checkpoint = Checkpoint::open(dir)?;
        let expected = expected_tensors(&model);
        checkpoint.check(&expected, model.config().tie_word_embeddings)?;

        let tensors = checkpoint.tensors(&expected)?;
        let adapter = PyTorchToBurnAdapter.chain(FloatCastAdapter::to(dtype));
        let result = model.apply(tensors, None, Some(Box::new(adapter)), false);
        if let Some(error) = result.errors.into_iter().next() {
            let (ApplyError::ShapeMismatch { path: tensor, .. }
            | ApplyError::DTypeMismatch { path: tensor, .. }
            | ApplyError::AdapterError { path: tensor, .. }
            | ApplyError::LoadError { path: tensor, .. }) = &error;
            return Err(Error::LoadTensor { tensor: tensor.clone(), message: error.to_string() });
        }
        if let Some((tensor, _)) = result.missing.into_iter().next() {
            let message = "no parameter of the model took it".into();
            return Err(Error::LoadTensor { tensor, message });
        }
        Ok(model)
    }
}

/// The tensors the model needs, by name, in the shapes a checkpoint stores.
type Expected = BTreeMap<String, Vec<usize>>;

fn expected_tensors(model: &Llama) -> Expected {
    #[derive(Default)]
    struct Collector {
        path: Vec<String>,
        in_linear: bool,
        tensors: Expected,
    }
    impl ModuleVisitor for Collector {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.push(name.into());
            self.in_linear = container == "Struct:Linear";
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // The lazy shape: nothing is allocated for weights that will be replaced.
            let mut shape = param.lazy_shape().to_vec();
            if self.in_linear {
                // `[output, input]` in a checkpoint, the other way round in Burn.
                shape.reverse();
            }
            self.tensors.insert(self.path.join("."), shape);
        }
    }
    let mut collector = Collector::default();
    model.visit(&mut collector);
    collector.tensors
}

/// The safetensors files of a folder, and which of them holds each tensor.
struct Checkpoint {
    files: Vec<(PathBuf, BTreeMap<String, TensorInfo>)>,
    /// Index into `files`.
    place: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Reads the index, if there is one, and every header.
    fn open(dir: &Path) -> Result<Self> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        if single.exists() {
            let header = read_header(&single)?;
            let place = header.keys().map(|name| (name.clone(), 0)).collect();
            return Ok(Self { files: vec![(single, header)], place });
        }
        if !index.exists() {
            return Err(Error::NoWeights { dir: dir.into() });
        }
        let Index { weight_map } = parse(&read_text(&index)?, &index.display().to_string())?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        let mut files = Vec::with_capacity(names.len());
        let mut number = BTreeMap::new();
        for name in names {
            let shard = dir.join(name);
            if !shard.exists() {
                return Err(Error::MissingShard { shard });
            }
            number.insert(name, files.len());
            let header = read_header(&shard)?;
            files.push((shard, header));
        }
        let mut place = BTreeMap::new();
        for (tensor, name) in &weight_map {
            let (shard, header) = &files[number[name]];
            if !header.contains_key(tensor) {
                return Err(Error::NotInShard { tensor: tensor.clone(), shard: shard.clone() });
            }
            place.insert(tensor.clone(), number[name]);
        }
        // A tensor the index forgot is in the folder all the same.
        for (file, (_, header)) in files.iter().enumerate() {
            for tensor in header.keys() {
                place.entry(tensor.clone()).or_insert(file);
            }
        }
        Ok(Self { files, place })
    }

    fn info(&self, tensor: &str) -> Option<&TensorInfo> {
        self.files[*self.place.get(tensor)?].1.get(tensor)
    }

    /// Compares the headers with what the model needs.
    fn check(&self, expected: &Expected, tied: bool) -> Result<()> {
        let mut missing = expected.iter().filter(|(tensor, _)| self.info(tensor).is_none());
        if let Some((tensor, shape)) = missing.next() {
            return Err(Error::MissingTensor {
                tensor: tensor.clone(),
                shape: shape.clone(),
                count: 1 + missing.count(),
            });
        }
        // Older files hold the frequencies of the rotary embedding, which follow from the configuration.
        // A tied head may be stored twice.
        let known = |tensor: &str| {
            expected.contains_key(tensor)
                || tensor.ends_with(".rotary_emb.inv_freq")
                || (tied && tensor == "lm_head.weight")
        };
        let mut extra = self.place.iter().filter(|(tensor, _)| !known(tensor));
        if let Some((tensor, file)) = extra.next() {
            return Err(Error::ExtraTensor {
                tensor: tensor.clone(),
                path: self.files[*file].0.clone(),
                count: 1 + extra.count(),
            });
        }
        for (tensor, shape) in expected {
            let Some(info) = self.info(tensor) else { continue };
            if info.shape != *shape {
                return Err(Error::TensorShape {
                    tensor: tensor.clone(),
                    expected: shape.clone(),
                    found: info.shape.clone(),
                });
            }
            if !matches!(info.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                let found = format!("{:?}", info.dtype);
                return Err(Error::TensorType { tensor: tensor.clone(), found });
            }
        }
        Ok(())
    }

    /// The expected tensors, their bytes not read yet.
    fn tensors(&self, expected: &Expected) -> Result<Vec<burn_pack::Tensor>> {
        let mut tensors = Vec::with_capacity(expected.len());
        for (file, (path, _)) in self.files.iter().enumerate() {
            let mut store = SafetensorsStore::from_file(path);
            let held = store.get_all_tensors().map_err(|error| container(path, error))?;
            tensors.extend(
                held.iter()
                    .filter(|(name, _)| expected.contains_key(*name) && self.place[*name] == file)
                    .map(|(_, tensor)| tensor.clone()),
            );
        }
        Ok(tensors)
    }
}

/// The header of a safetensors file: 8 bytes of length, then JSON. Reading it alone tells which tensor a
/// truncated file lacks, where opening the container only tells that the length is wrong.
fn read_header(path: &Path) -> Result<BTreeMap<String, TensorInfo>> {
    let io = |source| Error::Read { path: path.into(), source };
    check_regular(path)?;
    let mut file = File::open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?.len();
    if found < 8 {
        return Err(container(path, format!("it has {found} bytes, fewer than a header")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > found - 8 {
        return Err(container(
            path,
            format!("its header claims {length} bytes, the file has {found}"),
        ));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(io)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| container(path, error))?;
    let tensors: BTreeMap<String, TensorInfo> =
        metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();

    let end = |info: &TensorInfo| (8 + length).saturating_add(info.data_offsets.1 as u64);
    let cut = tensors
        .iter()
        .filter(|(_, info)| end(info) > found)
        .min_by_key(|(_, info)| info.data_offsets.0);
    match cut {
        Some((tensor, info)) => Err(Error::Truncated {
            path: path.into(),
            tensor: tensor.clone(),
            needed: end(info),
            found,
        }),
        None => Ok(tensors),
    }
}

fn container(path: &Path, message: impl ToString) -> Error {
    Error::Container { path: path.into(), message: message.to_string() }
}
