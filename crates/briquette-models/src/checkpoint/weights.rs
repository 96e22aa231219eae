use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use briquette_ops::{QuantizedMatrix, WeightFormat};
use burn::tensor::{DType, Device, TensorData};
use burn_store::{bridge, burn_pack::Tensor};

use crate::{
    Error, Result,
    checkpoint::{
        folder,
        gguf::{self, Gguf},
        safetensors,
        source::Source,
        tensors::{Stored, Tensors},
    },
    shown::shown,
};

/// The name of the head in a checkpoint.
const HEAD: &str = "lm_head.weight";

/// How names of tensors begin in a checkpoint that are not of the text part of its model.
const OTHER_PARTS: [&str; 3] = ["vision_tower.", "vision_model.", "multi_modal_projector."];

/// The tensors the model needs, by their names in a checkpoint.
pub(crate) type Expected = BTreeMap<String, Slot>;

/// Destination of a tensor.
pub(crate) struct Slot {
    /// The path of the parameter.
    pub(crate) path: String,
    /// The shape that a checkpoint stores.
    pub(crate) shape: Vec<usize>,
}

/// Reads a matrix as it is stored. It gets the name for errors; `None` if it cannot stay quantized.
type Read = dyn Fn(&str, &Device) -> Result<Option<QuantizedMatrix>> + Send + Sync;

/// A matrix that can stay quantized.
pub(super) struct Quantized {
    /// The format it has in memory, by its header.
    pub(super) format: WeightFormat,
    pub(super) read: Arc<Read>,
}

/// The files of weights of a folder, and which of them holds each tensor.
pub(crate) struct Weights {
    files: Vec<(PathBuf, Tensors)>,
    /// Index into `files`.
    place: BTreeMap<String, usize>,
    /// Matrices that can stay quantized, by name.
    quantized: BTreeMap<String, Quantized>,
}

