//! The book and the code say the same.

mod book;
mod first_build;
mod leaderboard;
mod readme;
mod width;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file, by its path from the root of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Folders of Rust code, from the root of the repository.
const FOLDERS: [&str; 8] = [
    "benches",
    "crates",
    "docs/doctests",
    "examples",
    "fuzz",
    "kernels-cubecl",
    "models/ember-7m/train",
    "tests",
];

/// The paths of all Rust files, from the root of the repository.
fn sources() -> Vec<String> {
    FOLDERS.iter().flat_map(|folder| sources_below(folder)).collect()
}

fn sources_below(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "target").collect();
    names.sort();
    let mut all = Vec::new();
    for path in names.into_iter().map(|name| format!("{folder}/{name}")) {
        if root().join(&path).is_dir() {
            all.extend(sources_below(&path));
        } else if Path::new(&path).extension().is_some_and(|ending| ending == "rs") {
            all.push(path);
        }
    }
    all
}
