//! Files: texts that are read, and what is written whole or not at all.

use std::{
    ffi::OsStr,
    fs,
    io::{self, BufReader, Read, Write},
    path::{Component, Path, PathBuf},
    str::Utf8Chunk,
};

use briquette::files;
pub use briquette::files::{LONGEST, Reader, regular};
use serde::Serializer;

use crate::{Error, Result};

/// Reads a text of at most 1 GiB.
///
/// # Errors
/// [`Error::Read`], also for what is no [`regular`] file.
pub fn read_text(path: &Path) -> Result<String> {
    files::read_text(path).map_err(|source| Error::read(path, source))
}

/// Reads a [`regular`] file, whatever is in it.
///
/// # Errors
/// [`Error::Read`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    files::read(path).map_err(|source| Error::read(path, source))
}

/// Opens a [`regular`] file, to read it from its beginning.
///
/// # Errors
/// [`Error::Read`].
pub fn open(path: &Path) -> Result<BufReader<Reader>> {
    let opened = files::open(path).map_err(|source| Error::read(path, source));
    opened.map(BufReader::new)
}

/// The first bytes of a [`regular`] file, at most so many.
pub fn head(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    files::open(path)?.take(bytes).read_to_end(&mut head)?;
    Ok(head)
}

/// Writes a file: beside it first, under a name that nobody else has, to the disk, then in its
/// place. Who reads it finds the old one or the new one. What leads to stdout, as `/dev/stdout`
/// does, is written there.
///
/// # Errors
/// [`Error::Write`], also for what is there and is no regular file: a device, a named pipe.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let bytes = bytes.as_ref();
    let written = match is_stdout(path) {
        true => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        false => files::replace(path, |file| file.write_all(bytes)),
    };
    written.map_err(|error| Error::write(path, error))
}

/// Whether a file can be written, before the work for it begins. Nothing is left behind.
///
/// # Errors
/// As [`write()`].
pub fn check(path: &Path) -> Result<()> {
    if is_stdout(path) { Ok(()) } else { check_regular(path) }
}

/// As [`check`], of a file that cannot be stdout.
///
/// # Errors
/// As [`check`].
pub fn check_regular(path: &Path) -> Result<()> {
    files::check(path).map_err(|error| Error::write(path, error))
}

/// Whether a path leads to what is stdout.
#[cfg(unix)]
fn is_stdout(path: &Path) -> bool {
    use std::os::{fd::AsFd, unix::fs::MetadataExt};
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(fs::File::from);
    let found = stdout.and_then(|stdout| Ok((stdout.metadata()?, fs::metadata(path)?)));
    found.is_ok_and(|(stdout, found)| (stdout.dev(), stdout.ino()) == (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn is_stdout(_: &Path) -> bool {
    false
}

/// Whether files can be written into a folder, which need not be there yet. Nothing is left behind.
///
/// # Errors
/// [`Error::Write`].
pub fn check_dir(dir: &Path) -> Result<()> {
    let there = dir.ancestors().map(or_here).find(|dir| dir.exists());
    match there {
        Some(there) if there.is_dir() => {
            files::beside(&there.join("file")).map(|_| ()).map_err(|error| Error::write(dir, error))
        }
        Some(there) => Err(Error::write(dir, format!("{} is no folder", there.display()))),
        None => Err(Error::write(dir, "there is no folder above it")),
    }
}

/// As [`check`], of a file whose folder is made when it is written.
///
/// # Errors
/// [`Error::Write`].
pub fn check_new(path: &Path) -> Result<()> {
    if path.exists() || path.is_symlink() { check(path) } else { check_dir(&folder(path)) }
}

/// The paths in a folder, in the order of their names.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::read(dir, source);
    let entries = fs::read_dir(dir).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
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

/// A path, or a part of one, as text for results: bytes that are not UTF-8 are written as `\xff`,
/// so that two names stay two.
pub fn name(name: impl AsRef<OsStr>) -> String {
    let shown = |chunk: Utf8Chunk<'_>| {
        [chunk.valid(), &chunk.invalid().escape_ascii().to_string()].concat()
    };
    name.as_ref().as_encoded_bytes().utf8_chunks().map(shown).collect()
}

/// Writes a path into results, as [`name`] shows it.
pub(crate) fn as_text<S: Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&name(path))
}

/// The name of a file without its ending, as [`name`] shows it.
pub(crate) fn stem(path: &Path) -> String {
    name(path.file_stem().unwrap_or_default())
}

/// The last part of a path, as [`name`] shows it.
pub fn last(path: &Path) -> String {
    name(path.file_name().unwrap_or(path.as_os_str()))
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

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf8_stay_two() {
        use std::os::unix::ffi::OsStrExt;
        let shown = |bytes: &[u8]| name(OsStr::from_bytes(bytes));
        assert_eq!(shown("añ b".as_bytes()), "añ b");
        assert_eq!([shown(b"x\xff.y"), shown(b"x\xfe.y")], ["x\\xff.y", "x\\xfe.y"]);
        let path = Path::new(OsStr::from_bytes(b"d/x\xff.txt"));
        assert_eq!([stem(path), last(path), last(Path::new(".."))], ["x\\xff", "x\\xff.txt", ".."]);
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
    }

    /// Nodes are made here: no test may write to one of the machine's, which it could take away.
    #[cfg(unix)]
    #[test]
    fn outputs_are_regular_files_or_nothing() {
        use std::os::{
            fd::AsRawFd,
            unix::{fs::symlink, net::UnixListener},
        };
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        symlink("pipe", at("link")).unwrap();
        symlink("nowhere", at("loose")).unwrap();
        // A file that has no name any more, but still a link that leads to it.
        let gone = fs::File::create(at("gone")).unwrap();
        fs::remove_file(at("gone")).unwrap();
        let descriptor = PathBuf::from(format!("/proc/self/fd/{}", gone.as_raw_fd()));
        symlink(&descriptor, at("deleted")).unwrap();
        let before = names(dir.path());
        for (name, reason) in [
            ("socket", "it is no regular file"),
            ("pipe", "it is no regular file"),
            ("link", "it is no regular file"),
            ("loose", "it is a link to a file that is not there"),
            ("deleted", "that "),
            (".", "it is a folder"),
            ("no/deep", "No such file or directory (os error 2)"),
        ] {
            let kind = fs::symlink_metadata(at(name)).map(|found| found.file_type()).ok();
            for error in [check(&at(name)).unwrap_err(), write(&at(name), "3").unwrap_err()] {
                let error = error.to_string();
                assert!(error.contains(reason) && !error.contains(".briquette-"), "{error}");
            }
            assert_eq!(fs::symlink_metadata(at(name)).map(|found| found.file_type()).ok(), kind);
        }
        assert_eq!(names(dir.path()), before);
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
