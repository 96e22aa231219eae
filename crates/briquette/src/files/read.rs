use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Maximum number of bytes of a text.
pub const LONGEST: u64 = 1 << 30;

/// Bytes that are read between two checks of the flag.
const PIECE: usize = 1 << 20;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes a flag stop every reader of the process once it is set. Only the first call of this
/// function counts.
pub fn stop_by(flag: Arc<AtomicBool>) {
    let _ = FLAG.set(flag);
}

#[derive(Debug, thiserror::Error)]
#[error("it was interrupted")]
struct Stopped;

/// Whether the flag of [`stop_by`] caused an error.
pub fn is_stop(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
}

/// Returns the metadata of a regular file. Another kind is an error: reading a named pipe would
/// block, and `/dev/zero` has no end.
///
/// # Errors
/// Errors of the file system, and one for a file that is not regular.
pub fn regular(path: &Path) -> io::Result<fs::Metadata> {
    let found = fs::metadata(path)?;
    check(&found).map(|()| found)
}

fn check(found: &fs::Metadata) -> io::Result<()> {
    match found.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Reader of a [`regular`] file, up to the length that the file had when it was opened. Bytes that
/// are written meanwhile are not read.
#[derive(Debug)]
pub struct Reader {
    file: File,
    length: u64,
    /// Bytes that are left to read.
    left: u64,
}

impl Reader {
    /// Reads an open file from its current position.
    ///
    /// # Errors
    /// Errors of the file system, and one for a file that is not regular.
    pub fn of(mut file: File) -> io::Result<Self> {
        let found = file.metadata()?;
        check(&found)?;
        let at = file.stream_position()?;
        Ok(Self { file, length: found.len(), left: found.len().saturating_sub(at) })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads all that is left.
    ///
    /// # Errors
    /// Errors of the file system, one for bytes that no memory holds, and one that [`is_stop`]
    /// tells.
    pub fn rest(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let room = usize::try_from(self.left).ok().map(|left| into.try_reserve_exact(left));
        if !matches!(room, Some(Ok(()))) {
            let reason = format!("there is no memory for its {} bytes", self.length);
            return Err(io::Error::other(reason));
        }
        self.read_to_end(into).map(|_| ())
    }
}

impl Read for Reader {
    /// Reads at most 1 MiB.
    ///
    /// # Errors
    /// Errors of the file system, and one that [`is_stop`] tells.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(io::Error::other(Stopped));
        }
        let most = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE).min(into.len());
        let bytes = self.file.read(into.get_mut(..most).unwrap_or_default())?;
        self.left = self.left.saturating_sub(bytes as u64);
        Ok(bytes)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to)?;
        self.left = self.length.saturating_sub(at);
        Ok(at)
    }
}

/// Opens a [`regular`] file.
///
/// # Errors
/// As [`regular`].
pub fn open(path: &Path) -> io::Result<Reader> {
    regular(path)?;
    Reader::of(File::open(path)?)
}

/// Reads a [`regular`] file.
///
/// # Errors
/// As [`regular`] and [`Reader::rest`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.rest(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a [`regular`] file of at most 1 GiB.
///
/// # Errors
/// As [`regular`], and one for a file that is longer or not text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut file = open(path)?;
    let bytes = file.length();
    if bytes > LONGEST {
        return Err(io::Error::other(format!("it has {bytes} bytes, at most {LONGEST} are read")));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_written_meanwhile_is_not_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before").unwrap();
        let mut reader = open(file.path()).unwrap();
        file.write_all(b", after").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), reader.length()), ("before", 6));
        reader.seek(SeekFrom::Start(3)).unwrap();
        text.clear();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "ore");
        assert_eq!(read(file.path()).unwrap(), b"before, after");
    }

    #[test]
    fn a_flag_stops_every_reader() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 * PIECE as u64).unwrap();
        let mut reader = open(file.path()).unwrap();
        let mut bytes = vec![0; 2 * PIECE];
        assert_eq!(reader.read(&mut bytes).unwrap(), PIECE);
        let flag = Arc::new(AtomicBool::new(false));
        stop_by(flag.clone());
        assert_eq!(reader.read(&mut bytes).unwrap(), PIECE);
        flag.store(true, Ordering::Relaxed);
        for error in [reader.read_to_end(&mut bytes).unwrap_err(), read(file.path()).unwrap_err()] {
            assert!(is_stop(&error), "{error}");
        }
        flag.store(false, Ordering::Relaxed);
        assert!(!is_stop(&io::Error::other("it was interrupted")));
    }
}
