//! Safetensors with a versioned header and a checksum, written whole or not at all.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
};

use blake3::Hasher;
use burn::tensor::{DType, TensorData};
use safetensors::{Dtype, SafeTensors, View, tensor::serialize_to_file};
use tempfile::Builder;

use super::PrefixError;

/// The version of the format: of the names in the metadata, of the header, and of the tensors of
/// each store.
const VERSION: u32 = 2;

/// Names in the metadata of the file.
const FORMAT: &str = "briquette-prefix";
const HEADER: &str = "header";
const CHECKSUM: &str = "blake3";

type Tensors = BTreeMap<String, TensorData>;

/// Writes a file: beside it first, to the disk, then in its place. Who reads it finds the old one
/// or the new one.
pub(super) fn write(path: &Path, header: String, tensors: &Tensors) -> Result<(), PrefixError> {
    let failed = |reason: String| PrefixError::Write { path: path.into(), reason };
    let views = tensors
        .iter()
        .map(|(name, data)| Bytes::of(data).map(|view| (name.as_str(), view)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|dtype| failed(format!("{dtype:?} has no form in safetensors")))?;
    let checksum = checksum(&header, views.iter().map(|(name, view)| (*name, view)));
    let metadata = HashMap::from([
        (FORMAT.to_owned(), VERSION.to_string()),
        (CHECKSUM.to_owned(), checksum),
        (HEADER.to_owned(), header),
    ]);
    let fill = |file: &Path| {
        let written = serialize_to_file(views, Some(metadata), file);
        written.map_err(|error| io::Error::other(error.to_string()))
    };
    replace(path, fill).map_err(|error| failed(error.to_string()))
}

/// Reads a file and holds it to its checksum.
pub(super) fn read(path: &Path) -> Result<(String, Tensors), PrefixError> {
    let fail = |reason: String| PrefixError::Container { path: path.into(), reason };
    let bytes = fs::read(path)
        .map_err(|error| PrefixError::Read { path: path.into(), reason: error.to_string() })?;
    let (_, metadata) =
        SafeTensors::read_metadata(&bytes).map_err(|error| fail(error.to_string()))?;
    let not = || PrefixError::NotAPrefix { path: path.into() };
    let mut metadata = metadata.metadata().clone().ok_or_else(not)?;
    let version = metadata.remove(FORMAT).ok_or_else(not)?;
    if version != VERSION.to_string() {
        return Err(PrefixError::Version { path: path.into(), found: version, expected: VERSION });
    }
    let all = SafeTensors::deserialize(&bytes).map_err(|error| fail(error.to_string()))?;
    let altered = || PrefixError::Altered { path: path.into() };
    let header = metadata.remove(HEADER).ok_or_else(altered)?;
    let named = metadata.remove(CHECKSUM).ok_or_else(altered)?;
    let tensors: BTreeMap<String, _> = all.tensors().into_iter().collect();
    let found = checksum(&header, tensors.iter().map(|(name, view)| (name.as_str(), view)));
    if found != named || !metadata.is_empty() {
        return Err(altered());
    }
    let data = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let dtype = from_safetensors(view.dtype())
            .ok_or_else(|| fail(format!("{name} is {}", view.dtype())))?;
        let data = TensorData::try_from_bytes_vec(view.data().to_vec(), view.shape(), dtype);
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

fn replace(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut builder = Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let file = builder.prefix(".briquette-").tempfile_in(folder)?;
    fill(file.path())?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    // The name lives in the folder, which not every system can sync.
    let _ = fs::File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// A tensor as safetensors sees it.
struct Bytes<'a> {
    dtype: Dtype,
    data: &'a TensorData,
}

impl<'a> Bytes<'a> {
    fn of(data: &'a TensorData) -> Result<Self, DType> {
        Ok(Self { dtype: to_safetensors(data.dtype()).ok_or(data.dtype())?, data })
    }
}

impl View for Bytes<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.data.shape().as_slice()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.as_bytes().into()
    }

    fn data_len(&self) -> usize {
        self.data.as_bytes().len()
    }
}

const TYPES: [(DType, Dtype); 6] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
];

fn to_safetensors(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|(burn, _)| *burn == dtype).map(|(_, dtype)| *dtype)
}

fn from_safetensors(dtype: Dtype) -> Option<DType> {
    TYPES.iter().find(|(_, safetensors)| *safetensors == dtype).map(|(dtype, _)| *dtype)
}
