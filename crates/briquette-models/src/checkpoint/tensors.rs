use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Read as _, Seek, SeekFrom},
    ops::Range,
    path::Path,
    sync::Arc,
};

use burn_store::burn_pack::Tensor;

/// Tensors of a file by name, their bytes not read yet.
pub(crate) type Tensors = BTreeMap<String, Stored>;

/// Reads bytes of a tensor, counted from its first.
type Read = dyn Fn(Range<usize>) -> io::Result<Vec<u8>> + Send + Sync;

/// A tensor of a file.
#[derive(Clone)]
pub(crate) struct Stored {
    /// The whole of it.
    pub(crate) tensor: Tensor,
    /// Bytes that it takes in the file.
    pub(crate) bytes: u64,
    read: Option<Arc<Read>>,
}

impl Stored {
    /// A tensor of a file of which parts can be read.
    pub(crate) fn in_parts(
        tensor: Tensor,
        read: impl Fn(Range<usize>) -> io::Result<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self { read: Some(Arc::new(read)), ..tensor.into() }
    }

    /// A tensor that takes so many bytes in the file, where its numbers may be quantized.
    pub(crate) fn of_size(tensor: Tensor, bytes: u64) -> Self {
        Self { bytes, ..tensor.into() }
    }

    /// Reads some of its bytes; where the file is read by whole tensors, all and leaves the others.
    pub(crate) fn bytes(&self, range: Range<usize>) -> io::Result<Vec<u8>> {
        match &self.read {
            Some(read) => read(range),
            None => {
                let all = self.tensor.to_bytes().map_err(io::Error::other)?;
                all.get(range).map(<[u8]>::to_vec).ok_or(ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

impl From<Tensor> for Stored {
    fn from(tensor: Tensor) -> Self {
        Self { bytes: tensor.byte_len() as u64, tensor, read: None }
    }
}

/// Reads so many bytes of a file from one on.
pub(super) fn read_at(path: &Path, start: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}
