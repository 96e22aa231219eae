//! Reading of whole files: regular ones of a bounded size.

use std::{fs, io, path::Path};

/// Maximum number of bytes of a text.
pub const LONGEST: u64 = 1 << 30;

/// Returns the metadata of a regular file. Another kind is an error: reading a named pipe would
/// block, and `/dev/zero` has no end.
///
/// # Errors
/// Errors of the file system, and one for a file that is not regular.
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
/// As [`regular`], and one for a file that is longer or not text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = regular(path)?.len();
    if bytes > LONGEST {
        return Err(io::Error::other(format!("it has {bytes} bytes, at most {LONGEST} are read")));
    }
    fs::read_to_string(path)
}
