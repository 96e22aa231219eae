use std::{collections::BTreeMap, fs::File, path::Path};

use burn_store::{
    bridge,
    pytorch::PytorchReader,
    pytorch_reader::{PickleValue, Tensor},
};

use crate::{
    Error, Result,
    checkpoint::{pickle_limit, tensors::Tensors},
    json::check_regular,
    shown::shown,
};

/// Reads the names and shapes of a file that `torch.save` wrote. Its pickle is parsed, and nothing
/// that it names is ever called.
pub(crate) fn open(path: &Path) -> Result<Tensors> {
    check_regular(path)?;
    let failed = |message: String| Error::Pytorch { path: path.into(), message: shown(message) };
    pickle_limit::check(path)?;
    let content = PytorchReader::read_pickle_data(path, None);
    check_flat(path, content.map_err(|error| failed(error.to_string()))?)?;
    let reader = PytorchReader::new(path).map_err(|error| failed(error.to_string()))?;
    let tensors = reader.into_tensors();
    check_sizes(path, tensors.values())?;
    let stored = |tensor| bridge::from_pytorch(tensor).into();
    Ok(tensors.into_iter().map(|(name, tensor)| (name, stored(tensor))).collect())
}

/// Checks that tensors lie in one dictionary, as `transformers` reads them, and that there is
/// nothing else that only running code makes.
fn check_flat(path: &Path, content: PickleValue) -> Result<()> {
    let object = |key: &str, kind: String| Error::PytorchObject {
        path: path.into(),
        key: shown(key),
        kind: shown(kind),
    };
    let entries = match content {
        PickleValue::Dict(entries) => entries,
        PickleValue::Unsupported(kind) => return Err(object("its root", kind)),
        _ => {
            let message = "it holds no dictionary of tensors".into();
            return Err(Error::Pytorch { path: path.into(), message });
        }
    };
    for (key, value) in BTreeMap::from_iter(entries) {
        match value {
            PickleValue::Unsupported(kind) if kind == TENSOR => {}
            value => match foreign(&value) {
                Some(TENSOR) => {
                    return Err(Error::PytorchNested { path: path.into(), key: shown(key) });
                }
                Some(kind) => return Err(object(&key, kind.into())),
                None => {}
            },
        }
    }
    Ok(())
}

/// What a tensor is called in a pickle.
const TENSOR: &str = "torch.Tensor";

/// The type of the first value inside that is no plain one.
fn foreign(value: &PickleValue) -> Option<&str> {
    match value {
        PickleValue::Unsupported(kind) => Some(kind),
        PickleValue::List(values) => values.iter().find_map(foreign),
        PickleValue::Dict(values) => values.values().find_map(foreign),
        _ => None,
    }
}

/// Checks that the tensors are no more than the file holds. Two of them may share their bytes, as a
/// tied head does, and a view may repeat some, but a model that is larger than its file by more
/// than that would take memory that nobody stored.
fn check_sizes<'a>(path: &Path, tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let io = |source| Error::Read { path: path.into(), source };
    let file = File::open(path).and_then(|file| file.metadata()).map_err(io)?.len();
    let claimed = tensors.map(|tensor| tensor.byte_len() as u64).fold(0, u64::saturating_add);
    match claimed > file.saturating_mul(2) {
        true => Err(Error::Pytorch {
            path: path.into(),
            message: format!("its tensors claim {claimed} bytes, the file has {file}"),
        }),
        false => Ok(()),
    }
}
