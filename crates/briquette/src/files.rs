//! Files that are read as a whole: regular ones of a bounded size.

use std::{fs, io, path::Path};

/// Bytes of a text at most.
pub const LONGEST: u64 = 1 << 30;

/// Metadata of a regular file. Another kind is an error: a named pipe would be waited for, and `/dev/zero` has no end.
///
/// # Errors
/// Those of the file system, and one for what is no regular file.
pub fn regular(path: &Path) -> io::Result<fs::Metadata> {
    let found = fs::metadata(path)?;
    match found.is_file() {
        true => Ok(found),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Reads the text of a [`regular`] file of at most 1 GiB.
///
/// # Errors
/// As [`regular`], and one for a file that is longer or no text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = regular(path)?.len();
    if bytes > LONGEST {
        return Err(io::Error::other(format!("it has {bytes} bytes, at most {LONGEST} are read")));
    }
    fs::read_to_string(path)
}
