use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

use briquette_ops::QuantizedMatrix;
use burn::tensor::{DType, Device, TensorData};
use burn_store::{ModuleStore, SafetensorsStore, bridge, burn_pack::Tensor};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;

use crate::{
    Error, Result,
    checkpoint::{
        gguf::{self, Gguf, StoredTensor},
        source::{self, Source},
    },
    json::{check_regular, parse, read_text},
    shown::shown,
};

/// The format's own limit, which keeps a damaged length from allocating the memory it claims.
const MAX_HEADER: u64 = 100_000_000;

/// The name of the head in a checkpoint.
const HEAD: &str = "lm_head.weight";

/// The tensors the model needs, by their names in a checkpoint.
pub(crate) type Expected = BTreeMap<String, Slot>;

/// Destination of a tensor.
pub(crate) struct Slot {
    /// The path of the parameter.
    pub(crate) path: String,
    /// The shape that a checkpoint stores.
    pub(crate) shape: Vec<usize>,
}

/// The files of weights of a folder, each mapped once, and which of them holds each tensor.
pub(crate) struct Weights {
    files: Vec<(PathBuf, Tensors)>,
    /// Index into `files`.
    place: BTreeMap<String, usize>,
    /// Matrices that can stay quantized, by name.
    quantized: BTreeMap<String, StoredTensor>,
}

