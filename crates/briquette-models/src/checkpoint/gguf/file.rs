use std::{
    collections::BTreeMap,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use super::{blocks::Encoding, header::Header, value::Value};
use crate::{Error, Result, checkpoint::part::Part, json::check_regular};

/// The metadata of a GGUF file, and the places of its tensors. Their bytes are not read. Of one
/// that was split into several it is the metadata of the first and the tensors of all.
pub(crate) struct Gguf {
    pub(crate) path: PathBuf,
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, Place>,
}

/// Shape, encoding and place of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The file it lies in.
    pub(super) path: PathBuf,
    /// The outermost dimension first: the other way round than in the file.
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
    /// Place of its first byte in the file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Gguf {
    /// Reads the header, and those of the other parts if the file was split.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Gguf`], [`Error::BlockType`] and [`Error::Truncated`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if let Some(part) = Part::of(path).filter(|_| !path.exists()) {
            return Err(part.missing(part.number));
        }
        let mut whole = Self::open_one(path)?;
        let Some(count) = whole.split("split.count")?.filter(|count| *count > 1) else {
            return Ok(whole);
        };
        let part = Part::of(path).filter(|part| part.count == count && part.number == 1);
        let Some(part) = part.filter(|_| matches!(whole.split("split.no"), Ok(Some(0)))) else {
            return Err(whole.damaged(format!(
                "it is one of {count} parts, but is not called NAME-00001-of-{count:05}.gguf as the first"
            )));
        };
        for number in 2..=count {
            let path = part.path(number);
            if !path.exists() {
                return Err(part.missing(number));
            }
            let other = Self::open_one(&path)?;
            if other.split("split.no")? != number.checked_sub(1) {
                return Err(other.damaged(format!("it is not part {number} of {count}")));
            }
            for (name, place) in other.tensors {
                if whole.tensors.insert(name.clone(), place).is_some() {
                    return Err(whole.damaged(format!("tensor `{name}` is there twice")));
                }
            }
        }
        let found = whole.tensors.len();
        match whole.split("split.tensors.count")?.filter(|claimed| *claimed != found as u64) {
            Some(claimed) => Err(whole.damaged(format!(
                "its {count} parts hold {found} tensors, split.tensors.count is {claimed}"
            ))),
            None => Ok(whole),
        }
    }

    /// A number that the parts of a file have.
    fn split(&self, key: &str) -> Result<Option<u64>> {
        self.optional(key, "a number", Value::unsigned)
    }

    /// Reads the header of one file, and checks that every tensor lies within it.
    fn open_one(path: &Path) -> Result<Self> {
        let io = |source| Error::Read { path: path.into(), source };
        check_regular(path)?;
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut header = Header::new(BufReader::new(file), length);
        let damaged = |message| Error::Gguf { path: path.into(), message };
        let (metadata, infos) = read(&mut header).map_err(damaged)?;

        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(value) => match value.unsigned() {
                Some(number @ 1..=65_536) => number,
                _ => {
                    return Err(damaged(format!("general.alignment is {}", value.kind())));
                }
            },
        };
        let base = header.at().next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        let mut cut: Option<Error> = None;
        let mut first_cut = u64::MAX;
        for Info { name, dimensions, kind, offset } in infos {
            let Some(encoding) = Encoding::numbered(kind) else {
                return Err(Error::BlockType { tensor: name, found: Encoding::shown(kind) });
            };
            let too_large = || damaged(format!("tensor `{name}` has dimensions {dimensions:?}"));
            let bytes = encoding.bytes(&dimensions).ok_or_else(too_large)?;
            let shape = dimensions.iter().rev().map(|&size| usize::try_from(size).ok());
            let shape = shape.collect::<Option<Vec<usize>>>().ok_or_else(too_large)?;
            let start = base.checked_add(offset).ok_or_else(too_large)?;
            let needed = start.checked_add(bytes).ok_or_else(too_large)?;
            if needed > length && start < first_cut {
                first_cut = start;
                let tensor = name.clone();
                cut = Some(Error::Truncated { path: path.into(), tensor, needed, found: length });
            }
            let place = Place { path: path.into(), shape, encoding, start, bytes };
            if tensors.insert(name.clone(), place).is_some() {
                return Err(damaged(format!("tensor `{name}` is there twice")));
            }
        }
        match cut {
            Some(error) => Err(error),
            None => Ok(Self { path: path.into(), metadata, tensors }),
        }
    }

    /// The error of a file that can be read and makes no sense.
    pub(super) fn damaged(&self, message: impl Into<String>) -> Error {
        Error::Gguf { path: self.path.clone(), message: message.into() }
    }

    /// The value of a key that need not be there, by one of the functions of [`Value`].
    pub(super) fn optional<'a, T>(
        &'a self,
        key: &str,
        is: &str,
        of: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match of(value) {
            Some(found) => Ok(Some(found)),
            None => Err(self.damaged(format!("{key} is {}, but must be {is}", value.kind()))),
        }
    }

    /// The value of a key that must be there.
    pub(super) fn required<'a, T>(
        &'a self,
        key: &str,
        is: &str,
        of: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T> {
        self.optional(key, is, of)?.ok_or_else(|| self.damaged(format!("{key} is not there")))
    }
}

/// The header's entry of a tensor.
struct Info {
    name: String,
    /// The innermost first.
    dimensions: Vec<u64>,
    kind: u32,
    /// From the end of the header.
    offset: u64,
}

type Contents = (BTreeMap<String, Value>, Vec<Info>);

fn read(header: &mut Header<BufReader<File>>) -> std::result::Result<Contents, String> {
    let magic = header.u32()?;
    if magic.to_le_bytes() != *b"GGUF" {
        return Err(format!("it begins with {:?} instead of GGUF", magic.to_le_bytes()));
    }
    match header.u32()? {
        2 | 3 => {}
        swapped if matches!(swapped.swap_bytes(), 1..=3) => {
            return Err("its numbers are big-endian, only little-endian ones are read".into());
        }
        other => return Err(format!("it has version {other}, those read are 2 and 3")),
    }
    let (tensors, values) = (header.u64()?, header.u64()?);
    let mut metadata = BTreeMap::new();
    for _ in 0..values {
        let key = header.text()?;
        let value = header.value().map_err(|error| format!("{key}: {error}"))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(format!("{key} is there twice"));
        }
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let name = header.text()?;
        let dimensions = match header.u32()? {
            count @ 1..=4 => {
                (0..count).map(|_| header.u64()).collect::<std::result::Result<_, String>>()?
            }
            other => return Err(format!("tensor `{name}` has {other} dimensions, not 1 to 4")),
        };
        infos.push(Info { name, dimensions, kind: header.u32()?, offset: header.u64()? });
    }
    Ok((metadata, infos))
}
