use std::{fs, io, path::Path};

/// Bytes of a policy or a profile at most; that of a large model has some millions.
const LONGEST: u64 = 256 << 20;

/// Reads a policy or a profile: a regular file of at most 256 MiB. A named pipe would be waited for, and `/dev/zero` has no
/// end.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > LONGEST {
        let bytes = found.len();
        return Err(io::Error::other(format!("it has {bytes} bytes, at most {LONGEST} are read")));
    }
    fs::read_to_string(path)
}
