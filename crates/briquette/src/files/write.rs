use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::{Builder, NamedTempFile};

/// Replaces a file: writes a new one beside it, under a name of its own, syncs it to disk, and
/// moves it into place. A reader finds the old file or the new one.
///
/// # Errors
/// As [`check`], and what `fill` gives.
pub fn replace(
    path: &Path,
    fill: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
) -> io::Result<()> {
    let place = place(path)?;
    let mut file = beside(&place)?;
    if let Ok(before) = fs::metadata(&place) {
        file.as_file().set_permissions(before.permissions())?;
    }
    fill(&mut file)?;
    file.as_file().sync_all()?;
    file.persist(&place)?;
    // The name lives in the folder, which not every system can sync.
    let _ = fs::File::open(folder(&place)).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Checks that a file can be written, before the work for it begins. Nothing is left behind.
///
/// # Errors
/// Errors of the file system, and one for what is there and is no regular file: a folder, a device,
/// a named pipe, a link to nothing.
pub fn check(path: &Path) -> io::Result<()> {
    beside(&place(path)?).map(|_| ())
}

/// Creates a file in the folder of `path`, with its ending and the permissions of any other new
/// file. The file is deleted when dropped.
///
/// # Errors
/// Errors of the file system, without the name of the file.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy()));
    let ending = ending.unwrap_or_default();
    builder.prefix(".briquette-").suffix(&ending).tempfile_in(folder(path)).map_err(|error| {
        let text = error.to_string();
        let (cause, _) = text.split_once(" at path ").unwrap_or((&text, ""));
        io::Error::new(error.kind(), cause)
    })
}

/// The path of the regular file that is to be replaced, or of the new one. A link stays a link.
fn place(path: &Path) -> io::Result<PathBuf> {
    let no = |reason| Err(io::Error::other(reason));
    match fs::metadata(path) {
        Err(_) if path.is_symlink() => no("it is a link to a file that is not there"),
        Err(_) => Ok(path.into()),
        Ok(found) if found.is_dir() => no("it is a folder"),
        Ok(found) if !found.is_file() => no("it is no regular file"),
        Ok(found) if found.permissions().readonly() => no("it is read-only"),
        // A link below `/proc` leads to a file also when that has no name any more.
        Ok(_) => path.canonicalize().or_else(|_| no("it leads to a file that was deleted")),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