/// Tensors by name, their bytes not read yet.
type Tensors = BTreeMap<String, Tensor>;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Reads the index, if there is one, and the header of every file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        match Source::of(path)? {
            Source::Folder(dir) => Self::open_folder(&dir),
            Source::Gguf(path) => {
                let mut stored = gguf::tensors(&Gguf::open(&path)?)?;
                let deferred = stored
                    .iter()
                    .map(|(name, tensor)| (name.clone(), tensor.deferred(name.clone())));
                let tensors = deferred.collect();
                stored.retain(|_, tensor| tensor.is_quantized());
                Ok(Self { quantized: stored, ..Self::of_one(path, tensors) })
            }
        }
    }

    /// Reads a safetensors file that is in memory. `path` names it in errors.
    pub(crate) fn of_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        check_header(path, bytes.as_slice(), bytes.len() as u64)?;
        let tensors = tensors(path, SafetensorsStore::from_bytes(Some(bytes)))?;
        Ok(Self::of_one(path.into(), tensors))
    }

    fn of_one(path: PathBuf, tensors: Tensors) -> Self {
        let place = tensors.keys().map(|name| (name.clone(), 0)).collect();
        Self { files: vec![(path, tensors)], place, quantized: BTreeMap::new() }
    }

    fn open_folder(dir: &Path) -> Result<Self> {
        let [single, index] = source::WEIGHTS.map(|name| dir.join(name));
        if single.exists() {
            let tensors = open(&single)?;
            return Ok(Self::of_one(single, tensors));
        }
        if index.exists() {
            return Self::open_shards(dir, &index);
        }
        Err(Error::NoWeights { dir: dir.into() })
    }

    fn open_shards(dir: &Path, index: &Path) -> Result<Self> {
        let Index { weight_map } = parse(&read_text(index)?, &index.display().to_string())?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        let inside = |name: &str| {
            let mut parts = Path::new(name).components();
            matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        };
        if let Some(name) = names.iter().find(|name| !inside(name)) {
            return Err(Error::ShardOutside { shard: shown(name) });
        }
        let mut files = Vec::with_capacity(names.len());
        let mut place = BTreeMap::new();
        for (number, name) in names.into_iter().enumerate() {
            let shard = dir.join(name);
            if !shard.exists() {
                return Err(Error::MissingShard { shard });
            }
            let tensors = open(&shard)?;
            for (tensor, _) in weight_map.iter().filter(|(_, holder)| *holder == name) {
                if !tensors.contains_key(tensor) {
                    return Err(Error::NotInShard { tensor: tensor.clone(), shard });
                }
                place.insert(tensor.clone(), number);
            }
            files.push((shard, tensors));
        }
        // A tensor the index forgot is in the folder all the same.
        for (file, (_, tensors)) in files.iter().enumerate() {
            for tensor in tensors.keys() {
                place.entry(tensor.clone()).or_insert(file);
            }
        }
        Ok(Self { files, place, quantized: BTreeMap::new() })
    }

    /// Tensors in all files.
    pub(crate) fn count(&self) -> usize {
        self.place.len()
    }

    /// The type that most numbers have, of those that do not stay quantized; of equally many the
    /// widest.
    pub(crate) fn most_common_type(&self) -> Option<DType> {
        let tensors = || self.files.iter().flat_map(|(_, tensors)| tensors);
        let numbers = |dtype: DType| {
            let own = tensors().filter(|(name, tensor)| {
                tensor.dtype == dtype && !self.quantized.contains_key(*name)
            });
            let counts = own.map(|(_, tensor)| tensor.shape.iter().product::<usize>());
            counts.fold(0, usize::saturating_add)
        };
        let all =
            [DType::BF16, DType::F16, DType::F32, DType::F64].map(|dtype| (numbers(dtype), dtype));
        let most = all.into_iter().filter(|(count, _)| *count > 0).max_by_key(|(count, _)| *count);
        most.map(|(_, dtype)| dtype)
    }

    /// The longest side of a tensor that holds something.
    pub(crate) fn longest_side(&self) -> usize {
        let tensors = self.files.iter().flat_map(|(_, tensors)| tensors.values());
        let full = tensors.filter(|tensor| !tensor.shape.contains(&0));
        full.flat_map(|tensor| tensor.shape.to_vec()).max().unwrap_or(0)
    }

    /// The matrix of this name as it is stored, if it can stay quantized.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::LoadTensor`].
    pub(crate) fn quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        match self.quantized.get(name) {
            Some(stored) => stored.quantized(name, device),
            None => Ok(None),
        }
    }

    fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.files.get(*self.place.get(name)?)?.1.get(name)
    }

    /// Gives tensors the names of a whole model, one of which is that of the `embedding`. A decoder
    /// that was saved without its head has names without the first part (`model.`).
    pub(crate) fn complete_names(&mut self, embedding: &str) {
        let Some((first, rest)) = embedding.split_once('.') else { return };
        if self.place.contains_key(embedding) || !self.place.contains_key(rest) {
            return;
        }
        let prefix = format!("{first}.");
        let names: Vec<String> = self.place.keys().filter(|name| *name != HEAD).cloned().collect();
        for name in names {
            self.rename(&name, &format!("{prefix}{name}"));
        }
    }

    /// Whether the head is the `embedding`, if the configuration says that it is: not where both
    /// are stored and differ. Where only the head is stored, it becomes the embedding.
    ///
    /// # Errors
    /// [`Error::LoadTensor`] for one that cannot be read.
    pub(crate) fn tie(&mut self, embedding: &str) -> Result<bool> {
        match (self.tensor(embedding), self.tensor(HEAD)) {
            (None, Some(_)) => self.rename(HEAD, embedding),
            (Some(one), Some(other)) => {
                let bytes = |tensor: &Tensor| {
                    tensor.to_bytes().map_err(|error| Error::LoadTensor {
                        tensor: tensor.name.clone(),
                        message: error.to_string(),
                    })
                };
                let alike = (one.dtype, &one.shape) == (other.dtype, &other.shape);
                return Ok(alike && bytes(one)? == bytes(other)?);
            }
            _ => {}
        }
        Ok(true)
    }

    fn rename(&mut self, from: &str, to: &str) {
        let Some(file) = self.place.remove(from) else { return };
        if let Some((_, tensors)) = self.files.get_mut(file)
            && let Some(tensor) = tensors.remove(from)
        {
            tensors.insert(to.into(), tensor);
        }
        if let Some(stored) = self.quantized.remove(from) {
            self.quantized.insert(to.into(), stored);
        }
        self.place.insert(to.into(), file);
    }

    /// Compares the headers of the files with the tensors that the model needs.
    pub(crate) fn check(&self, expected: &Expected, tied: bool) -> Result<()> {
        let mut missing = expected.iter().filter(|(name, _)| self.tensor(name).is_none());
        if let Some((tensor, Slot { shape, .. })) = missing.next() {
            return Err(Error::MissingTensor {
                tensor: tensor.clone(),
                shape: shape.clone(),
                count: missing.count().saturating_add(1),
            });
        }
        // Older files hold the frequencies of the rotary embedding, which follow from the
        // configuration. A tied head may be stored twice.
        let known = |tensor: &str| {
            expected.contains_key(tensor)
                || tensor.ends_with(".rotary_emb.inv_freq")
                || (tied && tensor == HEAD)
        };
        let mut extra = self.place.iter().filter(|(tensor, _)| !known(tensor));
        if let Some((tensor, file)) = extra.next() {
            return Err(Error::ExtraTensor {
                tensor: tensor.clone(),
                path: self.files.get(*file).map(|(path, _)| path.clone()).unwrap_or_default(),
                count: extra.count().saturating_add(1),
            });
        }
        for (name, Slot { shape, .. }) in expected {
            let Some(tensor) = self.tensor(name) else { continue };
            if tensor.shape.as_slice() != shape.as_slice() {
                return Err(Error::TensorShape {
                    tensor: name.clone(),
                    expected: shape.clone(),
                    found: tensor.shape.to_vec(),
                });
            }
            if !matches!(tensor.dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                let found = format!("{:?}", tensor.dtype);
                return Err(Error::TensorType { tensor: name.clone(), found });
            }
        }
        Ok(())
    }

    /// The numbers of a tensor, in a type, as the checkpoint lays them out.
    ///
    /// # Errors
    /// [`Error::LoadTensor`] for one that cannot be read.
    pub(crate) fn numbers(&self, name: &str, dtype: DType) -> Result<Option<TensorData>> {
        let Some(tensor) = self.tensor(name) else { return Ok(None) };
        match bridge::to_data(tensor) {
            Ok(data) => Ok(Some(data.convert_dtype(dtype))),
            Err(error) => {
                Err(Error::LoadTensor { tensor: name.into(), message: error.to_string() })
            }
        }
    }

    /// The expected tensors, named by the paths of their parameters.
    pub(crate) fn take(&self, expected: &Expected) -> Vec<Tensor> {
        let named = |(name, slot): (&String, &Slot)| {
            let mut tensor = self.tensor(name)?.clone();
            tensor.name = slot.path.clone();
            Some(tensor)
        };
        expected.iter().filter_map(named).collect()
    }
}