impl Weights {
    /// Reads the index, if there is one, and the header of every file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        match Source::of(path)? {
            Source::Folder(dir) => Ok(Self::of_files(folder::open(&dir)?)),
            Source::Gguf(path) => {
                let stored = gguf::tensors(&Gguf::open(&path)?)?;
                let deferred = stored.iter().map(|(name, tensor)| {
                    let numbers = tensor.deferred(name.clone());
                    (name.clone(), Stored::of_size(numbers, tensor.bytes()))
                });
                let tensors = deferred.collect();
                let quantized = stored.into_iter().filter_map(|(name, tensor)| {
                    let format = tensor.format()?;
                    let read =
                        Arc::new(move |name: &str, device: &_| tensor.quantized(name, device));
                    Some((name, Quantized { format, read }))
                });
                let quantized = quantized.collect();
                Ok(Self { quantized, ..Self::of_files(vec![(path, tensors)]) })
            }
        }
    }

    /// Reads a safetensors file that is in memory. `path` names it in errors.
    pub(crate) fn of_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        Ok(Self::of_files(vec![(path.into(), safetensors::of_bytes(path, bytes)?)]))
    }

    fn of_files(files: Vec<(PathBuf, Tensors)>) -> Self {
        let tensors = files.iter().enumerate().flat_map(|(number, (_, tensors))| {
            tensors.keys().map(move |name| (name.clone(), number))
        });
        Self { place: tensors.collect(), files, quantized: BTreeMap::new() }
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
            let own = tensors().filter(|(name, stored)| {
                stored.tensor.dtype == dtype && !self.quantized.contains_key(*name)
            });
            let counts = own.map(|(_, stored)| stored.tensor.shape.iter().product::<usize>());
            counts.fold(0, usize::saturating_add)
        };
        let all =
            [DType::BF16, DType::F16, DType::F32, DType::F64].map(|dtype| (numbers(dtype), dtype));
        let most = all.into_iter().filter(|(count, _)| *count > 0).max_by_key(|(count, _)| *count);
        most.map(|(_, dtype)| dtype)
    }

    /// The longest side of a tensor that holds something.
    pub(crate) fn longest_side(&self) -> usize {
        let stored = self.files.iter().flat_map(|(_, tensors)| tensors.values());
        let tensors = stored.map(|stored| &stored.tensor);
        let full = tensors.filter(|tensor| !tensor.shape.contains(&0));
        full.flat_map(|tensor| tensor.shape.to_vec()).max().unwrap_or(0)
    }

    /// The matrix of this name as it is stored, if it can stay quantized.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::LoadTensor`].
    pub(crate) fn quantized(&self, name: &str, device: &Device) -> Result<Option<QuantizedMatrix>> {
        match self.quantized.get(name) {
            Some(matrix) => (matrix.read)(name, device),
            None => Ok(None),
        }
    }

    /// The format of the matrix of this name, if it can stay quantized, by its header.
    pub(crate) fn format(&self, name: &str) -> Option<WeightFormat> {
        Some(self.quantized.get(name)?.format)
    }

    fn stored(&self, name: &str) -> Option<&Stored> {
        self.files.get(*self.place.get(name)?)?.1.get(name)
    }

    fn tensor(&self, name: &str) -> Option<&Tensor> {
        Some(&self.stored(name)?.tensor)
    }

    /// The bytes that the expected tensors take in the files, by the paths of their parameters.
    pub(crate) fn bytes(&self, expected: &Expected) -> BTreeMap<String, u64> {
        let of =
            |(name, slot): (&String, &Slot)| Some((slot.path.clone(), self.stored(name)?.bytes));
        expected.iter().filter_map(of).collect()
    }

    /// Takes a tensor out, with the number of its file.
    pub(super) fn remove(&mut self, name: &str) -> Option<(usize, Stored)> {
        let file = self.place.remove(name)?;
        Some((file, self.files.get_mut(file)?.1.remove(name)?))
    }

    /// Adds a matrix that can stay quantized to the file of this number; `stored` has its numbers.
    pub(super) fn insert_quantized(
        &mut self,
        file: usize,
        name: String,
        stored: Stored,
        quantized: Quantized,
    ) {
        self.quantized.insert(name.clone(), quantized);
        self.insert(file, name, stored);
    }

    /// Adds a tensor to the file of this number.
    pub(super) fn insert(&mut self, file: usize, name: String, stored: Stored) {
        if let Some((_, tensors)) = self.files.get_mut(file) {
            self.place.insert(name.clone(), file);
            tensors.insert(name, stored);
        }
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

    /// Gives tensors of the text part of a model the names of a model of text, and leaves out those
    /// of its other parts.
    pub(crate) fn take_text_part(&mut self) {
        for name in self.place.keys().cloned().collect::<Vec<_>>() {
            let inner = name.strip_prefix("model.language_model.");
            let inner = inner.map(|rest| format!("model.{rest}"));
            let outer = || name.strip_prefix("language_model.").map(str::to_owned);
            if let Some(own) = inner.or_else(outer) {
                self.rename(&name, &own);
            }
        }
        self.leave_out(|name| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            OTHER_PARTS.iter().any(|part| name.starts_with(part))
        });
    }

    /// Leaves out tensors by their names, as if the files had none such.
    pub(crate) fn leave_out(&mut self, leaves: impl Fn(&str) -> bool) {
        self.place.retain(|name, _| !leaves(name));
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
        let Some((file, tensor)) = self.remove(from) else { return };
        self.insert(file, to.into(), tensor);
        if let Some(stored) = self.quantized.remove(from) {
            self.quantized.insert(to.into(), stored);
        }
    }

    /// Compares the headers of the files with the tensors that the model needs.
    pub(crate) fn check(&self, expected: &Expected, tied: bool) -> Result<()> {
        let mut missing = expected.iter().filter(|(name, _)| self.tensor(name).is_none());
        if let Some((tensor, Slot { shape, .. })) = missing.next() {
            let stored = |name: &&String| {
                name.strip_suffix(tensor.as_str()).is_some_and(|rest| rest.ends_with('.'))
            };
            if let Some(found) = self.place.keys().find(stored) {
                return Err(Error::PrefixedTensor { tensor: tensor.clone(), found: shown(found) });
            }
            if let Some(method) = self.packed_by() {
                return Err(Error::QuantizedWeights { method });
            }
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

    /// The method that has packed the weights, by the names of tensors and of files beside them:
    /// older folders do not say it in their configuration.
    fn packed_by(&self) -> Option<String> {
        let has = |ending: &str| self.place.keys().any(|name| name.ends_with(ending));
        let (path, _) = self.files.first().filter(|_| has(".qweight"))?;
        let beside = |name: &str| path.with_file_name(name).exists();
        let method =
            match (has(".g_idx") || beside("quantize_config.json"), beside("quant_config.json")) {
                (true, _) => "GPTQ",
                (_, true) => "AWQ",
                _ => "AWQ or GPTQ",
            };
        Some(method.into())
    }

    /// The numbers of a tensor, as the checkpoint has them.
    ///
    /// # Errors
    /// [`Error::LoadTensor`] for one that cannot be read.
    pub(crate) fn numbers(&self, name: &str) -> Result<Option<TensorData>> {
        let Some(tensor) = self.tensor(name) else { return Ok(None) };
        match bridge::to_data(tensor) {
            Ok(data) => Ok(Some(data)),
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
