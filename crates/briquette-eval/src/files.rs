//! Files: texts that are read, and what is written whole or not at all.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
};

use briquette::files;
pub use briquette::files::{LONGEST, regular};
use tempfile::{Builder, NamedTempFile};

use crate::{Error, Result};

/// Reads a text of at most 1 GiB.
///
/// # Errors
/// [`Error::Read`], also for what is no [`regular`] file.
pub fn read_text(path: &Path) -> Result<String> {
    files::read_text(path).map_err(|source| Error::Read { path: path.into(), source })
}

/// The first bytes of a [`regular`] file, at most so many.
pub fn head(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    regular(path)?;
    let mut head = Vec::new();
    fs::File::open(path)?.take(bytes).read_to_end(&mut head)?;
    Ok(head)
}

/// Writes a file: beside it first, under a name that nobody else has, to the disk, then in its
/// place. Who reads it finds the old one or the new one. What is there and is no regular file
/// (`/dev/stdout`, a named pipe) is written to as it is.
///
/// # Errors
/// [`Error::Write`].
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let bytes = bytes.as_ref();
    let written = match fs::metadata(path) {
        Ok(found) if !found.is_file() => fs::write(path, bytes),
        _ => replace(path, |file| file.write_all(bytes)),
    };
    written.map_err(|error| failed(path, error))
}

fn replace(path: &Path, fill: impl FnOnce(&mut NamedTempFile) -> io::Result<()>) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let dir = folder(&path);
    let mut file = beside(&path)?;
    if let Some(before) = before {
        file.as_file().set_permissions(before.permissions())?;
    }
    fill(&mut file)?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    // The name lives in the folder, which not every system can sync.
    let _ = fs::File::open(dir).and_then(|dir| dir.sync_all());
    Ok(())
}

/// Whether a file can be written, before the work for it begins. Nothing is left behind.
///
/// # Errors
/// [`Error::Write`].
pub fn check(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(_) if path.is_symlink() => {
            Err(failed(path, "it is a link to a file that is not there"))
        }
        Ok(found) if found.is_dir() => Err(failed(path, "it is a folder")),
        Ok(found) if found.is_file() && found.permissions().readonly() => {
            Err(failed(path, "it is read-only"))
        }
        Ok(found) if !found.is_file() => Ok(()),
        _ => beside(path).map(|_| ()).map_err(|error| failed(path, error)),
    }
}

/// Whether files can be written into a folder, which need not be there yet. Nothing is left behind.
///
/// # Errors
/// [`Error::Write`].
pub fn check_dir(dir: &Path) -> Result<()> {
    let there = dir.ancestors().map(or_here).find(|dir| dir.exists());
    match there {
        Some(there) if there.is_dir() => {
            beside(&there.join("file")).map(|_| ()).map_err(|error| failed(dir, error))
        }
        Some(there) => Err(failed(dir, format!("{} is no folder", there.display()))),
        None => Err(failed(dir, "there is no folder above it")),
    }
}

/// As [`check`], of a file whose folder is made when it is written.
///
/// # Errors
/// [`Error::Write`].
pub fn check_new(path: &Path) -> Result<()> {
    if path.exists() || path.is_symlink() { check(path) } else { check_dir(&folder(path)) }
}

/// The files in the folder of a run that are read.
pub fn results(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let read = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "jsonl") || path.ends_with("run.toml")
    };
    entries.filter(read).collect()
}

/// The folder a file lies in.
pub(crate) fn folder(path: &Path) -> PathBuf {
    or_here(path.parent().unwrap_or(path))
}

fn or_here(dir: &Path) -> PathBuf {
    if dir.as_os_str().is_empty() { ".".into() } else { dir.into() }
}

/// A file in the folder of `path` that is gone when dropped, with the ending of `path` and the
/// permissions of any other new file.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy()));
    let mut builder = Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.prefix(".briquette-").suffix(&ending.unwrap_or_default()).tempfile_in(folder(path))
}

fn failed(path: &Path, error: impl ToString) -> Error {
    Error::Write { path: path.into(), message: error.to_string() }
}

/// A path that begins at `base` unless it is absolute, without the steps into a folder and out of
/// it again: `runs/../books` is `books`, unless `runs` is a link.
pub fn joined(base: &Path, path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in base.join(path).components() {
        match (part, tidy.components().next_back()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) if !tidy.is_symlink() => {
                tidy.pop();
            }
            _ => tidy.push(part),
        }
    }
    if tidy.as_os_str().is_empty() { PathBuf::from(".") } else { tidy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[cfg(unix)]
    #[test]
    fn what_has_no_end_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/zero"), dir.path()] {
            let error = read_text(path).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
        let large = dir.path().join("large");
        fs::File::create(&large).unwrap().set_len(LONGEST + 1).unwrap();
        let error = read_text(&large).unwrap_err().to_string();
        assert!(error.contains("1073741825 bytes, at most 1073741824"), "{error}");
    }

    #[test]
    fn a_path_does_not_go_into_a_folder_and_out_again() {
        let joined = |base: &str, path: &str| joined(Path::new(base), Path::new(path));
        for (base, path, expected) in [
            ("runs", "../models/m", "models/m"),
            ("runs", "a/./b.toml", "runs/a/b.toml"),
            ("/x/runs", "../../y", "/y"),
            ("runs", "/abs/../z", "/z"),
            ("", "a", "a"),
            ("..", "../a", "../../a"),
            ("runs", "..", "."),
        ] {
            assert_eq!(joined(base, path), Path::new(expected), "{base} {path}");
        }
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for text in ["first, and longer", "second"] {
            check(&path).unwrap();
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(names(dir.path()), ["a.json"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["a.json", "link.json"].map(|name| dir.path().join(name));
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        write(&file, "1").unwrap();
        // As another program would have made it.
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(mode(), fs::metadata(&plain).unwrap().permissions().mode() & 0o777);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link, "2").unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode()), ("2", 0o640));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write(Path::new("/dev/null"), "3").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, "").unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("folder"));
        assert!(check(&dir.path().join("no/a.json")).is_err());
        assert!(check(&file.join("a.json")).is_err());
        assert!(check_dir(&file.join("deep")).unwrap_err().to_string().contains("no folder"));
        check_dir(&dir.path().join("very/deep")).unwrap();
        check_dir(Path::new("not/there/yet")).unwrap();
        assert_eq!(names(dir.path()), ["file"]);
    }
}