fn open(path: &Path) -> Result<Tensors> {
    let io = |source| Error::Read { path: path.into(), source };
    check_regular(path)?;
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    check_header(path, file, bytes)?;
    tensors(path, SafetensorsStore::from_file(path))
}

fn tensors(path: &Path, mut store: SafetensorsStore) -> Result<Tensors> {
    store.get_all_tensors().cloned().map_err(|error| container(path, error))
}

/// Checks the header of a safetensors file of `found` bytes: 8 bytes of length, then JSON. Reading
/// it alone tells which tensor a truncated file lacks, where opening the container only tells that
/// the length is wrong.
fn check_header(path: &Path, mut file: impl Read, found: u64) -> Result<()> {
    let io = |source| Error::Read { path: path.into(), source };
    let Some(room) = found.checked_sub(8) else {
        return Err(container(path, format!("it has {found} bytes, fewer than a header")));
    };
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > room {
        return Err(container(
            path,
            format!("its header claims {length} bytes, the file has {found}"),
        ));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(io)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| container(path, error))?;
    let tensors = metadata.tensors();
    let end =
        |info: &TensorInfo| length.saturating_add(8).saturating_add(info.data_offsets.1 as u64);
    let cut = tensors
        .into_iter()
        .filter(|(_, info)| end(info) > found)
        .min_by_key(|(_, info)| info.data_offsets.0);
    match cut {
        Some((tensor, info)) => {
            Err(Error::Truncated { path: path.into(), tensor, needed: end(info), found })
        }
        None => Ok(()),
    }
}

fn container(path: &Path, message: impl ToString) -> Error {
    Error::Container { path: path.into(), message: message.to_string() }
}
