//! Safetensors with a versioned header and a checksum, written whole or not at all.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read},
    path::Path,
};

use blake3::Hasher;
use burn::tensor::{DType, TensorData};
use safetensors::{
    Dtype, SafeTensors, View,
    tensor::{Metadata, TensorView, serialize_to_file},
};

use super::PrefixError;
use crate::files;

/// The version of the format: of the names in the metadata, of the header, and of the tensors of
/// each store.
const VERSION: u32 = 3;

/// Names in the metadata of the file.
const FORMAT: &str = "briquette-prefix";
const HEADER: &str = "header";
const CHECKSUM: &str = "blake3";

type Tensors = BTreeMap<String, TensorData>;

const LONGEST_HEADER: u64 = 100_000_000;

/// Writes a file whole, or not at all.
pub(super) fn write(path: &Path, header: String, tensors: &Tensors) -> Result<(), PrefixError> {
    let failed = |reason: String| PrefixError::Write { path: path.into(), reason };
    let views = tensors
        .iter()
        .map(|(name, data)| Ok((name.as_str(), view(data).map_err(failed)?)))
        .collect::<Result<Vec<_>, PrefixError>>()?;
    let checksum = checksum(&header, views.iter().map(|(name, view)| (*name, view)));
    let metadata = HashMap::from([
        (FORMAT.to_owned(), VERSION.to_string()),
        (CHECKSUM.to_owned(), checksum),
        (HEADER.to_owned(), header),
    ]);
    files::replace(path, |file| {
        let written = serialize_to_file(views, Some(metadata), file.path());
        written.map_err(|error| io::Error::other(error.to_string()))
    })
    .map_err(|error| failed(error.to_string()))
}

/// Reads a file and verifies its checksum.
pub(super) fn read(path: &Path) -> Result<(String, Tensors), PrefixError> {
    let fail = |reason: String| PrefixError::Container { path: path.into(), reason };
    let failed = |source| PrefixError::Read { path: path.into(), source };
    let mut file = files::open(path).map_err(failed)?;
    // A file of another kind is told by its header, however long it is.
    let mut bytes = Vec::new();
    file.by_ref().take(8).read_to_end(&mut bytes).map_err(failed)?;
    let header = bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    file.by_ref().take(header.min(LONGEST_HEADER)).read_to_end(&mut bytes).map_err(failed)?;
    let metadata: Metadata = serde_json::from_slice(bytes.get(8..).unwrap_or_default())
        .map_err(|error| fail(error.to_string()))?;
    let not = || PrefixError::NotAPrefix { path: path.into() };
    let mut metadata = metadata.metadata().clone().ok_or_else(not)?;
    let version = metadata.remove(FORMAT).ok_or_else(not)?;
    if version != VERSION.to_string() {
        return Err(PrefixError::Version { path: path.into(), found: version, expected: VERSION });
    }
    file.rest(&mut bytes).map_err(failed)?;
    let all = SafeTensors::deserialize(&bytes).map_err(|error| fail(error.to_string()))?;
    let altered = || PrefixError::Altered { path: path.into() };
    let header = metadata.remove(HEADER).ok_or_else(altered)?;
    let named = metadata.remove(CHECKSUM).ok_or_else(altered)?;
    let tensors: BTreeMap<String, _> = all.tensors().into_iter().collect();
    let found = checksum(&header, tensors.iter().map(|(name, view)| (name.as_str(), view)));
    if found != named || !metadata.is_empty() {
        return Err(altered());
    }
    let data = |(name, view): (String, TensorView<'_>)| {
        let found = TYPES.iter().find(|(_, dtype)| *dtype == view.dtype());
        let (dtype, _) = found.ok_or_else(|| fail(format!("{name} is {}", view.dtype())))?;
        let data = TensorData::try_from_bytes_vec(view.data().to_vec(), view.shape(), *dtype);
        Ok((name, data.map_err(|error| fail(error.to_string()))?))
    };
    Ok((header, tensors.into_iter().map(data).collect::<Result<_, PrefixError>>()?))
}

/// Checksum of the header, and of name, type, shape and bytes of each tensor, each behind its
/// length.
fn checksum<'a, V: View + 'a>(
    header: &str,
    tensors: impl Iterator<Item = (&'a str, &'a V)>,
) -> String {
    let mut hasher = Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    add(header.as_bytes());
    for (name, view) in tensors {
        add(name.as_bytes());
        add(format!("{:?} {:?}", view.dtype(), view.shape()).as_bytes());
        add(&view.data());
    }
    hasher.finalize().to_hex().to_string()
}

/// A tensor as safetensors sees it.
fn view(data: &TensorData) -> Result<TensorView<'_>, String> {
    let found = TYPES.iter().find(|(burn, _)| *burn == data.dtype());
    let (_, dtype) =
        found.ok_or_else(|| format!("{:?} has no form in safetensors", data.dtype()))?;
    let shape = data.shape().as_slice().to_vec();
    TensorView::new(*dtype, shape, data.as_bytes()).map_err(|error| error.to_string())
}

const TYPES: &[(DType, Dtype)] = &[
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
];
