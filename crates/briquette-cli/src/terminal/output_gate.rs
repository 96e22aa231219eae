use std::{
    fs,
    path::{Path, PathBuf},
};

use briquette_eval::{files, journal};
use same_file::is_same_file;

use crate::error::{Error, Result};

/// Bytes at the beginning of a file that are searched for the mark.
const HEAD: u64 = 1 << 16;

/// The mark of a file that briquette wrote: such a file is overwritten without being asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    /// The JSON of a result.
    Json,
    /// The page of a run.
    Page,
    /// A policy that `tune` found.
    Tuned,
    /// A profile of `calibrate`.
    Profile,
    /// A compressed text.
    Prefix,
    /// The prompts of a run.
    Prompts,
    /// The tables beside the page of a run.
    Tables,
    /// A page of the manual.
    Manual,
    /// None: the file is for its owner to edit.
    Never,
}

impl Mark {
    fn is_on(self, head: &[u8]) -> bool {
        let text = String::from_utf8_lossy(head);
        match self {
            Self::Json => text.starts_with("{\n  \"written_by\": \"briquette "),
            Self::Page => text.contains("<meta name=\"generator\" content=\"briquette "),
            Self::Tuned => text.starts_with("# Found by briquette "),
            Self::Profile => ["\"made\":", "\"shape\":"].iter().all(|key| text.contains(key)),
            Self::Prefix => text.contains("\"briquette-prefix\""),
            Self::Prompts => text.starts_with("{\"model\":") && text.contains("\"context\":["),
            Self::Tables => text.starts_with("<!-- briquette "),
            Self::Manual => text.contains(".TH briquette"),
            Self::Never => false,
        }
    }
}

/// Checks the files that a command is to write before its work begins, so that no file of somebody
/// else is lost.
#[derive(Debug)]
pub(crate) struct OutputGate {
    force: bool,
    /// Files that are read.
    inputs: Vec<PathBuf>,
    /// Files in folders that are read.
    in_folders: Vec<PathBuf>,
    outputs: Vec<PathBuf>,
}

impl OutputGate {
    /// The gate of a command that reads these files and folders. With `force` it lets files pass
    /// that briquette did not write.
    pub(crate) fn new(force: bool, inputs: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut gate =
            Self { force, inputs: Vec::new(), in_folders: Vec::new(), outputs: Vec::new() };
        for path in inputs {
            match fs::read_dir(&path) {
                Ok(entries) => gate.in_folders.extend(entries.flatten().map(|entry| entry.path())),
                Err(_) => gate.inputs.push(path),
            }
        }
        gate
    }

    /// Checks a file.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`], [`Error::OutputTwice`], [`Error::OutputForeign`], and
    /// `Error::Write` for what cannot be written, such as a link to nothing.
    pub(crate) fn file(&mut self, path: &Path, mark: Mark) -> Result<()> {
        match mark {
            Mark::Prefix => files::check_regular(path)?,
            _ => files::check(path)?,
        }
        self.check(path, carries(path, mark))
    }

    /// Checks a file whose folder is made when it is written.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub(crate) fn new_file(&mut self, path: &Path, mark: Mark) -> Result<()> {
        files::check_new(path)?;
        self.check(path, carries(path, mark))
    }

    /// Checks the files of these names in a folder of results, whose journal says whether they are
    /// those of `command`.
    ///
    /// # Errors
    /// `Error::OtherCommand` for the journal of another command, else as [`file`](Self::file).
    pub(crate) fn results(
        &mut self,
        command: &str,
        dir: &Path,
        journal: &str,
        names: &[&str],
    ) -> Result<()> {
        files::check_dir(dir)?;
        self.present(dir, journal::is_of(&dir.join(journal), command)?, names)
    }

    /// Checks the page of a run and the folder of its tables and pictures.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub(crate) fn report(&mut self, dir: &Path, page: Option<&Path>) -> Result<()> {
        let folder = dir.join("report");
        files::check_dir(&folder)?;
        let own = carries(&folder.join("tables.md"), Mark::Tables);
        let names = ["report.csv", "differences.csv", "tables.md", "tables.tex", "*.svg", "*.png"];
        self.present(&folder, own, &names)?;
        match page {
            Some(page) => self.file(page, Mark::Page),
            None => self.new_file(&dir.join("report.html"), Mark::Page),
        }
    }

    /// Checks files of these names that are there; `*` stands for any beginning.
    fn present(&mut self, dir: &Path, own: bool, names: &[&str]) -> Result<()> {
        let named = |path: &PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            names.iter().any(|name| match name.strip_prefix('*') {
                Some(ending) => file.ends_with(ending),
                None => file == *name,
            })
        };
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(named) {
            files::check(&path)?;
            self.check(&path, own)?;
        }
        Ok(())
    }

    fn check(&mut self, path: &Path, own: bool) -> Result<()> {
        let found = fs::metadata(path).ok();
        // Stdout, which nothing is lost in.
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return Ok(());
        }
        let same = |other: &PathBuf| {
            is_same_file(path, other).unwrap_or_else(|_| whole(path) == whole(other))
        };
        if self.outputs.iter().any(same) {
            return Err(Error::OutputTwice { path: path.into() });
        }
        if self.inputs.iter().any(same) || (!own && self.in_folders.iter().any(same)) {
            return Err(Error::OutputIsInput { path: path.into() });
        }
        if found.is_some_and(|found| found.len() > 0) && !own && !self.force {
            return Err(Error::OutputForeign { path: path.into() });
        }
        self.outputs.push(path.into());
        Ok(())
    }
}

fn carries(path: &Path, mark: Mark) -> bool {
    files::head(path, HEAD).is_ok_and(|head| mark.is_on(&head))
}

/// The path from the root on, without links as far as it is on the disk.
fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let path = files::joined(Path::new(""), &path);
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    there.map_or_else(
        || path.clone(),
        |(above, real)| real.join(path.strip_prefix(above).unwrap_or(&path)),
    )
}
