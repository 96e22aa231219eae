use std::{
    fs::File,
    io::{self, Read},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use burn::tensor::{BoolStore, DType};
use burn_store::burn_pack::{Bytes, Error as PackError, Tensor};
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use crate::{
    Error, Result,
    checkpoint::tensors::{Stored, Tensors, read_at},
    json::check_regular,
};

/// The format's own limit, which keeps a damaged length from allocating the memory it claims.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header of a file.
///
/// `burn_store` maps a file and keeps it mapped, so that pages of all shards stay in memory beside
/// the model, and reads the header again for every tensor.
pub(crate) fn open(path: &Path) -> Result<Tensors> {
    let io = |source| Error::Read { path: path.into(), source };
    check_regular(path)?;
    let mut file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let (start, header) = header(path, &mut file, bytes)?;
    tensors(start, &header, &Content::File(path.into()))
}

/// Reads a file that is in memory. `path` names it in errors.
pub(crate) fn of_bytes(path: &Path, bytes: Vec<u8>) -> Result<Tensors> {
    let (start, header) = header(path, &mut bytes.as_slice(), bytes.len() as u64)?;
    tensors(start, &header, &Content::Memory(bytes.into()))
}

/// What the bytes of tensors are read from, one tensor at a time.
#[derive(Clone)]
enum Content {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl Content {
    fn read(&self, start: usize, length: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::File(path) => read_at(path, start as u64, length),
            Self::Memory(all) => {
                let end = start.saturating_add(length);
                all.get(start..end).map(<[u8]>::to_vec).ok_or(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

/// The tensors of a checked header, whose data starts at byte `start`.
fn tensors(start: usize, header: &Metadata, content: &Content) -> Result<Tensors> {
    let deferred = |(name, info): (String, &TensorInfo)| {
        let dtype = dtype(info.dtype).ok_or_else(|| Error::TensorType {
            tensor: name.clone(),
            found: format!("{:?}", info.dtype),
        })?;
        let (begin, end) = info.data_offsets;
        let (start, length) = (start.saturating_add(begin), end.saturating_sub(begin));
        let (content, whole) = (content.clone(), content.clone());
        let read = move || match whole.read(start, length) {
            Ok(bytes) => Ok(Bytes::from_bytes_vec(bytes)),
            Err(error) => Err(PackError::IoError(error.to_string())),
        };
        let tensor = Tensor::deferred(name.clone(), dtype, info.shape.clone(), None, length, read);
        let part =
            move |range: Range<usize>| content.read(start.saturating_add(range.start), range.len());
        Ok((name, Stored::in_parts(tensor, part)))
    };
    header.tensors().into_iter().map(deferred).collect()
}

fn dtype(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// Reads and checks the header of a file of `found` bytes: 8 bytes of length, then JSON. Returns
/// the byte where data starts and the header.
fn header(path: &Path, file: &mut impl Read, found: u64) -> Result<(usize, Metadata)> {
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
    let start = length.saturating_add(8);
    let end = |info: &TensorInfo| start.saturating_add(info.data_offsets.1 as u64);
    let tensors = metadata.tensors();
    let cut = tensors
        .into_iter()
        .filter(|(_, info)| end(info) > found)
        .min_by_key(|(_, info)| info.data_offsets.0);
    if let Some((tensor, info)) = cut {
        return Err(Error::Truncated { path: path.into(), tensor, needed: end(info), found });
    }
    let needed = start.saturating_add(metadata.data_len() as u64);
    if needed != found {
        return Err(container(path, format!("its tensors end at byte {needed} of {found}")));
    }
    let start = usize::try_from(start).map_err(|error| container(path, error))?;
    Ok((start, metadata))
}

fn container(path: &Path, message: impl ToString) -> Error {
    Error::Container { path: path.into(), message: message.to_string() }
}
