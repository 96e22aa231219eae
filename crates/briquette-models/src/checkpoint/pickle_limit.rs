use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use zip::{CompressionMethod, ZipArchive, result::ZipResult};

use crate::{Error, Result};

/// Checks how long the pickles of a file are, before they are parsed: each byte of one can become a
/// hundred in memory. That may be as much as the file, and a little for small ones.
pub(crate) fn check(path: &Path) -> Result<()> {
    let io = |source| Error::Read { path: path.into(), source };
    let failed = |message: String| Error::Pytorch { path: path.into(), message };
    let mut file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let most = (bytes / 100).saturating_add(1 << 20);
    let mut begin = Vec::new();
    file.by_ref().take(262).read_to_end(&mut begin).map_err(io)?;
    if begin.starts_with(b"PK") {
        return match is_longer(&file, most) {
            Ok(false) => Ok(()),
            Ok(true) => Err(failed(format!(
                "it is compressed, or its pickle is longer than {most} bytes, which its tensors do not need"
            ))),
            Err(error) => Err(failed(error.to_string())),
        };
    }
    // It is read as a whole; `torch.load` refuses it too where it may run no code.
    if begin.ends_with(b"ustar") {
        return Err(failed("it is in the format before PyTorch 0.1.10".into()));
    }
    // Magic number, version, system, tensors, and the order of their storages.
    let mut pickles = BufReader::new(begin.as_slice().chain(file).take(most));
    for _ in 0..5 {
        if skip(&mut pickles).is_err() {
            return Err(failed(format!(
                "torch.save did not write it, or it is cut: its first {most} bytes are not the pickles it begins with"
            )));
        }
    }
    Ok(())
}

/// Whether an archive has compressed files, which `torch.save` does not write and which may claim
/// any size, or a longer pickle.
fn is_longer(file: &File, most: u64) -> ZipResult<bool> {
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    for number in 0..archive.len() {
        let file = archive.by_index_raw(number)?;
        let is_pickle = file.name()?.ends_with("data.pkl");
        if file.compression() != CompressionMethod::Stored || is_pickle && file.size() > most {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads over a pickle: opcodes, and what each has behind it.
fn skip(pickle: &mut impl BufRead) -> io::Result<()> {
    loop {
        let [opcode] = array(pickle)?;
        let argument = match opcode {
            b'.' => return Ok(()),
            b'I' | b'L' | b'F' | b'V' | b'S' | b'g' | b'p' | b'P' => {
                pickle.skip_until(b'\n')?;
                0
            }
            b'c' | b'i' => {
                pickle.skip_until(b'\n')?;
                pickle.skip_until(b'\n')?;
                0
            }
            b'K' | b'h' | b'q' | 0x80 | 0x82 => 1,
            b'M' | 0x83 => 2,
            b'J' | b'j' | b'r' | 0x84 => 4,
            b'G' | 0x95 => 8,
            b'U' | b'C' | 0x8a | 0x8c => array(pickle).map(u8::from_le_bytes)?.into(),
            b'T' | b'X' | b'B' | 0x8b => array(pickle).map(u32::from_le_bytes)?.into(),
            0x8d | 0x8e | 0x96 => array(pickle).map(u64::from_le_bytes)?,
            _ => 0,
        };
        let skipped = io::copy(&mut pickle.by_ref().take(argument), &mut io::sink())?;
        if skipped < argument {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
